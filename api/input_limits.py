"""Limits inside of bodies: the entries of lists and objects, and the length of texts that the server keeps.

The size of a body is limited in bytes and values. Where handling an entry costs more than reading it, the list has its
own limit, and the refusal names the field.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field

from shared.domain.errors import InvalidRequest
from shared.json_limits import schema_flaw

MOST_ENTRIES = 1000
"""The most entries of a list, or of an object whose keys the client chooses, such as tools, tags and text lines."""

Names = Annotated[list[str], Field(max_length=MOST_ENTRIES)]
Parts = Annotated[list[dict[str, Any]], Field(max_length=10_000)]
"""The content of a message, with as many parts as a request may have messages."""
Objects = Annotated[list[dict[str, Any]], Field(max_length=MOST_ENTRIES)]
Tag = Annotated[str, Field(max_length=500)]
"""Agents are found by their tags, and an index entry of Postgres has room for this many characters."""
Tags = Annotated[list[Tag], Field(max_length=MOST_ENTRIES)]


def _refuse_many(given: Any) -> Any:
    # Checked before the entries, because each wrong entry would be a flaw of its own.
    if isinstance(given, dict):
        entries = len(cast("dict[str, object]", given))
        if entries > MOST_ENTRIES:
            raise ValueError(f"{entries} entries are more than the {MOST_ENTRIES} that are allowed")
    return cast("Any", given)


Few = BeforeValidator(_refuse_many)
"""Limits the entries of an object whose keys the client chooses."""
Variables = Annotated[dict[str, str | None], Few]


def _affordable(schema: dict[str, Any]) -> dict[str, Any]:
    flaw = schema_flaw(schema)
    if flaw is not None:
        raise ValueError(flaw)
    return schema


BoundedSchema = Annotated[dict[str, Any], AfterValidator(_affordable)]
"""A JSON Schema that the server will validate values against."""

Name = Annotated[str, Field(max_length=1000)]
Description = Annotated[str, Field(max_length=100_000)]
Instructions = Annotated[str, Field(max_length=1_000_000)]

LONGEST_SETTINGS, LONGEST_METADATA = 100_000, 1_000_000
"""Bytes of an object as JSON. Each request to an agent or a conversation reads its settings again."""


def _no_longer_than(most: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def check(given: dict[str, Any]) -> dict[str, Any]:
        length = len(msgspec.json.encode(given))
        if length > most:
            raise ValueError(f"{length} bytes of JSON are more than the {most} that are allowed")
        return given

    return check


Settings = Annotated[dict[str, Any], AfterValidator(_no_longer_than(LONGEST_SETTINGS))]
Metadata = Annotated[dict[str, Any], AfterValidator(_no_longer_than(LONGEST_METADATA))]


def as_object(value: Any) -> dict[str, Any] | None:
    """The value if it is a JSON object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# Limits on the length of texts that the server keeps: messages, and the source of tools.
#
# The whole body is limited before it is parsed. These limits apply to texts that the server stores, sends to models and
# parses.


@dataclass(frozen=True)
class InputLimits:
    """The text limits of this server."""

    message_chars: int
    """The most characters of all texts of one message. Images count only towards the body's limit."""
    tool_source_chars: int

    def refuse_long_messages(self, given: Sequence[object], field: str = "messages") -> None:
        """Raises `InvalidRequest` for the first message that is too long. `given` has the countable parts of each
        message, as JSON values. `field` is the place of the messages in the body."""
        for place, message in enumerate(given):
            self.refuse_long_text(message, f"{field}[{place}]")

    def refuse_long_text(self, text: object, field: str) -> None:
        """Raises `InvalidRequest` if a text for a model, or all texts of a JSON value together, are longer than a
        message may be."""
        length = sum(map(len, _texts(text)))
        if length > self.message_chars:
            raise InvalidRequest(
                f"{field} has {length} characters, {self.message_chars} are allowed (HOLDFAST_MAX_MESSAGE_CHARS): send "
                "less",
                field=field,
            )

    def refuse_long_source(self, source: object, field: str = "source_code") -> None:
        """Raises `InvalidRequest` if a source is too long. Other checks refuse a source that is not text."""
        if isinstance(source, str) and len(source) > self.tool_source_chars:
            raise InvalidRequest(
                f"{field} has {len(source)} characters, {self.tool_source_chars} are allowed "
                "(HOLDFAST_MAX_TOOL_SOURCE_CHARS): move data out of the tool",
                field=field,
            )


def _texts(value: object) -> Iterable[str]:
    """Every text of a JSON value except the data of images. The depth of the body is limited already."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            if name != "source":
                yield from _texts(item)
