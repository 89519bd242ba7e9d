"""Imports the modules of the standard library that tools use most, for the zygote to load before the first call.

Every call is a fork of the zygote, so these modules cost it no time.
"""

import ast
import asyncio
import base64
import calendar
import concurrent.futures
import contextlib
import copy
import csv
import dataclasses
import datetime
import decimal
import difflib
import enum
import fractions
import hashlib
import heapq
import hmac
import html
import inspect
import itertools
import linecache
import math
import pathlib
import random
import secrets
import shutil
import statistics
import string
import tempfile
import textwrap
import threading
import traceback
import typing
import unicodedata
import urllib.parse
import uuid
import zoneinfo

MODULES = (
    *(ast, asyncio, base64, calendar, concurrent.futures, contextlib, copy, csv, dataclasses, datetime, decimal),
    *(difflib, enum, fractions, hashlib, heapq, hmac, html, inspect, itertools, linecache, math, pathlib, random),
    *(secrets, shutil, statistics, string, tempfile, textwrap, threading, traceback, typing, unicodedata),
    *(urllib.parse, uuid, zoneinfo),
)
