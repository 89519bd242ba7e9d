"""Approval requests: one row per tool call that waits for a person or for the client."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.approvals import Approval, WaitingCalls, waiting_calls
from shared.domain.errors import NotFound, PendingApproval
from shared.domain.ids import AgentId, ApprovalId, ProjectId, RunId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision
from shared.domain.runs import Run
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, rows_of_page
from shared.sql.run_tables import approvals, runs
from shared.sql.tables import fields_of, from_json, made_of

MOST_CALL_IDS = 1_000
"""The number of later calls of a thread that must be decided before a call may have the same id again."""


def approval_of(row: RowMapping) -> Approval:
    """The approval request of a row of `approvals`."""
    decision = None if row["decision"] is None else from_json(row["decision"], Decision)
    return Approval(**fields_of(row, Approval, beside="decision"), decision=decision)


async def insert_approvals(connection: Connection, asked: Sequence[Approval]) -> None:
    """Stores requests in the order of their calls."""
    rows = [
        {**{name: getattr(approval, name) for name in Approval.__struct_fields__}, "decision": None, "number": number}
        for number, approval in enumerate(asked, start=1)
    ]
    if rows:
        await connection.execute(sa.insert(approvals), rows)


async def waiting_on(
    connection: Connection, thread_id: ThreadId, *conditions: sa.ColumnElement[bool]
) -> list[Approval]:
    """The thread's undecided requests that meet the conditions, in the order of their calls."""
    found = await connection.execute(
        sa.select(approvals)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(
            approvals.c.thread_id == thread_id,
            approvals.c.decided_at.is_(None),
            runs.c.status == RunStatus.AWAITING_APPROVAL,
            *conditions,
        )
        .order_by(approvals.c.run_id, approvals.c.number)
    )
    return await made_of(found.mappings().all(), approval_of, "arguments")


async def refuse_if_waiting(connection: Connection, thread_id: ThreadId) -> None:
    """Raises `PendingApproval` if a person must decide before the thread can continue."""
    waiting = waiting_calls(await waiting_on(connection, thread_id))
    if waiting is not None:
        raise PendingApproval(waiting)


async def requests_of(connection: Connection, run_id: RunId) -> list[Approval]:
    """A run's requests, decided or not, in the order of their calls."""
    found = await connection.execute(
        sa.select(approvals).where(approvals.c.run_id == run_id).order_by(approvals.c.number)
    )
    return await made_of(found.mappings().all(), approval_of, "arguments")


async def record_decision(
    connection: Connection, project_id: ProjectId, approval_id: ApprovalId, decision: Decision
) -> None:
    """Records a decision on a request in the audit log."""
    done = "answered" if decision.kind == "tool" else "approved" if decision.approve else "denied"
    await record(connection, project_id, f"approval.{done}", approval_id)


async def load_approval(
    connection: Connection, approval_id: ApprovalId, *conditions: sa.ColumnElement[bool]
) -> Approval:
    """One request that meets the conditions. Raises `NotFound`."""
    found = await connection.execute(sa.select(approvals).where(approvals.c.id == approval_id, *conditions))
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Approval {approval_id} not found")
    return approval_of(row)


