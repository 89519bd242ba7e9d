"""Passages: stored, listed and deleted."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from shared.domain.archival import Archive, NewPassage, Passage
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ArchiveId, PassageId, ProjectId
from shared.sql.access.audit import record
from shared.sql.archival.archives import agent_row, archive_for_insert, archive_ids_of, load_archive
from shared.sql.archival.passage_rows import delete_passages, insert_passages, passage_of, shown_passages
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.made_rows import made_of
from shared.sql.paging import contains
from shared.sql.tables import passages


class PassagePage(msgspec.Struct, frozen=True):
    """A piece of an agent's passages, by the moments that they are from. As on the wire, `after` is about what is newer
    than that passage and `before` about what is older, whatever the order."""

    limit: int = 100
    after: str | None = None
    before: str | None = None
    ascending: bool = True
    search: str | None = None
    """Part of the text, whatever the case."""


class StoredPassages(msgspec.Struct, frozen=True):
    """What an insert left: the passages as they are now, and their archive."""

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
    """Stores a passage in the agent's archive, inside the caller's transaction. Again with the same id, it stores
    nothing.

    The agent's first passage makes its archive, with `new_archive_id`. Raises `NotFound` and `InvalidRequest`.
    """
    archive = await archive_for_insert(connection, project_id, agent_id, new_archive_id, now)
    stored = await insert_passages(connection, project_id, archive, [passage], now, embeds_itself=embeds_itself)
    return StoredPassages(archive, stored)


class PassageStore:
    """Reads and writes passages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def insert_for_agent(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        passage: NewPassage,
        *,
        new_archive_id: ArchiveId,
        now: datetime,
    ) -> StoredPassages:
        """As the function of this name, in a transaction of its own, for a caller that asks for the vector."""
        async with self._database.write() as connection:
            return await insert_for_agent(
                connection, project_id, agent_id, passage, new_archive_id=new_archive_id, now=now, embeds_itself=True
            )

    async def insert_into_archive(
        self, project_id: ProjectId, archive_id: ArchiveId, new: Sequence[NewPassage], now: datetime
    ) -> StoredPassages:
        """Stores passages, all or none, for a caller that asks for the vectors. Raises `NotFound`."""
        async with self._database.write() as connection:
            archive = await load_archive(connection, project_id, archive_id, lock="share")
            stored = await insert_passages(connection, project_id, archive, new, now, embeds_itself=True)
            return StoredPassages(archive, stored)

    async def list_of_agent(self, project_id: ProjectId, agent_id: AgentId, page: PassagePage) -> list[Passage]:
        """A page of what is in the agent's archives. A cursor that the project does not have is passed over. Raises
        `NotFound` for an agent that is not there."""
        async with self._database.read() as connection:
            await agent_row(connection, project_id, agent_id)
            query = shown_passages().where(_is_agents(project_id, agent_id)).limit(page.limit)
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
        """How many passages are in the agent's archives."""
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
