"""A rule's finding, and access to a body whose shape is unknown.

A body that is not of the expected shape is read as empty: the rule that misses a field then reports it. Nothing in this
package raises on a body, reaches the network or knows Holdfast's own messages.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Function names that every provider accepts; some accept a little more."""


class Violation(msgspec.Struct, frozen=True):
    """A rule that a request breaks, e.g. `anthropic.text_not_blank` at `messages[2].content[0]`."""

    rule: str
    where: str
    message: str


class Item(NamedTuple):
    """An object inside a body, with its place there."""

    where: str
    value: dict[str, Any]


def object_of(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def array_of(value: Any) -> list[Any]:
    """The value if it is a JSON array, else an empty one."""
    return cast(list[Any], value) if isinstance(value, list) else []


def items_of(parent: Mapping[str, Any], key: str, inside: str = "") -> list[Item]:
    """The objects of the array `parent[key]`; `inside` is where the parent itself is."""
    path = f"{inside}.{key}" if inside else key
    return [Item(f"{path}[{index}]", object_of(value)) for index, value in enumerate(array_of(parent.get(key)))]


def is_object_text(value: Any) -> bool:
    """Whether the value is text with a JSON object."""
    if not isinstance(value, str):
        return False
    try:
        msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False
    return True


def is_blank(value: Any) -> bool:
    """Whether the value is not text, or only whitespace."""
    return not isinstance(value, str) or not value.strip()


def id_in(value: Mapping[str, Any], key: str) -> str:
    """The id under this key; another value in angle brackets if it is not text."""
    found = value.get(key)
    return found if isinstance(found, str) else f"<{found!r}>"


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)
