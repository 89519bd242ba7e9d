"""MCP servers of projects, their tools in these projects, and the sign-ins at them. The transaction of each change also
records it in the audit log."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.errors import Conflict, InvalidRequest, NotFound
from shared.domain.ids import McpServerId, McpSignInId, ProjectId
from shared.domain.mcp_servers import MCP_TYPE, SOURCE, McpServer, SignInSession, reached
from shared.domain.tools import Tool
from shared.mcp_tools import MOST_SERVERS, TakeOver, ToolChanges, renamed
from shared.secret_keys import StoredSecrets
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agents import definitions_lock, tool_of, tool_values
from shared.sql.engine import Store
from shared.sql.paging import count_rows, field_of_document, remember_place
from shared.sql.tables import agent_tools, document_of, fields_of, from_json, mcp_servers, mcp_sign_ins, to_json, tools

Change = Callable[[McpServer], McpServer]

CHANGED = "mcp_server.changed"
_AT_ONCE = 1000
"""The limit for the names in one query."""


class McpServerStore(Store):
    """Reads and writes servers and their tools."""

    async def create(self, server: McpServer) -> McpServer:
        """Stores a server. Raises `InvalidRequest` if its project has reached the limit, and `Conflict` if the name is
        taken."""
        async with self._database.write(None, definitions_lock(server.project_id)) as connection:
            await _refuse_taken_name(connection, server)
            if await count_rows(connection, mcp_servers, server.project_id) >= MOST_SERVERS:
                raise InvalidRequest(f"The project has {MOST_SERVERS} MCP servers, and may not have more")
            await connection.execute(sa.insert(mcp_servers).values(_values(server)))
            await record(connection, server.project_id, "mcp_server.created", server.id)
        return server

    async def get(self, project_id: ProjectId, server_id: McpServerId) -> McpServer:
        """One server of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _load(connection, project_id, server_id)

    async def named(self, project_id: ProjectId, name: str) -> McpServer | None:
        """The project's server of this name."""
        is_it = (mcp_servers.c.project_id == project_id, mcp_servers.c.name == name)
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(mcp_servers).where(*is_it))).mappings().one_or_none()
        return None if row is None else _server_of(row)

    async def list(self, project_id: ProjectId) -> Sequence[McpServer]:
        """All of the project's servers, the oldest first: `MOST_SERVERS` at most."""
        query = sa.select(mcp_servers).where(mcp_servers.c.project_id == project_id).order_by(mcp_servers.c.number)
        async with self._database.read() as connection:
            return [_server_of(row) for row in (await connection.execute(query)).mappings()]

    async def update(
        self, project_id: ProjectId, server_id: McpServerId, change: Change, *, now: datetime, action: str = CHANGED
    ) -> McpServer:
        """Changes the stored server, and writes a new name into its tools. Does nothing if `change` does nothing.
        `action` is the act in the audit log; empty: no caller requested the change, and it is not recorded.

        `change` must be quick and pure. Raises `NotFound`, and `Conflict` if the new name is taken.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            before = await _load(connection, project_id, server_id, lock=True)
            after = change(before)
            if after == before:
                return before
            if after.name != before.name:
                await _refuse_taken_name(connection, after)
                for tool in renamed(await _tools_of(connection, before), after, now):
                    await _write_tool(connection, tool)
            after = replace(after, updated_at=now)
            is_it = mcp_servers.c.id == server_id
            await connection.execute(sa.update(mcp_servers).where(is_it).values(_values(after)))
            if action:
                await record(connection, project_id, action, server_id)
            return after

    async def claim_renewal(
        self, server: McpServer, holder: str, *, now: datetime, until: datetime
    ) -> McpServer | None:
        """Claims the renewal of a server's token until `until`, and returns the server as stored. None: another holder
        has the claim. The same holder may claim it again. Raises `NotFound`."""
        columns = mcp_servers.c
        is_free = sa.or_(columns.renewal_until.is_(None), columns.renewal_until <= now, columns.renewed_by == holder)
        is_it = (columns.id == server.id, columns.project_id == server.project_id)
        claim = sa.update(mcp_servers).where(*is_it, is_free).values(renewed_by=holder, renewal_until=until)
        async with self._database.write() as connection:
            claimed = (await connection.execute(claim)).rowcount == 1
            stored = await _load(connection, server.project_id, server.id)
            return stored if claimed else None

    async def settle_renewal(self, server: McpServer, holder: str, change: Change, *, now: datetime) -> McpServer:
        """Changes the stored server and releases the claim, if the holder still has it. Returns the server as stored.
        `change` must be quick and pure. Raises `NotFound`."""
        columns = mcp_servers.c
        is_claimed = (columns.id == server.id, columns.project_id == server.project_id, columns.renewed_by == holder)
        free = sa.update(mcp_servers).where(*is_claimed).values(renewed_by=None, renewal_until=None)
        async with self._database.write() as connection:
            is_holder = (await connection.execute(free)).rowcount == 1
            before = await _load(connection, server.project_id, server.id, lock=True)
            after = change(before) if is_holder else before
            if after == before:
                return before
            after = replace(after, updated_at=now)
            await connection.execute(sa.update(mcp_servers).where(columns.id == server.id).values(_values(after)))
            return after

    async def delete(self, project_id: ProjectId, server_id: McpServerId) -> None:
        """Deletes a server with its tools, and takes them from all agents. Raises `NotFound`."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            server = await _load(connection, project_id, server_id, lock=True)
            await _delete_tools(connection, project_id, await _tools_of(connection, server))
            await connection.execute(sa.delete(mcp_servers).where(mcp_servers.c.id == server_id))
            await record(connection, project_id, "mcp_server.deleted", server_id)

    async def tools(self, project_id: ProjectId, server_id: McpServerId) -> Sequence[Tool]:
        """The server's tools that the project has, by name. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _tools_of(connection, await _load(connection, project_id, server_id))

    async def take_over(self, server: McpServer, taking: TakeOver) -> ToolChanges:
        """Stores the tools that a server lists as tools of its project, and records that the server was reached. Raises
        `NotFound` if the server was deleted meanwhile."""
        project_id = server.project_id
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            server = await _load(connection, project_id, server.id, lock=True)
            own, taken = await _tools_of(connection, server), await _taken(connection, project_id, taking.names(server))
            changes = taking.changes(server, own, taken)
            await _delete_tools(connection, project_id, changes.deleted)
            for tool in changes.updated:
                await _write_tool(connection, tool)
            if changes.added:
                await connection.execute(sa.insert(tools), [tool_values(tool) for tool in changes.added])
            await record(connection, project_id, "tool.changed", *(tool.id for tool in changes.updated))
            await record(connection, project_id, "tool.created", *(tool.id for tool in changes.added))
            after = reached(server, taking.now)
            is_it = mcp_servers.c.id == server.id
            await connection.execute(sa.update(mcp_servers).where(is_it).values(_values(after)))
            return changes


async def _load(
    connection: Connection, project_id: ProjectId, server_id: McpServerId, *, lock: bool = False
) -> McpServer:
    query = sa.select(mcp_servers).where(mcp_servers.c.id == server_id, mcp_servers.c.project_id == project_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"MCP server {server_id} not found")
    return _server_of(row)


async def _refuse_taken_name(connection: Connection, server: McpServer) -> None:
    is_it = (mcp_servers.c.project_id == server.project_id, mcp_servers.c.name == server.name)
    if (await connection.execute(sa.select(mcp_servers.c.id).where(*is_it))).one_or_none() is not None:
        raise Conflict(f"There is an MCP server named {server.name!r} already: change that one, or choose another name")


async def _tools_of(connection: Connection, server: McpServer) -> list[Tool]:
    is_its = (
        tools.c.project_id == server.project_id,
        field_of_document(tools, "tool_type").as_string() == MCP_TYPE,
        field_of_document(tools, ("metadata", SOURCE, "server_id")).as_string() == server.id,
    )
    found = await connection.execute(sa.select(tools).where(*is_its).order_by(tools.c.name))
    return [tool_of(row) for row in found.mappings()]


async def _taken(connection: Connection, project_id: ProjectId, names: Sequence[str]) -> set[str]:
    """Returns the names among these that the project's tools have."""
    taken: set[str] = set()
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        query = sa.select(tools.c.name).where(tools.c.project_id == project_id, tools.c.name.in_(some))
        taken.update(await connection.scalars(query))
    return taken


