"""The number of this process among the processes of a test session."""

import os

PROCESS = "HOLDFAST_TEST_PROCESS"
"""The variable with the number of a test process, from 0. Programs that the tests start inherit it."""


def process_number() -> int | None:
    """None in a session of one process, and in a program that is not a test."""
    number = os.environ.get(PROCESS)
    return None if number is None else int(number)
