"""Searching passages: by words, by vectors, and by neither."""

import asyncio
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import UserDefinedType

from shared.domain.archival import Passage, PassageQuery
from shared.domain.ids import ProjectId
from shared.domain.vectors import MOST_MULTIPLIED, Vector, nearest, nearest_by_signs
from shared.sql.archival.archives import agent_row, archive_ids_of, load_archive
from shared.sql.archival.passage_rows import passage_of, shown_passages
from shared.sql.archival.word_index import word_ranking
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.made_rows import made_of
from shared.sql.tables import archives, passage_tags, passage_vectors, passages

MOST_COMPARED = 100_000
"""Vectors whose signs one search compares, the newest passages first, where there is no pgvector."""


class _PgVector(UserDefinedType[Any]):
    """pgvector's own type."""

    cache_ok = True

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    def get_col_spec(self, **_: Any) -> str:
        return f"vector({self.dimensions})"


class PassageSearchStore:
    """Finds passages. Rankings are numbers of passages, the best first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def models_of(self, project_id: ProjectId, query: PassageQuery) -> list[str]:
        """The embedding models of the archives that are asked. Raises `NotFound` for an agent or an archive that the
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
        """The ranking by the words of the query's text."""
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
        """The ranking of the passages that this model has embedded, by their nearness to the vector."""
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
        # The connection is not held meanwhile, and the event loop goes on.
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
        """The project's passages with these numbers, by number; one that was deleted meanwhile is not among them."""
        wanted = shown_passages().where(passages.c.number.in_(numbers), passages.c.project_id == project_id)
        async with self._database.read() as connection:
            found = await connection.execute(wanted)
            rows = found.mappings().all()
            return dict(zip((row["number"] for row in rows), await made_of(rows, passage_of, "text"), strict=True))

    async def oldest(self, project_id: ProjectId, query: PassageQuery) -> list[Passage]:
        """What meets the query's conditions, whatever its text, the oldest first."""
        wanted = shown_passages().where(*_conditions(project_id, query)).limit(query.limit)
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
