"""Rows of passages and of what belongs to them, inside a caller's transaction."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.dialects import postgresql, sqlite

from shared.domain.archival import Archive, NewPassage, Passage
from shared.domain.errors import Conflict
from shared.domain.ids import ArchiveId, PassageId, ProjectId
from shared.domain.model_providers import can_embed
from shared.sql.archival.word_index import forget_words, index_words
from shared.sql.connection import Connection
from shared.sql.tables import archives, document_of, from_json, passage_tags, passage_vectors, passages

STORER_EMBEDS_FOR = timedelta(minutes=1)
"""For so long the process that stored a passage has it to itself to embed it; then upkeep does it."""


class _Document(msgspec.Struct, frozen=True):
    """What no query asks for, and what is shown in the order in which it was given."""

    tags: list[str] = []
    metadata: dict[str, Any] = {}


_SHOWN = sa.select(
    passages.c.number,
    passages.c.id,
    passages.c.project_id,
    passages.c.archive_id,
    passages.c.text,
    passages.c.document,
    passages.c.created_at,
    passages.c.updated_at,
    archives.c.embedding.label("model"),
    passage_vectors.c.vector,
).select_from(
    passages.join(archives, archives.c.id == passages.c.archive_id).outerjoin(
        passage_vectors, passage_vectors.c.number == passages.c.number
    )
)


def shown_passages() -> sa.Select[*tuple[Any, ...]]:
    """The query for whole passages, with their numbers."""
    return _SHOWN


def passage_of(row: RowMapping) -> Passage:
    """The passage of a row of `shown_passages`."""
    document = from_json(row["document"], _Document)
    columns = {name: value for name, value in row.items() if name not in ("number", "document")}
    return Passage(**columns, tags=document.tags, metadata=document.metadata)


async def insert_passages(
    connection: Connection,
    project_id: ProjectId,
    archive: Archive,
    new: Sequence[NewPassage],
    now: datetime,
    *,
    embeds_itself: bool,
) -> list[Passage]:
    """Stores passages in an archive that is locked; the passages as they are stored, in the order given.

    One whose id is stored already stays as it is, so a caller that does it again stores nothing twice. `embeds_itself`:
    whether the caller asks for the vectors, too; else upkeep does, as soon as it can. Raises `InvalidRequest` for a
    text that cannot be stored, and `Conflict` for an id that the archive does not have and another has.
    """
    if not new:
        return []
    embed_at = (now + STORER_EMBEDS_FOR if embeds_itself else now) if can_embed(archive.embedding) else None
    rows = [_values(project_id, archive.id, passage, now, embed_at) for passage in new]
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    unless_there = insert(passages).on_conflict_do_nothing(index_elements=[passages.c.id])
    added = await connection.execute(unless_there.returning(passages.c.id, passages.c.number), rows)
    numbers: dict[str, int] = {row.id: row.number for row in added}
    fresh = {passage.id: passage for passage in reversed(new) if passage.id in numbers}
    if fresh:
        await index_words(connection, [(numbers[one.id], one.text) for one in fresh.values()])
    tags = [
        {"passage_number": numbers[one.id], "tag": tag} for one in fresh.values() for tag in dict.fromkeys(one.tags)
    ]
    if tags:
        await connection.execute(sa.insert(passage_tags), tags)
    return await _stored(connection, project_id, archive.id, [passage.id for passage in new])


async def _stored(
    connection: Connection, project_id: ProjectId, archive_id: ArchiveId, ids: Sequence[PassageId]
) -> list[Passage]:
    found = await connection.execute(
        _SHOWN.where(passages.c.id.in_(ids), passages.c.project_id == project_id, passages.c.archive_id == archive_id)
    )
    stored = {row["id"]: passage_of(row) for row in found.mappings()}
    foreign = next((passage_id for passage_id in ids if passage_id not in stored), None)
    if foreign is not None:
        raise Conflict(f"there is a passage {foreign} in another archive: give another id")
    return [stored[passage_id] for passage_id in ids]


async def delete_passages(connection: Connection, condition: sa.ColumnElement[bool]) -> int:
    """Deletes the passages that meet the condition, with their tags, words and vectors; how many there were."""
    numbers = sa.select(passages.c.number).where(condition).scalar_subquery()
    await forget_words(connection, numbers)
    await connection.execute(sa.delete(passage_tags).where(passage_tags.c.passage_number.in_(numbers)))
    await connection.execute(sa.delete(passage_vectors).where(passage_vectors.c.number.in_(numbers)))
    return (await connection.execute(sa.delete(passages).where(condition))).rowcount


def _values(
    project_id: ProjectId, archive_id: ArchiveId, passage: NewPassage, now: datetime, embed_at: datetime | None
) -> dict[str, Any]:
    document_of(passage)  # the text, too, must be one that can be stored
    return {
        "id": passage.id,
        "project_id": project_id,
        "archive_id": archive_id,
        "text": passage.text,
        "document": document_of(_Document(list(dict.fromkeys(passage.tags)), passage.metadata)),
        "created_at": passage.created_at,
        "updated_at": now,
        "embed_at": embed_at,
    }
