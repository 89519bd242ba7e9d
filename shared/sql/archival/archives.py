"""Archives, and which agents they are attached to."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.archival import AUTOMATIC_DESCRIPTION, Archive
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ArchiveId, ProjectId
from shared.sql.access.audit import record
from shared.sql.archival.passage_rows import delete_passages
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.paging import Page, rows_of_page
from shared.sql.tables import agent_archives, agents, archives, document_of, from_json, passages


class ArchiveFilter(msgspec.Struct, frozen=True):
    """Which archives of a project a list shows. Everything that is given must hold."""

    name: str | None = None
    agent_id: AgentId | None = None


class ArchiveStore:
    """Reads and writes archives."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, archive: Archive) -> Archive:
        """Stores an archive that no agent has yet."""
        async with self._database.write() as connection:
            await connection.execute(sa.insert(archives).values(_values(archive)))
        return archive

    async def get(self, project_id: ProjectId, archive_id: ArchiveId) -> Archive:
        """One archive of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_archive(connection, project_id, archive_id)

    async def list(self, project_id: ProjectId, wanted: ArchiveFilter, page: Page) -> list[Archive]:
        """A page of the project's archives. Raises `NotFound` for an agent that the project does not have."""
        conditions: list[sa.ColumnElement[bool]] = []
        if wanted.name is not None:
            conditions.append(archives.c.name == wanted.name)
        async with self._database.read() as connection:
            if wanted.agent_id is not None:
                await agent_row(connection, project_id, wanted.agent_id)
                conditions.append(archives.c.id.in_(archive_ids_of(project_id, wanted.agent_id)))
            rows = await rows_of_page(connection, archives, project_id, page, *conditions)
            return [_archive_of(row) for row in rows]

    async def update(
        self, project_id: ProjectId, archive_id: ArchiveId, *, name: str | None, description: str | None, now: datetime
    ) -> Archive:
        """Changes what is given. Raises `NotFound`."""
        async with self._database.write() as connection:
            before = await load_archive(connection, project_id, archive_id, lock="update")
            archive = replace(
                before,
                name=before.name if name is None else name,
                description=before.description if description is None else description,
                updated_at=now,
            )
            await connection.execute(sa.update(archives).where(archives.c.id == archive_id).values(_values(archive)))
            return archive

    async def delete(self, project_id: ProjectId, archive_id: ArchiveId) -> None:
        """Deletes an archive with its passages, and takes it from all agents. Raises `NotFound`."""
        async with self._database.write() as connection:
            await load_archive(connection, project_id, archive_id, lock="update")
            await _delete_archives(connection, [archive_id])
            await record(connection, project_id, "archive.deleted", archive_id)

    async def attach(self, project_id: ProjectId, agent_id: AgentId, archive_id: ArchiveId) -> None:
        """Gives the agent an archive; one that it has already stays. Raises `NotFound`."""
        async with self._database.write() as connection:
            await agent_row(connection, project_id, agent_id, lock=True)
            await load_archive(connection, project_id, archive_id, lock="share")
            attached = archive_ids_of(project_id, agent_id).where(agent_archives.c.archive_id == archive_id)
            found = await connection.execute(attached)
            if found.one_or_none() is None:
                await _link(connection, agent_id, archive_id, is_own=False)

    async def detach(self, project_id: ProjectId, agent_id: AgentId, archive_id: ArchiveId) -> None:
        """Takes an archive from the agent; the archive itself stays. Raises `NotFound`."""
        async with self._database.write() as connection:
            await agent_row(connection, project_id, agent_id)
            await load_archive(connection, project_id, archive_id)
            await connection.execute(
                sa.delete(agent_archives).where(
                    agent_archives.c.agent_id == agent_id, agent_archives.c.archive_id == archive_id
                )
            )


def archive_ids_of(project_id: ProjectId, agent_id: AgentId) -> sa.Select[*tuple[str]]:
    """The query for the ids of the project's archives that the agent is attached to."""
    ours = sa.select(agent_archives.c.archive_id).join(archives, archives.c.id == agent_archives.c.archive_id)
    return ours.where(agent_archives.c.agent_id == agent_id, archives.c.project_id == project_id)


