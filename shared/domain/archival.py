"""Archival memory: what agents keep for long and look up when they need it.

A passage is a text with tags; an archive holds passages, and agents share it by being attached to it. Archives with an
embedding model are searched by words and by meaning, the others by words alone.
"""

import heapq
import math
import operator
from array import array
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, ArchiveId, PassageId, ProjectId
from shared.domain.searches import refuse_long_query

# Vectors of texts, and which of them are near to another.
#
# Two vectors of unit length are as near as their product is large (cosine). That takes 40 µs for 1,536 numbers in plain
# Python, so of very many vectors only those are multiplied whose signs agree most with the query's: a comparison of
# whole numbers, in half a microsecond.


Vector = Sequence[float]
"""Of unit length, in single precision."""

MOST_MULTIPLIED = 2000
"""Vectors that one search compares exactly."""


def unit_vector(numbers: Sequence[float]) -> Vector:
    """The vector of this direction. Raises `ValueError` when there is no direction."""
    length = math.hypot(*numbers)
    if not math.isfinite(length) or length == 0:
        raise ValueError("a vector needs a direction")
    return array("f", [number / length for number in numbers])


def signs_of(vector: Vector) -> bytes:
    """One bit per number: whether it is above zero."""
    bits = "".join(["1" if number > 0 else "0" for number in vector])
    return int(bits, 2).to_bytes((len(bits) + 7) // 8, "big")


def nearest_by_signs(query: Vector, signs: Iterable[tuple[int, bytes]], most: int) -> list[int]:
    """The keys of the vectors whose signs agree most with the query's."""
    wanted = int.from_bytes(signs_of(query), "big")
    distances = (((int.from_bytes(found, "big") ^ wanted).bit_count(), key) for key, found in signs)
    return [key for _, key in heapq.nsmallest(most, distances)]


def nearest(query: Vector, vectors: Iterable[tuple[int, Vector]], most: int) -> list[int]:
    """The keys of the vectors that are nearest to the query, the nearest first."""
    products = ((-sum(map(operator.mul, query, vector)), key) for key, vector in vectors)
    return [key for _, key in heapq.nsmallest(most, products)]


LONGEST_TEXT = 50_000
"""Characters of a passage."""
LONGEST_TAG = 500
"""Characters. Passages are found by their tags, and an index of Postgres has room for so many."""
MOST_TAGS = 100
MOST_FOUND = 100
"""So many passages one search may ask for."""
DEFAULT_FOUND = 5
"""How many an agent's search finds that does not say it."""

AUTOMATIC_DESCRIPTION = "Default archive created automatically"
"""What is said of an archive that was made with an agent's first passage."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of passages."""

    id: ArchiveId
    project_id: ProjectId
    name: str
    description: str | None = None
    embedding: str | None = None
    """The handle of the model that its passages are embedded with. It stays what it was when the archive was made:
    vectors of two models cannot be compared."""
    created_at: datetime
    updated_at: datetime


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A text in an archive."""

    id: PassageId
    project_id: ProjectId
    archive_id: ArchiveId
    text: str
    tags: list[str] = []
    metadata: dict[str, Any] = {}
    created_at: datetime
    """When it was stored, or the moment that the client gave instead."""
    updated_at: datetime
    model: str | None = None
    """The handle of its archive's embedding model."""
    vector: Vector | None = None
    """None: its archive has no model, or the model has not answered yet."""


class NewPassage(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that is about to be stored. One with an id that is stored already is not stored again."""

    id: PassageId
    text: str
    tags: Sequence[str] = ()
    metadata: dict[str, Any] = {}
    created_at: datetime


class PassageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which passages of a project are wanted. Everything that is given must hold; the agent goes before the archive."""

    text: str | None = None
    agent_id: AgentId | None = None
    archive_id: ArchiveId | None = None
    tags: Sequence[str] = ()
    match_all_tags: bool = False
    start: datetime | None = None
    end: datetime | None = None
    """Both moments belong to the time that is meant."""
    limit: int = DEFAULT_FOUND


class FoundPassage(msgspec.Struct, frozen=True):
    """A passage that a search found, with its places in the rankings, counted from 1."""

    passage: Passage
    score: float = 0.0
    word_rank: int | None = None
    vector_rank: int | None = None


def refuse_oversized_query(query: PassageQuery) -> None:
    """Raises `InvalidRequest` for a search that is too long, or that names too many tags."""
    refuse_long_query(query.text or "")
    _refuse_tags(query.tags)


def refuse_oversized(passages: Sequence[NewPassage]) -> None:
    """Raises `InvalidRequest` for what a passage cannot be."""
    for passage in passages:
        if not passage.text.strip():
            raise InvalidRequest("text is empty: give what is to be remembered", field="text")
        if len(passage.text) > LONGEST_TEXT:
            raise InvalidRequest(
                f"text has {len(passage.text)} characters, and a passage may have {LONGEST_TEXT}: "
                "split it into several passages",
                field="text",
            )
        _refuse_tags(passage.tags)


def _refuse_tags(tags: Sequence[str]) -> None:
    if len(tags) > MOST_TAGS:
        raise InvalidRequest(
            f"tags: {len(tags)} are more than the {MOST_TAGS} that a passage may have: leave some out", field="tags"
        )
    for tag in tags:
        if not tag or len(tag) > LONGEST_TAG:
            raise InvalidRequest(
                f"tags: {tag[:50]!r} has {len(tag)} characters, a tag has 1 to {LONGEST_TAG}: change or leave it out",
                field="tags",
            )
