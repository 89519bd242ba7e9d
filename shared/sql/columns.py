"""Domain structs as column values, and back. A value that Postgres could not return is refused before it is stored."""

from typing import Any, TypeVar

import msgspec

from shared.domain.errors import InvalidRequest

Struct = TypeVar("Struct")


def to_json(value: Any) -> str:
    """A struct (or a list of them) as JSON text."""
    return msgspec.json.encode(value).decode()


def from_json(text: str, kind: type[Struct]) -> Struct:
    """The struct of a JSON column."""
    return msgspec.json.decode(text, type=kind)


def document_of(value: msgspec.Struct) -> str:
    """The struct as JSON text. Raises `InvalidRequest` for a NUL or half a surrogate pair in one of its texts.

    A NUL passes as JSON, but Postgres then fails at every look into the document, also for other rows of the list.
    """
    try:
        document = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("A text contains half a surrogate pair, which is no character: remove it") from error
    # A backslash that stands for itself is written twice, and may have `u0000` behind it.
    if "\\u0000" in document.replace("\\\\", ""):
        raise InvalidRequest("A text contains a NUL character, which cannot be stored: remove it")
    return document