async def load_archive(
    connection: Connection, project_id: ProjectId, archive_id: ArchiveId, *, lock: str | None = None
) -> Archive:
    """One archive of this project. Raises `NotFound`. With `lock`, nobody deletes it until the transaction ends; with
    "update", nobody stores a passage in it either."""
    query = sa.select(archives).where(archives.c.id == archive_id, archives.c.project_id == project_id)
    if lock is not None:
        query = query.with_for_update(read=lock == "share")
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"Archive with ID {archive_id} not found")
    return _archive_of(row)


async def agent_row(
    connection: Connection, project_id: ProjectId, agent_id: AgentId, *, lock: bool = False
) -> RowMapping:
    """Name and document of one agent of this project. Raises `NotFound`. With `lock`, one transaction at a time."""
    is_meant = sa.and_(agents.c.id == agent_id, agents.c.project_id == project_id)
    query = sa.select(agents.c.name, agents.c.document).where(is_meant)
    found = await connection.execute(query.with_for_update(key_share=True) if lock else query)
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return row


async def archive_for_insert(
    connection: Connection, project_id: ProjectId, agent_id: AgentId, new_id: ArchiveId, now: datetime
) -> Archive:
    """The archive that the agent's passages go to: the first that it was attached to, else a new one of its own, which
    gets this id and the agent's embedding model. Raises `NotFound` for an agent that the project does not have."""
    first = archive_ids_of(project_id, agent_id).order_by(agent_archives.c.number).limit(1)
    found = (await connection.execute(first)).scalar_one_or_none()
    if found is None:
        # Of two first inserts at once, the second waits here, and finds the archive of the first.
        agent = await agent_row(connection, project_id, agent_id, lock=True)
        found = (await connection.execute(first)).scalar_one_or_none()
        if found is None:
            return await _create_own(connection, project_id, agent_id, agent, new_id, now)
    return await load_archive(connection, project_id, ArchiveId(found), lock="share")


async def _create_own(
    connection: Connection,
    project_id: ProjectId,
    agent_id: AgentId,
    agent: RowMapping,
    archive_id: ArchiveId,
    now: datetime,
) -> Archive:
    archive = Archive(
        id=archive_id,
        project_id=project_id,
        name=f"{agent['name']}'s Archive",
        description=AUTOMATIC_DESCRIPTION,
        embedding=from_json(agent["document"], _AgentDocument).embedding,
        created_at=now,
        updated_at=now,
    )
    await connection.execute(sa.insert(archives).values(_values(archive)))
    await _link(connection, agent_id, archive_id, is_own=True)
    return archive


class _AgentDocument(msgspec.Struct):
    """The one field of an agent that matters here."""

    embedding: str | None = None


async def forget_agent(connection: Connection, project_id: ProjectId, agent_id: AgentId) -> None:
    """Takes an agent that is about to be deleted from its archives. The one that was made for it alone goes with it,
    unless another agent has it."""
    own = archive_ids_of(project_id, agent_id).where(agent_archives.c.is_own)
    shared = sa.select(agent_archives.c.archive_id).where(agent_archives.c.agent_id != agent_id)
    found = await connection.execute(own.where(agent_archives.c.archive_id.not_in(shared)))
    await _delete_archives(connection, list(found.scalars()))
    await connection.execute(sa.delete(agent_archives).where(agent_archives.c.agent_id == agent_id))


async def _delete_archives(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        # First the archive: who is about to store a passage in it waits for this transaction, and then finds none.
        await connection.execute(sa.delete(archives).where(archives.c.id.in_(ids)))
        await connection.execute(sa.delete(agent_archives).where(agent_archives.c.archive_id.in_(ids)))
        await delete_passages(connection, passages.c.archive_id.in_(ids))


async def _link(connection: Connection, agent_id: AgentId, archive_id: ArchiveId, *, is_own: bool) -> None:
    await connection.execute(sa.insert(agent_archives).values(agent_id=agent_id, archive_id=archive_id, is_own=is_own))


def _archive_of(row: RowMapping) -> Archive:
    return from_json(row["document"], Archive)


def _values(archive: Archive) -> dict[str, Any]:
    return {
        "id": archive.id,
        "project_id": archive.project_id,
        "name": archive.name,
        "embedding": archive.embedding,
        "document": document_of(archive),
        "created_at": archive.created_at,
        "updated_at": archive.updated_at,
    }
