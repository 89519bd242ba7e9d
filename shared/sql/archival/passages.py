"""Passages: stored, listed and deleted."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.types import UserDefinedType

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ArchiveId, PassageId, ProjectId
from shared.domain.searches import (
    MOST_MULTIPLIED,
    Archive,
    NewPassage,
    Passage,
    PassageQuery,
    Vector,
    nearest,
    nearest_by_signs,
    signs_of,
)
from shared.sql.access.audit import record
from shared.sql.archival.archives import (
    SHOWN_PASSAGES,
    agent_row,
    archive_for_insert,
    archive_ids_of,
    delete_passages,
    insert_passages,
    load_archive,
    passage_of,
    word_ranking,
)
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import contains
from shared.sql.tables import archives, made_of, passage_tags, passage_vectors, passages


class PassagePage(msgspec.Struct, frozen=True):
    """Which page of an agent's passages to read, by their times. `after` selects passages newer than the cursor and
    `before` older ones, in either order."""

    limit: int = 100
    after: str | None = None
    before: str | None = None
    ascending: bool = True
    search: str | None = None
    """Part of the text, in any case."""


class StoredPassages(msgspec.Struct, frozen=True):
    """The result of an insert: the passages as they are stored now, and their archive."""

    archive: Archive
    passages: Sequence[Passage]


async def insert_for_agent(
    connection: Connection,
    project_id: ProjectId,
    agent_id: AgentId,
    passage: NewPassage,
    *,
    new_archive_id: ArchiveId,
    now: datetime,
    embeds_itself: bool = False,
) -> StoredPassages:
    """Stores a passage in the agent's archive, inside the caller's transaction. A repetition with the same id stores
    nothing.

    The agent's first passage creates its archive, with `new_archive_id`. Raises `NotFound` and `InvalidRequest`.
    """
    archive = await archive_for_insert(connection, project_id, agent_id, new_archive_id, now)
    stored = await insert_passages(connection, project_id, archive, [passage], now, embeds_itself=embeds_itself)
    return StoredPassages(archive, stored)


class PassageStore(Store):
    """Reads and writes passages."""

    async def insert_for_agent(
        self, project_id: ProjectId, agent_id: AgentId, passage: NewPassage, *, new_archive_id: ArchiveId, now: datetime
    ) -> StoredPassages:
        """Like the function of this name, but in its own transaction and for a caller that requests the vector
        itself."""
        async with self._database.write() as connection:
            return await insert_for_agent(
                connection, project_id, agent_id, passage, new_archive_id=new_archive_id, now=now, embeds_itself=True
            )

    async def insert_into_archive(
        self, project_id: ProjectId, archive_id: ArchiveId, new: Sequence[NewPassage], now: datetime
    ) -> StoredPassages:
        """Stores all of the passages or none, for a caller that requests the vectors itself. Raises `NotFound`."""
        async with self._database.write() as connection:
            archive = await load_archive(connection, project_id, archive_id, lock="share")
            stored = await insert_passages(connection, project_id, archive, new, now, embeds_itself=True)
            return StoredPassages(archive, stored)

    async def list_of_agent(self, project_id: ProjectId, agent_id: AgentId, page: PassagePage) -> list[Passage]:
        """Returns a page of the passages in the agent's archives. Ignores a cursor that the project does not have.
        Raises `NotFound` if the agent does not exist."""
        async with self._database.read() as connection:
            await agent_row(connection, project_id, agent_id)
            query = SHOWN_PASSAGES.where(_is_agents(project_id, agent_id)).limit(page.limit)
            row = sa.tuple_(passages.c.created_at, passages.c.number)
            for cursor, is_newer in ((page.after, True), (page.before, False)):
                place = None if cursor is None else await _place_of(connection, project_id, cursor)
                if place is not None:
                    query = query.where(row > place if is_newer else row < place)
            if page.search:
                query = query.where(contains(passages.c.text, page.search))
            order = [part if page.ascending else part.desc() for part in (passages.c.created_at, passages.c.number)]
            found = await connection.execute(query.order_by(*order))
            return await made_of(found.mappings().all(), passage_of, "text")

    async def count_of_agent(self, project_id: ProjectId, agent_id: AgentId) -> int:
        """Returns how many passages are in the agent's archives."""
        query = sa.select(sa.func.count()).select_from(passages).where(_is_agents(project_id, agent_id))
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar_one()

    async def delete_from_agent(self, project_id: ProjectId, agent_id: AgentId, passage_id: PassageId) -> None:
        """Deletes a passage that is in one of the agent's archives. Raises `NotFound`."""
        async with self._database.write() as connection:
            await agent_row(connection, project_id, agent_id)
            await _delete(connection, passage_id, _is_agents(project_id, agent_id), f"of agent {agent_id}")
            await record(connection, project_id, "passage.deleted", passage_id)

    async def delete_from_archive(self, project_id: ProjectId, archive_id: ArchiveId, passage_id: PassageId) -> None:
        """Deletes a passage of the archive. Raises `NotFound`."""
        async with self._database.write() as connection:
            await load_archive(connection, project_id, archive_id)
            is_there = sa.and_(passages.c.project_id == project_id, passages.c.archive_id == archive_id)
            await _delete(connection, passage_id, is_there, f"of archive {archive_id}")
            await record(connection, project_id, "passage.deleted", passage_id)


