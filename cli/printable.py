"""Text of models, tools and users, as a terminal may show it: it could move the cursor or change the window's title."""

import re
import unicodedata
from datetime import UTC, datetime

import msgspec

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
