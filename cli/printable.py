"""Shared by all commands: text that is safe for a terminal, options, and exit statuses.

Text of models, tools and users could move the cursor or change the window's title, so `printable` removes control
characters. docs/command-line.md lists the exit statuses: 2 is Click's for a command line that it cannot parse, and 130
is the shells' for a process that Ctrl-C ended.
"""

import getpass
import re
import unicodedata
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

_JOINER = "\u200d"
"""Joins the parts of one emoji."""


def printable(text: str) -> str:
    """Returns the text without control characters. Line feeds, tabs and spaces of every kind stay."""
    return "".join(map(_shown, text))


_ESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that JSON leaves unescaped in strings, but a terminal or `splitlines` interprets: controls, Unicode's line
ends, and marks that change the direction of text."""


def printable_json(line: str) -> str:
    """Returns the same JSON document with these characters escaped, so that a terminal does not interpret them."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _shown(one: str) -> str:
    if one.isprintable() or one in f"\n\t{_JOINER}" or unicodedata.category(one) == "Zs":
        return one
    return " " if one.isspace() else ""


# Log lines of a process that has no log, or none yet. They have the JSON form of all others.


def event_line(event: str, level: str, **facts: object) -> str:
    """Returns one log line in the form of `HOLDFAST_LOG_JSON`."""
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"event": event, **facts, "level": level, "logger": "holdfast", "timestamp": moment}
    return msgspec.json.encode(line).decode()


def user_name(nameless: str) -> str:
    """Returns the name of this process's user; `nameless` for a container's user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return nameless


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

MOST_DAYS = 36_500
"""A hundred years. Python's calendar ends."""

OK = 0

FAILURE = 1
"""Anything but a mistake, such as a server or a database that does not answer. A retry may help."""

MISTAKE = 2
"""The command or the settings must change; a retry does not help."""

RUN_FAILED = 3
"""The run that the command followed failed."""

RUN_CANCELLED = 4
"""The run that the command followed was cancelled."""

WAITS_FOR_APPROVAL = 5
"""The run that the command followed waits for a decision."""

INTERRUPTED = 130
"""Ctrl-C ended the command. A run that it followed goes on."""