async def _write_tool(connection: Connection, tool: Tool) -> None:
    await connection.execute(sa.update(tools).where(tools.c.id == tool.id).values(tool_values(tool)))


async def _delete_tools(connection: Connection, project_id: ProjectId, gone: Sequence[Tool]) -> None:
    for tool in gone:
        await connection.execute(sa.delete(agent_tools).where(agent_tools.c.tool_id == tool.id))
        await remember_place(connection, tools, tool.id)
        await connection.execute(sa.delete(tools).where(tools.c.id == tool.id))
    await record(connection, project_id, "tool.deleted", *(tool.id for tool in gone))


def _server_of(row: RowMapping) -> McpServer:
    document = from_json(row["document"], McpServer)
    return replace(document, secrets=from_json(row["secrets"], dict[str, str]))


def _values(server: McpServer) -> dict[str, Any]:
    return {
        "id": server.id,
        "project_id": server.project_id,
        "name": server.name,
        "document": document_of(replace(server, secrets={})),
        "secrets": to_json(server.secrets),
        "created_at": server.created_at,
        "updated_at": server.updated_at,
    }


# The stored secrets of servers, of all projects, for a change of the encryption key.


class ServerSecretStore(Store):
    """Reads and replaces the stored secrets of servers."""

    async def some(self, after: int, limit: int) -> Sequence[StoredSecrets]:
        """Returns servers in the order of their creation, after the number `after`."""
        columns = mcp_servers.c
        wanted = sa.select(columns.number, columns.id, columns.secrets).where(columns.number > after)
        async with self._database.read() as connection:
            found = await connection.execute(wanted.order_by(columns.number).limit(limit))
            return [StoredSecrets(number, id_, from_json(text, dict[str, str]), text) for number, id_, text in found]

    async def replace(self, before: StoredSecrets, secrets: dict[str, str]) -> bool:
        """Stores other texts for the same secrets. Returns False and stores nothing if the secrets were changed since,
        or the server was deleted."""
        is_as_before = (mcp_servers.c.id == before.owner_id, mcp_servers.c.secrets == before.text)
        async with self._database.write() as connection:
            done = await connection.execute(
                sa.update(mcp_servers).where(*is_as_before).values(secrets=to_json(secrets))
            )
            return done.rowcount == 1


