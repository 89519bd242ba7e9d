"""Begun sign-ins at MCP servers. One process can take each of them, once and within its time."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import McpServerId, McpSignInId, ProjectId
from shared.domain.mcp_servers import SignInSession
from shared.sql.definitions.agents import lock_definitions
from shared.sql.engine import Database
from shared.sql.tables import from_json, mcp_sign_ins, to_json

MOST_WAITING = 50
"""The limit for one project's sign-ins that wait at the same time."""
KEPT = timedelta(days=1)
"""How long the outcome of a sign-in is stored."""


class McpSignInStore:
    """Reads and writes sign-ins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, session: SignInSession) -> None:
        """Stores a sign-in, and deletes the project's old ones. Raises `InvalidRequest` if too many wait."""
        columns, now = mcp_sign_ins.c, session.created_at
        is_own = columns.project_id == session.project_id
        waiting = sa.select(sa.func.count()).where(is_own, columns.status == "waiting", columns.expires_at > now)
        async with self._database.write() as connection:
            await lock_definitions(connection, session.project_id)
            await connection.execute(sa.delete(mcp_sign_ins).where(is_own, columns.expires_at < now - KEPT))
            if (await connection.execute(waiting)).scalar_one() >= MOST_WAITING:
                raise InvalidRequest(
                    f"The project has {MOST_WAITING} sign-ins that wait for a person: finish one, or wait until they "
                    "have expired"
                )
            await connection.execute(sa.insert(mcp_sign_ins).values(_values(session)))

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
        if there is none, another process took it, or it has expired."""
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


def _values(session: SignInSession) -> dict[str, Any]:
    return msgspec.structs.asdict(session) | {"begun_by": to_json(session.begun_by)}


def _session_of(row: RowMapping) -> SignInSession:
    return SignInSession(
        id=McpSignInId(row["id"]),
        project_id=ProjectId(row["project_id"]),
        server_id=McpServerId(row["server_id"]),
        state_hash=row["state_hash"],
        status=row["status"],
        problem=row["problem"],
        sealed=row["sealed"],
        begun_by=from_json(row["begun_by"], dict[str, str]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
