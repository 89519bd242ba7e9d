"""Archival memory and searches: passages, archives and their limits; the words of texts in any language; and moments in
the time zone of an agent.

A passage is a text with tags; an archive holds passages, and agents share it by being attached to it. Archives with an
embedding model are searched by words and by meaning, the others by words alone.
"""

import heapq
import math
import operator
import re
import unicodedata
from array import array
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, time
from functools import lru_cache
from typing import Any, Literal

import msgspec

from shared.domain.agents import zone_of
from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, ArchiveId, PassageId, ProjectId
from shared.domain.messages import AssistantMessage, MessageBody, ToolReturns, UserMessage, text_of

Role = Literal["user", "assistant", "tool"]
"""The author of searched messages: a user, the model, or a tool that it called."""

TAG_OF_ROLE: dict[Role, str] = {"user": "user", "assistant": "assistant", "tool": "tool_returns"}
"""The tag of the messages of a role, as they are stored."""
_PLAIN = re.compile(r"[!#-\[\]-~]")


def plain_parts(word: str) -> list[str]:
    """The parts of a word that JSON stores unescaped and that every database can compare without regard to case:
    letters of ASCII, and of scripts that have no case (Chinese, Japanese, Korean, Arabic, Hebrew, Thai and so on)."""
    marked = "".join(letter if _is_plain(letter) else " " for letter in word)
    return marked.split()


def _is_plain(letter: str) -> bool:
    return _PLAIN.match(letter) is not None or unicodedata.category(letter) == "Lo"


def has_words(body: MessageBody, words: Sequence[str], roles: Collection[Role]) -> bool:
    """Whether the message is of one of the roles and has every word, whatever its case."""
    found = _said(body)
    if found is None or found[0] not in roles:
        return False
    text = found[1].casefold()
    return bool(text) and all(word.casefold() in text for word in words)


def _said(body: MessageBody) -> tuple[Role, str] | None:
    match body:
        case UserMessage(role="user", content=content):
            return "user", text_of(content)
        case AssistantMessage(text=text):
            return "assistant", text
        case ToolReturns(returns=returns):
            return "tool", "\n".join(one.text for one in returns)
        case _:
            return None


# The words of a text in any language, for indices that match word by word.
#
# Both databases would cut texts differently, by their versions and locales. So texts and queries are cut here, into
# words of letters, marks and digits alone, and no character of a query has a meaning for a database.


LONGEST_WORD = 100
"""Characters. A longer word is found by its beginning."""
LONGEST_QUERY = 1000
"""Characters of a search for words, at every entry point: the cost of building the search grows with it, on the event
loop."""
MOST_WORDS = 32
"""The most words of a search, and of a phrase in it; further words are left out."""

_DIACRITICS = re.compile("[\u0300-\u036f]+")
"""The marks of Latin, Greek and Cyrillic. Those of other scripts are vowels, and stay."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Kana, Han: written without spaces, so each character counts as a word."""
_RUNS = re.compile(f"[{_UNSPACED}]+|[^ {_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")


def phrases_of(text: str) -> list[list[str]]:
    """The text's words, folded: case, width and diacritics do not count. A run of characters of a script without spaces
    is one phrase, whose words belong together; every other phrase is one word."""
    letters = "".join(map(_letter_or_space, _folded(text)))
    return [list(run) if _IS_UNSPACED.match(run) else [run[:LONGEST_WORD]] for run in _RUNS.findall(letters)]


def refuse_long_query(query: str) -> None:
    """Raises `InvalidRequest` for a search that is too long."""
    if len(query) > LONGEST_QUERY:
        raise InvalidRequest(
            f"query has {len(query)} characters, and a search may have {LONGEST_QUERY}: search for fewer words",
            field="query",
        )


def words_of(text: str) -> list[str]:
    """The text's words, in order."""
    return [word for phrase in phrases_of(text) for word in phrase]


def _folded(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFKC", _DIACRITICS.sub("", apart)).casefold()


@lru_cache(maxsize=8192)
def _letter_or_space(character: str) -> str:
    return character if unicodedata.category(character)[0] in "LMN" else " "


# Times as people and models write them, in the time zone of an agent.


_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}")


def moment_of(text: str, timezone: str, name: str, *, is_end: bool = False) -> datetime:
    """The moment that a client or a model means by an ISO 8601 text. Without an offset it is in the agent's timezone.

    A date alone is the beginning of the day, or its last moment for the end of a span. `name` is that of the field.
    Raises `InvalidRequest`.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} is no moment: {text[:50]!r}. Give ISO 8601, such as 2024-01-15 or 2024-01-15T14:30"
        ) from error
    if is_end and _DATE.fullmatch(text):
        moment = datetime.combine(moment, time.max)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=zone_of(timezone))
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        # The beginning of the year 1 or the end of 9999: UTC cannot express it, and so no stored moment is beyond it.
        return (datetime.max if moment.year > 1 else datetime.min).replace(tzinfo=UTC)


# Vectors of texts, and the search for the nearest ones.
#
# The nearness of two vectors of unit length is their product (cosine). It takes 40 µs for 1,536 numbers in plain
# Python. So with very many vectors, a search multiplies only those whose signs agree most with the query's: it compares
# signs as whole numbers, in half a microsecond.


Vector = Sequence[float]
"""A vector of unit length, in single precision."""

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
"""Characters. Passages are found by their tags, and an index of Postgres has room for this many."""
MOST_TAGS = 100
MOST_FOUND = 100
"""The most passages that one search may request."""
DEFAULT_FOUND = 5
"""The number of passages of an agent's search that gives none."""

AUTOMATIC_DESCRIPTION = "Default archive created automatically"
"""The description of an archive that was made with an agent's first passage."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of passages."""

    id: ArchiveId
    project_id: ProjectId
    name: str
    description: str | None = None
    embedding: str | None = None
    """The handle of the model that its passages are embedded with. It never changes once the archive exists, because
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
    """A passage to be stored. If its id is stored already, it is not stored again."""

    id: PassageId
    text: str
    tags: Sequence[str] = ()
    metadata: dict[str, Any] = {}
    created_at: datetime


class PassageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which passages of a project to find. All given conditions must hold; the agent takes precedence over the
    archive."""

    text: str | None = None
    agent_id: AgentId | None = None
    archive_id: ArchiveId | None = None
    tags: Sequence[str] = ()
    match_all_tags: bool = False
    start: datetime | None = None
    end: datetime | None = None
    """`start` and `end` are both inclusive."""
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
    """Raises `InvalidRequest` for a passage that is too large."""
    for passage in passages:
        if not passage.text.strip():
            raise InvalidRequest("text is empty: give the text to remember", field="text")
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