# Begun sign-ins at MCP servers. One process can take each of them, once and within its time.


MOST_WAITING = 50
"""The limit for one project's sign-ins that wait at the same time."""
KEPT = timedelta(days=1)
"""How long the outcome of a sign-in is stored."""


class McpSignInStore(Store):
    """Reads and writes sign-ins."""

    async def create(self, session: SignInSession) -> None:
        """Stores a sign-in, and deletes the project's old ones. Raises `InvalidRequest` if too many wait."""
        columns, now = mcp_sign_ins.c, session.created_at
        is_own = columns.project_id == session.project_id
        waiting = sa.select(sa.func.count()).where(is_own, columns.status == "waiting", columns.expires_at > now)
        async with self._database.write(None, definitions_lock(session.project_id)) as connection:
            await connection.execute(sa.delete(mcp_sign_ins).where(is_own, columns.expires_at < now - KEPT))
            if (await connection.execute(waiting)).scalar_one() >= MOST_WAITING:
                raise InvalidRequest(
                    f"The project has {MOST_WAITING} sign-ins that wait for a person: finish one, or wait until they "
                    "have expired"
                )
            await connection.execute(sa.insert(mcp_sign_ins).values(_sign_in_values(session)))

    async def get(self, project_id: ProjectId, session_id: McpSignInId) -> SignInSession:
        """One sign-in of this project. Raises `NotFound`."""
        is_it = (mcp_sign_ins.c.id == session_id, mcp_sign_ins.c.project_id == project_id)
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(mcp_sign_ins).where(*is_it))).mappings().one_or_none()
        if row is None:
            raise NotFound(f"Sign-in {session_id} not found")
        return _session_of(row)

    async def take(self, state_hash: str, now: datetime) -> SignInSession | None:
        """Takes the waiting sign-in with this hash, of any project, so that no other process can take it. Returns None
        if no sign-in waits, another process took it, or it has expired."""
        columns = mcp_sign_ins.c
        is_waiting = (columns.state_hash == state_hash, columns.status == "waiting", columns.expires_at > now)
        async with self._database.write() as connection:
            taken = sa.update(mcp_sign_ins).where(*is_waiting).values(status="redeeming")
            if (await connection.execute(taken)).rowcount != 1:
                return None
            found = await connection.execute(sa.select(mcp_sign_ins).where(columns.state_hash == state_hash))
            return _session_of(found.mappings().one())

    async def finish(self, session: SignInSession, problem: str) -> None:
        """Stores the outcome of a taken sign-in, and deletes its secrets. An empty `problem` means success."""
        values = {"status": "failed" if problem else "done", "problem": problem, "sealed": ""}
        is_it = (mcp_sign_ins.c.id == session.id, mcp_sign_ins.c.project_id == session.project_id)
        async with self._database.write() as connection:
            await connection.execute(sa.update(mcp_sign_ins).where(*is_it).values(**values))


def _sign_in_values(session: SignInSession) -> dict[str, Any]:
    return msgspec.structs.asdict(session) | {"begun_by": to_json(session.begun_by)}


def _session_of(row: RowMapping) -> SignInSession:
    begun_by = from_json(row["begun_by"], dict[str, str])
    return SignInSession(begun_by=begun_by, **fields_of(row, SignInSession, beside="begun_by"))
