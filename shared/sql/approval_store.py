"""Approval requests, for those who list, decide and expire them."""

from datetime import datetime

import sqlalchemy as sa

from shared.domain.approvals import Approval
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ApprovalId, ProjectId, RunId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.sql.approval_rows import requests_of, waiting_on
from shared.sql.columns import approval_of
from shared.sql.engine import Database
from shared.sql.tables import approvals, runs


class ApprovalStore:
    """Reads approval requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project_id: ProjectId, approval_id: ApprovalId) -> Approval:
        """One request of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(approvals).where(approvals.c.id == approval_id, approvals.c.project_id == project_id)
            )
            row = found.mappings().one_or_none()
        if row is None:
            raise NotFound(f"Approval {approval_id} not found")
        return approval_of(row)

    async def of_run(self, run_id: RunId) -> list[Approval]:
        """A run's requests in the order of their calls."""
        async with self._database.read() as connection:
            return await requests_of(connection, run_id)

    async def waiting_on_thread(self, thread_id: ThreadId) -> list[Approval]:
        """What a thread waits for; empty when it waits for nothing."""
        async with self._database.read() as connection:
            return await waiting_on(connection, thread_id)

    async def waiting(
        self,
        project_id: ProjectId,
        *,
        agent_id: AgentId | None = None,
        thread_id: ThreadId | None = None,
        limit: int = 100,
    ) -> list[Approval]:
        """All that waits in a project, oldest first."""
        query = _waiting().where(approvals.c.project_id == project_id)
        if agent_id is not None:
            query = query.where(approvals.c.agent_id == agent_id)
        if thread_id is not None:
            query = query.where(approvals.c.thread_id == thread_id)
        oldest_first = query.order_by(approvals.c.asked_at, approvals.c.run_id, approvals.c.number)
        async with self._database.read() as connection:
            found = await connection.execute(oldest_first.limit(limit))
            return [approval_of(row) for row in found.mappings()]

    async def expired(self, now: datetime, limit: int = 100) -> list[Approval]:
        """Requests that nobody decided in time and whose policy is to act."""
        query = _waiting().where(approvals.c.expires_at <= now, approvals.c.on_expiry != "keep")
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(approvals.c.expires_at).limit(limit))
            return [approval_of(row) for row in found.mappings()]


def _waiting() -> sa.Select[tuple[object, ...]]:
    return (
        sa.select(approvals)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.decided_at.is_(None), runs.c.status == RunStatus.AWAITING_APPROVAL)
    )
