"""What commands share: text that a terminal may show, options and the shapes of their values, and exit statuses.

Text of models, tools and users could move the cursor or change the window's title; `printable` escapes it. Exit
statuses are those of docs/command-line.md: Click has 2 for a command line that it cannot read, and a shell has 130 for
a process that Ctrl-C has ended.
"""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

_JOINER = "\u200d"
"""Between the parts of one emoji."""


def printable(text: str) -> str:
    """The text without control characters but line ends and tabs. Spaces of every kind stay."""
    return "".join(map(_shown, text))


_ESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What JSON leaves as it is in a string, and a terminal or `splitlines` does not: controls, line ends of Unicode, and
marks that turn the direction of a line."""


def printable_json(line: str) -> str:
    """The JSON with such characters written as escapes: the same document, for programs, and harmless to a terminal."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _shown(one: str) -> str:
    if one.isprintable() or one in f"\n\t{_JOINER}" or unicodedata.category(one) == "Zs":
        return one
    return " " if one.isspace() else ""


# Lines of the log that a process writes before it has a log, or without one: in the form of all others, as JSON.


def event_line(event: str, level: str, **facts: object) -> str:
    """One event, as `HOLDFAST_LOG_JSON` asks for it."""
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"event": event, **facts, "level": level, "logger": "holdfast", "timestamp": moment}
    return msgspec.json.encode(line).decode()


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

MOST_DAYS = 36_500


def days_at_most(text: str) -> int:
    """A number of days, of a hundred years at most; raises what the command line says otherwise."""
    number = positive(text)
    if number > MOST_DAYS:
        raise typer.BadParameter(f"must be at most {MOST_DAYS}")
    return number


def positive(text: str) -> int:
    """A number from 1 on; raises what the command line says otherwise."""
    try:
        number = int(text)
    except ValueError:
        raise typer.BadParameter("write it as a number, such as 10") from None
    if number < 1:
        raise typer.BadParameter("must be at least 1")
    return number


OK = 0

FAILURE = 1
"""Something else is amiss, such as a server or a database that does not answer. Starting it again may help."""

MISTAKE = 2
"""Somebody has to ask otherwise, or set it up otherwise; starting it again does not help."""

RUN_FAILED = 3
"""The run that the command followed has failed."""

RUN_CANCELLED = 4
"""The run that the command followed was cancelled."""

WAITS_FOR_APPROVAL = 5
"""The run that the command followed waits for a decision."""

INTERRUPTED = 130
"""Ctrl-C has ended the command; a run that it followed goes on."""
