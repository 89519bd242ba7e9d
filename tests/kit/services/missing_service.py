"""Handles a missing service: the test is skipped on a laptop, and fails in CI."""

import os
from typing import NoReturn

import pytest


def missing_service(service: str, setting: str, reason: object) -> NoReturn:
    """Skip the test, naming the environment variable that would point it elsewhere. Where CI=true, fail it."""
    message = f"{service} is not there ({reason}); {setting} names another one"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{message}. CI runs every test.", pytrace=False)
    pytest.skip(message)