class ApprovalStore(Store):
    """Reads approval requests."""

    async def get(self, project_id: ProjectId, approval_id: ApprovalId) -> Approval:
        """One request of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_approval(connection, approval_id, approvals.c.project_id == project_id)

    async def of_run(self, run: Run) -> list[Approval]:
        """The run's requests, decided or not, in the order of their calls."""
        async with self._database.read() as connection:
            return await requests_of(connection, run.id)

    async def followed_by(self, run: Run) -> list[Approval]:
        """Returns the requests whose decisions this run follows: those of the run that it continues."""
        async with self._database.read() as connection:
            return [] if run.continues is None else await requests_of(connection, run.continues)

    async def decided_call_ids(self, run: Run) -> frozenset[str]:
        """Ids of the calls that were decided last in the run's thread, `MOST_CALL_IDS` at most."""
        decided = sa.select(approvals.c.tool_call_id).where(
            approvals.c.thread_id == run.thread_id, approvals.c.decided_at.is_not(None)
        )
        async with self._database.read() as connection:
            found = await connection.execute(decided.order_by(approvals.c.decided_at.desc()).limit(MOST_CALL_IDS))
            return frozenset(found.scalars())

    async def waiting_on_thread(self, project_id: ProjectId, thread_id: ThreadId) -> list[Approval]:
        """The requests that one of the project's threads waits for; empty when it waits for none."""
        async with self._database.read() as connection:
            return await waiting_on(connection, thread_id, approvals.c.project_id == project_id)

    async def decided_among(self, project_id: ProjectId, thread_id: ThreadId, names: Collection[str]) -> list[Approval]:
        """The decided requests of one of the project's threads whose ids, or whose calls' ids, are among these names:
        those that were decided last first."""
        is_named = sa.or_(approvals.c.id.in_(names), approvals.c.tool_call_id.in_(names))
        of_thread = (approvals.c.thread_id == thread_id, approvals.c.project_id == project_id)
        query = (
            sa.select(approvals)
            .join(runs, runs.c.id == approvals.c.run_id)
            .where(*of_thread, approvals.c.decided_at.is_not(None), is_named)
            .order_by(runs.c.number.desc(), approvals.c.number)
        )
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return await made_of(found.mappings().all(), approval_of, "arguments")

    async def of_calls(self, project_id: ProjectId, call_ids: Collection[str]) -> list[Approval]:
        """The project's requests about calls with one of these ids, decided or not."""
        async with self._database.read() as connection:
            asked = (approvals.c.tool_call_id.in_(call_ids), approvals.c.project_id == project_id)
            found = await connection.execute(sa.select(approvals).where(*asked))
            return [approval_of(row) for row in found.mappings()]

    async def waiting_of_runs(self, some: Sequence[Run]) -> dict[RunId, WaitingCalls]:
        """Returns the requests that each parked run among these waits for. Makes no query if none is parked."""
        parked = [run.id for run in some if run.status is RunStatus.AWAITING_APPROVAL]
        if not parked:
            return {}
        query = sa.select(approvals).where(approvals.c.run_id.in_(parked))
        asked: defaultdict[RunId, list[Approval]] = defaultdict(list)
        async with self._database.read() as connection:
            for row in (await connection.execute(query.order_by(approvals.c.number))).mappings():
                asked[row["run_id"]].append(approval_of(row))
        return {run_id: names for run_id, rows in asked.items() if (names := waiting_calls(rows)) is not None}

    async def waiting_on_threads(
        self, project_id: ProjectId, thread_ids: Collection[ThreadId]
    ) -> dict[ThreadId, list[Approval]]:
        """Returns the requests that each waiting thread of the project waits for, in the order of their calls."""
        query = _waiting().where(approvals.c.project_id == project_id, approvals.c.thread_id.in_(thread_ids))
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(approvals.c.run_id, approvals.c.number))
            waiting = await made_of(found.mappings().all(), approval_of, "arguments")
        of_thread: dict[ThreadId, list[Approval]] = {}
        for approval in waiting:
            of_thread.setdefault(approval.thread_id, []).append(approval)
        return of_thread

    async def of_project(
        self,
        project_id: ProjectId,
        page: Page,
        *,
        is_decided: bool = False,
        agent_id: AgentId | None = None,
        thread_id: ThreadId | None = None,
        run_id: RunId | None = None,
    ) -> list[Approval]:
        """Returns a page of the project's waiting requests, or of its decided ones, by the time of their decisions. A
        cursor may name a request that was decided meanwhile."""
        decided_at = approvals.c.decided_at
        is_parked = sa.exists().where(runs.c.id == approvals.c.run_id, runs.c.status == RunStatus.AWAITING_APPROVAL)
        chosen = [decided_at.is_not(None)] if is_decided else [decided_at.is_(None), is_parked]
        conditions = [*chosen, *_asked_by(agent_id, thread_id, run_id)]
        keys = [decided_at if is_decided else approvals.c.asked_at, approvals.c.run_id, approvals.c.number]
        async with self._database.read() as connection:
            rows = await rows_of_page(connection, approvals, project_id, page, *conditions, keys=keys)
            return await made_of(rows, approval_of, "arguments")

    async def expired(self, now: datetime, limit: int = 100) -> list[Approval]:
        """Returns the overdue requests whose policy decides them automatically."""
        query = _waiting().where(approvals.c.expires_at <= now, approvals.c.on_expiry != "keep")
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(approvals.c.expires_at).limit(limit))
            return await made_of(found.mappings().all(), approval_of, "arguments")


def _asked_by(
    agent_id: AgentId | None, thread_id: ThreadId | None, run_id: RunId | None
) -> Iterator[sa.ColumnElement[bool]]:
    if agent_id is not None:
        yield approvals.c.agent_id == agent_id
    if thread_id is not None:
        yield approvals.c.thread_id == thread_id
    if run_id is not None:
        yield approvals.c.run_id == run_id


def _waiting() -> sa.Select[tuple[object, ...]]:
    return (
        sa.select(approvals)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(approvals.c.decided_at.is_(None), runs.c.status == RunStatus.AWAITING_APPROVAL)
    )
