"""Approval requests inside somebody's transaction: asking, deciding once, refusing what cannot go on meanwhile."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.approvals import Approval
from shared.domain.errors import AlreadyDecided, Conflict, NoPendingApproval, PendingApproval, WrongToolCalls
from shared.domain.ids import Fence, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus, RunTrigger
from shared.domain.messages import ApprovalResponse, Decision
from shared.domain.runs import Run
from shared.sql.columns import approval_of, to_json
from shared.sql.run_rows import insert_run
from shared.sql.run_transitions import apply
from shared.sql.tables import approvals, runs


class AskedBy(NamedTuple):
    """The run whose calls are decided; `continued_by` when they were decided before and that run is still active."""

    run_id: RunId
    fence: Fence
    continued_by: RunId | None = None


async def insert_approvals(connection: AsyncConnection, asked: Sequence[Approval]) -> None:
    """Stores requests in the order of their calls."""
    rows = [
        {
            **{name: getattr(approval, name) for name in Approval.__struct_fields__},
            "decision": None,
            "number": number,
        }
        for number, approval in enumerate(asked, start=1)
    ]
    if rows:
        await connection.execute(sa.insert(approvals), rows)


async def waiting_on(connection: AsyncConnection, thread_id: ThreadId) -> list[Approval]:
    """The thread's undecided requests, in the order of their calls."""
    found = await connection.execute(
        sa.select(approvals)
        .join(runs, runs.c.id == approvals.c.run_id)
        .where(
            approvals.c.thread_id == thread_id,
            approvals.c.decided_at.is_(None),
            runs.c.status == RunStatus.AWAITING_APPROVAL,
        )
        .order_by(approvals.c.run_id, approvals.c.number)
    )
    return [approval_of(row) for row in found.mappings()]


async def refuse_if_waiting(connection: AsyncConnection, thread_id: ThreadId) -> None:
    """Raises `PendingApproval` when a person must decide before the thread can go on."""
    waiting = await waiting_on(connection, thread_id)
    if waiting:
        raise PendingApproval(
            run_id=waiting[0].run_id,
            agent_id=waiting[0].agent_id,
            message_id=waiting[0].message_id,
            tool_call_ids=[approval.tool_call_id for approval in waiting],
            approval_ids=[approval.id for approval in waiting],
        )


async def requests_of(connection: AsyncConnection, run_id: RunId) -> list[Approval]:
    """A run's requests, decided or not, in the order of their calls."""
    found = await connection.execute(
        sa.select(approvals).where(approvals.c.run_id == run_id).order_by(approvals.c.number)
    )
    return [approval_of(row) for row in found.mappings()]


async def decide(connection: AsyncConnection, run: Run, decided_by: str) -> AskedBy:
    """Stores the decisions that `run` carries, each once. All calls that still wait must be decided together."""
    response = run.input[0].body if run.input else None
    if not isinstance(response, ApprovalResponse):
        raise NoPendingApproval
    decisions = {decision.tool_call_id: decision for decision in response.decisions}
    await _refuse_if_cancelled(connection, run.thread_id)
    waiting = await waiting_on(connection, run.thread_id)
    if not waiting:
        return await _decided_before(connection, run.thread_id, decisions)
    expected = [approval.tool_call_id for approval in waiting]
    if set(expected) != set(decisions):
        raise WrongToolCalls(expected, [decision.tool_call_id for decision in response.decisions])
    for approval in waiting:
        await store_decision(
            connection, approval, decisions[approval.tool_call_id], by=decided_by, now=run.created_at, run_id=run.id
        )
    fence = await connection.execute(sa.select(runs.c.fence).where(runs.c.id == waiting[0].run_id))
    return AskedBy(waiting[0].run_id, fence.scalar_one())


async def start_carrying(connection: AsyncConnection, run: Run, asked_by: AskedBy, keys: Sequence[str] = ()) -> Run:
    """Closes a parked run of which every call is decided, and stores the run that carries the decisions out.

    `run.input` begins with an `ApprovalResponse`, which is made to hold all decisions on the answer: some of them may
    have come earlier, one by one.
    """
    parked = await apply(connection, asked_by.run_id, RunTrigger.DECIDE, held=asked_by.fence, now=run.created_at)
    asked = await requests_of(connection, parked.id)
    await connection.execute(sa.update(approvals).where(approvals.c.run_id == parked.id).values(continued_by=run.id))
    response = ApprovalResponse([approval.decision for approval in asked if approval.decision is not None])
    whole = msgspec.structs.replace(run.input[0], body=response)
    carrying = msgspec.structs.replace(run, input=[whole, *run.input[1:]], continues=parked.id, turn=parked.turn)
    return await insert_run(connection, carrying, keys)


def refuse_other_decision(decided: Approval, decision: Decision) -> None:
    """Raises `Conflict` when a request that was decided is now decided otherwise. The same decision again is fine."""
    known = decided.decision
    if known is None or known == decision:
        return
    verdict = "answered with a result" if known.kind == "tool" else "approved" if known.approve else "denied"
    reason = f" ({known.reason})" if known.reason else ""
    when = "" if decided.decided_at is None else f" at {decided.decided_at.isoformat(timespec='seconds')}"
    raise Conflict(
        f"the call {decided.tool_call_id} of {decided.tool_name} was {verdict} by {decided.decided_by}{when}{reason}; "
        "a decision holds once"
    )


async def _refuse_if_cancelled(connection: AsyncConnection, thread_id: ThreadId) -> None:
    """Locks the thread's parked run. Raises `NoPendingApproval` when its cancel is recorded: that was first."""
    parked = await connection.execute(
        sa.select(runs.c.cancel_requested_at)
        .where(runs.c.thread_id == thread_id, runs.c.status == RunStatus.AWAITING_APPROVAL)
        .with_for_update()
    )
    if any(row.cancel_requested_at is not None for row in parked):
        raise NoPendingApproval


async def store_decision(
    connection: AsyncConnection,
    approval: Approval,
    decision: Decision,
    *,
    by: str,
    now: datetime,
    run_id: RunId | None,
) -> None:
    """Writes one decision, if none was. Raises `Conflict` when somebody decided in the meantime."""
    written = await connection.execute(
        sa.update(approvals)
        .where(approvals.c.id == approval.id, approvals.c.decided_at.is_(None))
        .values(decision=to_json(decision), decided_at=now, decided_by=by, continued_by=run_id)
    )
    if written.rowcount != 1:
        raise Conflict(f"approval {approval.id} was decided by somebody else in the meantime")


async def _decided_before(
    connection: AsyncConnection, thread_id: ThreadId, decisions: Mapping[str, Decision]
) -> AskedBy:
    found = await connection.execute(
        sa.select(approvals, runs.c.status, runs.c.fence)
        .join(runs, runs.c.id == approvals.c.continued_by)
        .where(approvals.c.thread_id == thread_id, approvals.c.tool_call_id.in_(decisions))
        # Some servers number the calls of every answer anew, so an id may have been decided in an earlier turn.
        .order_by(approvals.c.decided_at.desc(), runs.c.number.desc())
    )
    rows = found.mappings().all()
    last = [row for row in rows if row["continued_by"] == rows[0]["continued_by"]]
    if not last or {row["tool_call_id"] for row in last} != set(decisions):
        raise NoPendingApproval
    for row in last:
        refuse_other_decision(approval_of(row), decisions[row["tool_call_id"]])
    if last[0]["status"] not in ACTIVE:
        raise AlreadyDecided
    return AskedBy(last[0]["run_id"], last[0]["fence"], continued_by=last[0]["continued_by"])
