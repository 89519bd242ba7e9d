"""Limits on the entries of lists and objects in bodies.

The size of a body is limited in bytes and values. Handling an entry of a list costs more than reading it, so each such
list has its own limit, and the refusal names the field.
"""

from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field

from shared.json_limits import schema_flaw

MOST_ENTRIES = 1000
"""For a list, or an object whose keys the client chooses: an agent's tools, blocks and tags, text lines, tool rules."""

Names = Annotated[list[str], Field(max_length=MOST_ENTRIES)]
Parts = Annotated[list[dict[str, Any]], Field(max_length=10_000)]
"""For a message's content: as many parts as a request may have messages."""
Objects = Annotated[list[dict[str, Any]], Field(max_length=MOST_ENTRIES)]
Tag = Annotated[str, Field(max_length=500)]
"""Agents are found by their tags, and an index entry of Postgres has room for this many characters."""
Tags = Annotated[list[Tag], Field(max_length=MOST_ENTRIES)]


def _refuse_many(given: Any) -> Any:
    # Checked before the entries: each wrong entry would be a flaw of its own.
    if isinstance(given, dict):
        entries = len(cast("dict[str, object]", given))
        if entries > MOST_ENTRIES:
            raise ValueError(f"{entries} entries are more than the {MOST_ENTRIES} that are allowed")
    return cast("Any", given)


Few = BeforeValidator(_refuse_many)
"""For an object whose keys the client chooses."""
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