def _is_agents(project_id: ProjectId, agent_id: AgentId) -> sa.ColumnElement[bool]:
    return sa.and_(passages.c.project_id == project_id, passages.c.archive_id.in_(archive_ids_of(project_id, agent_id)))


async def _place_of(connection: Connection, project_id: ProjectId, passage_id: str) -> sa.Tuple | None:
    query = sa.select(passages.c.created_at, passages.c.number)
    found = await connection.execute(query.where(passages.c.id == passage_id, passages.c.project_id == project_id))
    row = found.one_or_none()
    if row is None:
        return None
    return sa.tuple_(sa.literal(row.created_at, passages.c.created_at.type), sa.literal(row.number))


async def _delete(connection: Connection, passage_id: PassageId, is_there: sa.ColumnElement[bool], where: str) -> None:
    if not await delete_passages(connection, sa.and_(passages.c.id == passage_id, is_there)):
        raise NotFound(f"Passage with ID {passage_id} {where} not found")


# Search for passages: by words, by vectors, or by neither.


MOST_COMPARED = 100_000
"""The most vectors whose signs a search without pgvector compares, those of the newest passages first."""


class _PgVector(UserDefinedType[Any]):
    """pgvector's own type."""

    cache_ok = True

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def get_col_spec(self, **_: Any) -> str:
        return f"vector({self.dimensions})"


class PassageSearchStore(Store):
    """Finds passages. A ranking is a list of the passages' numbers, best first."""

    async def models_of(self, project_id: ProjectId, query: PassageQuery) -> list[str]:
        """Returns the embedding models of the searched archives. Raises `NotFound` for an agent or an archive that the
        project does not have."""
        async with self._database.read() as connection:
            if query.agent_id is not None:
                await agent_row(connection, project_id, query.agent_id)
            elif query.archive_id is not None:
                await load_archive(connection, project_id, query.archive_id)
            found = await connection.execute(
                sa.select(archives.c.embedding)
                .where(archives.c.project_id == project_id, archives.c.embedding.is_not(None))
                .where(*_asked(project_id, query, archives.c.id))
                .distinct()
                .order_by(archives.c.embedding)
            )
            return [handle for handle in found.scalars() if handle is not None]

    async def by_words(self, project_id: ProjectId, query: PassageQuery, most: int) -> list[int]:
        """Returns the ranking by the words of the query's text."""
        async with self._database.read() as connection:
            ranking = await word_ranking(connection, query.text or "")
            if ranking is None:
                return []
            found = await connection.execute(
                sa.select(passages.c.number)
                .select_from(ranking.index)
                .join(passages, passages.c.number == ranking.number)
                .where(ranking.matches, *_conditions(project_id, query))
                .order_by(ranking.order, passages.c.number.desc())
                .limit(most)
            )
            return list(found.scalars())

    async def by_vector(
        self, project_id: ProjectId, query: PassageQuery, model: str, vector: Vector, most: int
    ) -> list[int]:
        """Returns the ranking of the passages that this model has embedded, by their distance to the vector."""
        candidates = (
            sa.select(passages.c.number)
            .join(passage_vectors, passage_vectors.c.number == passages.c.number)
            .where(passage_vectors.c.model == model, passage_vectors.c.dimensions == len(vector))
            .where(*_conditions(project_id, query))
        )
        async with self._database.read() as connection:
            if await _has_pgvector(connection):
                kind = _PgVector(len(vector))
                wanted = sa.cast(sa.literal(f"[{','.join(map(repr, map(float, vector)))}]", sa.Text), kind)
                distance = sa.cast(passage_vectors.c.vector, kind).op("<=>")(wanted)
                found = await connection.execute(candidates.order_by(distance, passages.c.number.desc()).limit(most))
                return list(found.scalars())
            newest = candidates.add_columns(passage_vectors.c.signs).order_by(passages.c.number.desc())
            signs = [(row.number, row.signs) for row in await connection.execute(newest.limit(MOST_COMPARED))]
        # The computation holds no connection and does not block the event loop.
        numbers = [number for number, _ in signs]
        if len(numbers) > MOST_MULTIPLIED:
            numbers = await asyncio.to_thread(nearest_by_signs, vector, signs, MOST_MULTIPLIED)
        vectors = await self._vectors(numbers)
        return await asyncio.to_thread(nearest, vector, vectors, most)

    async def _vectors(self, numbers: Sequence[int]) -> list[tuple[int, Vector]]:
        query = sa.select(passage_vectors.c.number, passage_vectors.c.vector)
        async with self._database.read() as connection:
            found = await connection.execute(query.where(passage_vectors.c.number.in_(numbers)))
            return [(row.number, row.vector) for row in found]

    async def load(self, project_id: ProjectId, numbers: Sequence[int]) -> dict[int, Passage]:
        """Returns the project's passages with these numbers, by number, without those that were deleted meanwhile."""
        wanted = SHOWN_PASSAGES.where(passages.c.number.in_(numbers), passages.c.project_id == project_id)
        async with self._database.read() as connection:
            found = await connection.execute(wanted)
            rows = found.mappings().all()
            return dict(zip((row["number"] for row in rows), await made_of(rows, passage_of, "text"), strict=True))

    async def oldest(self, project_id: ProjectId, query: PassageQuery) -> list[Passage]:
        """Returns the passages that meet the query's conditions other than its text, oldest first."""
        wanted = SHOWN_PASSAGES.where(*_conditions(project_id, query)).limit(query.limit)
        async with self._database.read() as connection:
            found = await connection.execute(wanted.order_by(passages.c.created_at, passages.c.number))
            return await made_of(found.mappings().all(), passage_of, "text")


