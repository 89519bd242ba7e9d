"""The limits of a JSON value: within them, every part of the product can store it, read it and show it again.

A value that passes holds no text that a database refuses and no number that JSON or SQL cannot hold. It is neither so
deep nor so wide that a program which walks through it stands still or breaks.
"""

import json
import math
import re
from typing import Any, NamedTuple, cast

MAX_DEPTH = 100
"""Lists and objects inside one another. The answer that shows a value puts it a few levels deeper."""

MAX_VALUES = 100_000
"""Values in one document; each list, object, text and number counts. A process walks through so many in a few
milliseconds."""

MAX_INTEGER = 2**63 - 1

TOO_DEEP = f"Value is nested deeper than {MAX_DEPTH} levels"
TOO_MANY = f"Document has more than {MAX_VALUES} values"
TOO_LARGE = "Number is outside the 64-bit integers"
NOT_FINITE = "Number is not finite: JSON has no NaN and no Infinity"
HAS_NUL = "Text contains a NUL character, which cannot be stored"
HALF_CHARACTER = "Text contains half a surrogate pair, which is no character"

_STRING = re.compile(r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
"""A JSON string, or the rest of the text when the string does not end. The pattern never backtracks."""

Place = tuple[str | int, ...]


class JsonFlaw(NamedTuple):
    """What is wrong with a JSON value, and where in it."""

    place: Place
    text: str


class _Step(NamedTuple):
    """A place as a chain, so that a walk makes no tuple per value."""

    parent: "_Step | None"
    key: str | int
    depth: int


def flaw_of_document(document: bytes) -> JsonFlaw | None:
    """What is wrong with a JSON text. None when nothing is, and when it is no JSON: the parser says that better.

    The text is measured before it is parsed, because a short text can hold millions of lists.
    """
    try:
        text = document.decode(json.detect_encoding(document), "surrogatepass")
    except UnicodeDecodeError:
        return None
    if _most_values(text) > MAX_VALUES and _most_values(_STRING.sub("", text)) > MAX_VALUES:
        return JsonFlaw((), TOO_MANY)
    try:
        return flaw_of(json.loads(text))
    except RecursionError:
        return JsonFlaw((), TOO_DEEP)
    except json.JSONDecodeError:
        return None
    except ValueError:
        # An integer with more digits than Python converts.
        return JsonFlaw((), TOO_LARGE)


def flaw_of(value: object, *, max_values: int = MAX_VALUES, size_only: bool = False) -> JsonFlaw | None:
    """What is wrong with a parsed JSON value. None: nothing. `size_only`: it is not to be stored as it is."""
    waiting: list[tuple[object, _Step | None]] = [(value, None)]
    seen = 0
    while waiting:
        one, step = waiting.pop()
        seen += 1
        if isinstance(one, (dict, list)):
            depth = 1 if step is None else step.depth + 1
            if depth > MAX_DEPTH:
                return JsonFlaw(_place(step), TOO_DEEP)
            if seen + len(waiting) + len(cast("list[Any]", one)) > max_values:
                return JsonFlaw((), f"Document has more than {max_values} values")
            waiting.extend(_inside(cast("dict[str, Any] | list[Any]", one), step, depth))
        text = None if size_only else _flaw_of_one(cast("object", one))
        if text is not None:
            return JsonFlaw(_place(step), text)
    return None


def _inside(value: dict[str, Any] | list[Any], step: _Step | None, depth: int) -> list[tuple[object, _Step | None]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(one, _Step(step, key, depth)) for key, one in items]


def _flaw_of_one(value: object) -> str | None:
    """What is wrong with a value itself, whatever is inside it."""
    if isinstance(value, str):
        return _flaw_of_text(value)
    if isinstance(value, dict):
        return next((flaw for key in cast("dict[str, Any]", value) if (flaw := _flaw_of_text(key)) is not None), None)
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_FINITE
    if isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        return TOO_LARGE
    return None


def _flaw_of_text(text: str) -> str | None:
    if "\0" in text:
        return HAS_NUL
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return HALF_CHARACTER
    return None


def _most_values(text: str) -> int:
    """The most values that the text can have: every comma and bracket is taken for one of JSON's."""
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _place(step: _Step | None) -> Place:
    keys: list[str | int] = []
    while step is not None:
        keys.append(step.key)
        step = step.parent
    return tuple(reversed(keys))
