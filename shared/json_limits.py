"""Limits of JSON values. Every part of the product can store, read and return a value within them.

Such a value contains no text that a database refuses and no number that JSON or SQL cannot represent. It is neither so
deep nor so wide that code which traverses it hangs or fails.
"""

import json
import math
import re
from itertools import chain
from typing import Any, NamedTuple, cast

MAX_DEPTH = 100
"""Nested lists and objects. An answer puts the value a few levels deeper."""

MAX_VALUES = 100_000
"""Values per document; each list, object, text and number counts. Traversing this many takes a few milliseconds."""

MAX_INTEGER = 2**63 - 1

TOO_DEEP = f"Value is nested deeper than {MAX_DEPTH} levels"
TOO_MANY = f"Document has more than {MAX_VALUES} values"
TOO_LARGE = "Number is outside the 64-bit integers"
NOT_FINITE = "Number is not finite: JSON has no NaN and no Infinity"
HAS_NUL = "Text contains a NUL character, which cannot be stored"
HALF_CHARACTER = "Text contains half a surrogate pair, which is no character"

_STRING = re.compile(r'"[^"]*+(?:"|\Z)')
"""A JSON string without escaped quotes, or the rest of the text if the string does not end."""

MOST_STRINGS = 2 * MAX_VALUES
"""Each string of a document is a value or a key."""

LONGEST_INTEGER = 20
"""Characters of the longest integer that is parsed. The time to parse one grows with the square of its length."""

Place = tuple[str | int, ...]


def printable(text: str) -> str:
    """The text without characters that no database stores: NUL, and lone surrogates."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return clean if clean.isascii() else clean.encode("utf-8", "replace").decode()


_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""In JSON, where a backslash is written twice."""


def printable_object(document: bytes | bytearray, *, apart_from: str) -> dict[str, Any]:
    """The object of a JSON document in ASCII, with printable texts, except those of the field `apart_from`."""
    found: dict[str, Any] = json.loads(document)
    if b"\\u0000" not in document and b"\\ud" not in document:
        return found
    kept = {apart_from: found.pop(apart_from)} if apart_from in found else {}
    text = printable(json.dumps(found, ensure_ascii=False))
    return json.loads(_ESCAPED_NUL.sub(r"\1" + "\N{REPLACEMENT CHARACTER}", text)) | kept


class JsonFlaw(NamedTuple):
    """A flaw of a JSON value, and its place."""

    place: Place
    text: str


_Step = tuple[Any, str | int, int]
"""A place as a linked list: the parent's step or None, the key, and the depth."""


def flaw_of_document(document: bytes) -> JsonFlaw | None:
    """The flaw of a JSON text. None if it has none, or is not JSON, which the parser reports better.

    The text is measured before it is parsed, because a short text can contain millions of lists.
    """
    try:
        text = document.decode(json.detect_encoding(document), "surrogatepass")
    except UnicodeDecodeError:
        return None
    if _most_values(text) > MAX_VALUES and _has_too_many(text):
        return JsonFlaw((), TOO_MANY)
    long_ones = 0

    def integer(digits: str) -> int:
        nonlocal long_ones
        if len(digits) <= LONGEST_INTEGER:
            return int(digits)
        long_ones += 1
        return MAX_INTEGER + 1

    try:
        return flaw_of(json.loads(text, parse_int=integer))
    except RecursionError:
        return JsonFlaw((), TOO_DEEP)
    except json.JSONDecodeError:
        return JsonFlaw((), TOO_LARGE) if long_ones else None


def flaw_of(value: object, *, max_values: int = MAX_VALUES, size_only: bool = False) -> JsonFlaw | None:
    """The flaw of a parsed JSON value. None: it has none. `size_only`: the value will not be stored unchanged.

    Nearly every value is valid and is checked level by level. Only an invalid one is searched for the place of its
    flaw.
    """
    if _is_sound(value, max_values, size_only=size_only):
        return None
    waiting: list[tuple[object, _Step | None]] = [(value, None)]
    seen = 0
    while waiting:
        one, step = waiting.pop()
        seen += 1
        if isinstance(one, (dict, list)):
            depth = 1 if step is None else step[2] + 1
            if depth > MAX_DEPTH:
                return JsonFlaw(_place(step), TOO_DEEP)
            if seen + len(waiting) + len(cast("list[Any]", one)) > max_values:
                return JsonFlaw((), f"Document has more than {max_values} values")
            waiting.extend(_inside(cast("dict[str, Any] | list[Any]", one), step, depth))
        text = None if size_only else _flaw_of_one(cast("object", one))
        if text is not None:
            return JsonFlaw(_place(step), text)
    return None


