"""Deciding approval requests one by one, by people and by the clock."""

from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.crash_points import DurableWrite
from shared.domain.approvals import Approval
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import ApprovalId, IdMaker, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import ApprovalResponse, Decision, NewMessage
from shared.domain.runs import Run
from shared.sql.approval_rows import AskedBy, refuse_other_decision, requests_of, start_carrying, store_decision
from shared.sql.columns import approval_of, run_of
from shared.sql.engine import Database
from shared.sql.run_rows import get_run
from shared.sql.tables import approvals, runs
from shared.sql.thread_line import lock_thread


class Decided(NamedTuple):
    """A request as it was decided. `run` carries the decisions out; None while other calls of the answer wait."""

    approval: Approval
    run: Run | None


class DecisionStore:
    """Stores decisions, each once, and with the last one of an answer the run that carries them out."""

    def __init__(self, database: Database, ids: IdMaker) -> None:
        self._database = database
        self._ids = ids

    async def decide(self, asked: Approval, decision: Decision, *, by: str, now: datetime) -> Decided:
        """Decides one request. The same decision again gives what came of the first.

        Raises `Conflict` when it was decided otherwise or its run is being cancelled, `NotFound` when it is gone.
        """
        async with self._database.write(DurableWrite.DECIDE) as connection:
            # Whoever decides another call of the same answer, or the rest of them in a message, waits here.
            await lock_thread(connection, asked.thread_id)
            known = await _get(connection, asked.id)
            if known.decision is not None:
                refuse_other_decision(known, decision)
                run = None if known.continued_by is None else await get_run(connection, known.continued_by)
                return Decided(known, run)
            parked = await _hold_parked(connection, known.run_id)
            await store_decision(connection, known, decision, by=by, now=now, run_id=None)
            asked_together = await requests_of(connection, parked.id)
            run = None
            if all(approval.decision is not None for approval in asked_together):
                asked_by = AskedBy(parked.id, parked.fence)
                run = await start_carrying(connection, self._carrying_run(parked, now), asked_by)
            return Decided(await _get(connection, asked.id), run)

    def _carrying_run(self, parked: Run, now: datetime) -> Run:
        """Nobody sends a request that this run answers, so it does what the parked one was asked to do."""
        response = NewMessage(id=self._ids.message(), created_at=now, body=ApprovalResponse([]))
        return Run(
            id=self._ids.run(),
            project_id=parked.project_id,
            agent_id=parked.agent_id,
            thread_id=parked.thread_id,
            conversation_id=parked.conversation_id,
            options=msgspec.structs.replace(parked.options, background=True),
            input=[response],
            callback_url=parked.callback_url,
            created_at=now,
        )


async def _get(connection: AsyncConnection, approval_id: ApprovalId) -> Approval:
    found = await connection.execute(sa.select(approvals).where(approvals.c.id == approval_id))
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Approval {approval_id} not found")
    return approval_of(row)


async def _hold_parked(connection: AsyncConnection, run_id: RunId) -> Run:
    """Locks the run that asked, against a cancel that is recorded at this moment."""
    found = await connection.execute(sa.select(runs).where(runs.c.id == run_id).with_for_update())
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Run {run_id} not found")
    parked = run_of(row)
    if parked.status is not RunStatus.AWAITING_APPROVAL or parked.cancel is not None:
        raise Conflict(f"run {run_id} no longer waits for this decision: it was cancelled")
    return parked
