"""Which of the processes of a session of tests this one is."""

import os

PROCESS = "HOLDFAST_TEST_PROCESS"
"""The number of a process of tests, from 0. Programs that the tests start see it as well."""


def process_number() -> int | None:
    """None in a session of one process, and in a program that is no test."""
    number = os.environ.get(PROCESS)
    return None if number is None else int(number)