def _is_sound(value: object, max_values: int, *, size_only: bool) -> bool:
    """Whether `flaw_of` would find nothing, in a tenth of its time."""
    level: list[Any] = [value]
    seen, depth = 0, 0
    while level:
        seen += len(level)
        if seen > max_values or not (size_only or _are_sound(level)):
            return False
        objects: list[dict[str, Any]] = [one for one in level if isinstance(one, dict)]
        lists: list[list[Any]] = [one for one in level if isinstance(one, list)]
        depth += bool(objects or lists)
        if depth > MAX_DEPTH or seen + sum(map(len, objects)) + sum(map(len, lists)) > max_values:
            return False
        if not size_only and not _is_text(list(chain.from_iterable(objects))):
            return False
        level = [*chain.from_iterable(one.values() for one in objects), *chain.from_iterable(lists)]
    return True


def _are_sound(values: list[Any]) -> bool:
    """Whether none of the values has a flaw of its own."""
    integers = [one for one in values if isinstance(one, int)]
    return (
        _is_text([one for one in values if isinstance(one, str)])
        and (not integers or (min(integers) >= -MAX_INTEGER - 1 and max(integers) <= MAX_INTEGER))
        and all(map(math.isfinite, [one for one in values if isinstance(one, float)]))
    )


def _is_text(texts: list[str]) -> bool:
    return _flaw_of_text("".join(texts)) is None


def _inside(value: dict[str, Any] | list[Any], step: _Step | None, depth: int) -> list[tuple[object, _Step | None]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(one, (step, key, depth)) for key, one in items]


def _flaw_of_one(value: object) -> str | None:
    """The flaw of the value itself, not of its contents."""
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


def _has_too_many(text: str) -> bool:
    """Whether there are too many values. Commas and brackets within strings do not count."""
    plain = text.replace("\\\\", "").replace('\\"', "")
    outside, strings = _STRING.subn("", plain, count=MOST_STRINGS + 1)
    return strings > MOST_STRINGS or _most_values(outside) > MAX_VALUES


def _most_values(text: str) -> int:
    """An upper bound of the text's values: it counts every comma and bracket."""
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _place(step: _Step | None) -> Place:
    keys: list[str | int] = []
    while step is not None:
        keys.append(step[1])
        step = step[0]
    return tuple(reversed(keys))


# The size limit of a JSON Schema from a tenant, checked before anything is validated against it.


MAX_SCHEMA_VALUES = 3_000
"""Validating a schema takes a fraction of a millisecond per value."""

MAX_SCHEMA_CHARS = 200_000

MAX_COMPLAINT_CHARS = 300


def schema_flaw(schema: dict[str, Any]) -> str | None:
    """Why a schema is too large to validate against. None: its size is fine, but it may still be invalid."""
    flaw = flaw_of(schema, max_values=MAX_SCHEMA_VALUES)
    if flaw is not None:
        where = shortened(".".join(map(str, flaw.place)))
        said = flaw.text.replace("Document", "Schema")
        return f"{where}: {said}" if where else said
    characters = characters_of(schema)
    return f"Schema has more than {MAX_SCHEMA_CHARS} characters" if characters > MAX_SCHEMA_CHARS else None


def shortened(message: object) -> str:
    """The part of a message that a model needs. Names and values in it may have any length."""
    text = str(message)
    return text if len(text) <= MAX_COMPLAINT_CHARS else f"{text[:MAX_COMPLAINT_CHARS]}..."


def characters_of(value: Any) -> int:
    """Roughly the number of characters of a value as JSON."""
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        total += 8
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, dict):
            total += sum(len(key) for key in cast("dict[str, Any]", one))
            waiting.extend(cast("dict[str, Any]", one).values())
        elif isinstance(one, list):
            waiting.extend(cast("list[Any]", one))
    return total
