"""Shared by the dialects of web pages: named conversations, submissions, decisions, and page tokens."""