def _asked(
    project_id: ProjectId, query: PassageQuery, archive_id: sa.ColumnElement[str]
) -> list[sa.ColumnElement[bool]]:
    if query.agent_id is not None:
        return [archive_id.in_(archive_ids_of(project_id, query.agent_id))]
    return [] if query.archive_id is None else [archive_id == query.archive_id]


def _conditions(project_id: ProjectId, query: PassageQuery) -> list[sa.ColumnElement[bool]]:
    conditions = [passages.c.project_id == project_id, *_asked(project_id, query, passages.c.archive_id)]
    if query.start is not None:
        conditions.append(passages.c.created_at >= query.start)
    if query.end is not None:
        conditions.append(passages.c.created_at <= query.end)
    if query.tags:
        tags = set(query.tags)
        tagged = (
            sa.select(sa.func.count())
            .select_from(passage_tags)
            .where(passage_tags.c.passage_number == passages.c.number, passage_tags.c.tag.in_(tags))
            .scalar_subquery()
        )
        conditions.append(tagged >= (len(tags) if query.match_all_tags else 1))
    return conditions


async def _has_pgvector(connection: Connection) -> bool:
    if connection.dialect.name == "sqlite":
        return False
    return (await connection.execute(sa.text("SELECT to_regtype('vector') IS NOT NULL"))).scalar_one()


# Vectors of passages, and passages that still wait for their vectors.


class WaitingPassage(msgspec.Struct, frozen=True):
    """A passage without its vector."""

    id: PassageId
    text: str
    model: str


class VectorStore(Store):
    """Writes vectors. Every passage of an archive with a model is due until it has its vector or is given up."""

    async def claim_due(self, now: datetime, *, until: timedelta, limit: int) -> list[WaitingPassage]:
        """Claims due passages for the caller; other processes can claim them after `until`."""
        async with self._database.write() as connection:
            due = (
                sa.select(passages.c.id, passages.c.text, archives.c.embedding)
                .join(archives, archives.c.id == passages.c.archive_id)
                .where(passages.c.embed_at <= now, archives.c.embedding.is_not(None))
                .order_by(passages.c.embed_at)
                .limit(limit)
                .with_for_update(of=passages, skip_locked=True)
            )
            found = [WaitingPassage(*row) for row in await connection.execute(due)]
            if found:
                ids = [waiting.id for waiting in found]
                await connection.execute(sa.update(passages).where(passages.c.id.in_(ids)).values(embed_at=now + until))
            return found

    async def record(self, model: str, vectors: Sequence[tuple[PassageId, Vector]]) -> None:
        """Stores vectors by the ids of their passages. Drops the vectors of passages that were deleted meanwhile."""
        async with self._database.write() as connection:
            ids = [passage_id for passage_id, _ in vectors]
            waiting = (
                sa.select(passages.c.id, passages.c.number)
                .where(passages.c.id.in_(ids), passages.c.embed_at.is_not(None))
                .order_by(passages.c.number)
                .with_for_update()
            )
            numbers = {row.id: row.number for row in await connection.execute(waiting)}
            rows = [
                {
                    "number": numbers[passage_id],
                    "model": model,
                    "dimensions": len(vector),
                    "signs": signs_of(vector),
                    "vector": vector,
                }
                for passage_id, vector in vectors
                if passage_id in numbers
            ]
            if rows:
                await connection.execute(sa.insert(passage_vectors), rows)
                done = passages.c.number.in_(list(numbers.values()))
                await connection.execute(sa.update(passages).where(done).values(embed_at=None))

    async def give_up(self, passage_id: PassageId) -> None:
        """Leaves a passage without a vector for good."""
        async with self._database.write() as connection:
            await connection.execute(sa.update(passages).where(passages.c.id == passage_id).values(embed_at=None))
