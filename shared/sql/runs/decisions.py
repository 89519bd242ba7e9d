"""Decisions on approval requests. People and the expiry decide them one by one; a message decides all requests of an
answer. The last decision of an answer closes the parked run and stores its continuation."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.domain.approvals import EXPIRY, Approval
from shared.domain.errors import (
    AlreadyDecided,
    Conflict,
    DecidedOtherwise,
    InvalidRequest,
    NoPendingApproval,
    NotFound,
    WrongToolCalls,
)
from shared.domain.ids import Fence, IdMaker, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus, RunTrigger
from shared.domain.messages import ApprovalResponse, Decision, NewMessage
from shared.domain.runs import NO_KEYS, Run, SubmissionKeys
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.history.thread_queue import thread_lock
from shared.sql.run_tables import approvals, has_one_of, runs
from shared.sql.runs.approvals import approval_of, load_approval, record_decision, requests_of, waiting_on
from shared.sql.runs.journal import MOVE_JOURNAL
from shared.sql.runs.rows import RUN_COLUMNS, apply, get_run, insert_run, run_of
from shared.sql.runs.run_store import Submitted, submitted_before
from shared.sql.tables import to_json


class AskedBy(NamedTuple):
    """The run whose calls are decided. `continued_by` is its continuation, if an earlier request decided the calls and
    the continuation is still active."""

    run_id: RunId
    fence: Fence
    continued_by: RunId | None = None


class Decided(NamedTuple):
    """A decided request. `run` is the continuation; None while other calls of the answer wait."""

    approval: Approval
    run: Run | None


class DecisionStore:
    """Stores each decision once. With the last one of an answer it stores the continuation of the parked run."""

    def __init__(self, database: Database, ids: IdMaker) -> None:
        self._database = database
        self._ids = ids

    async def decide_all(
        self, run: Run, given: Sequence[NewMessage], *, keys: SubmissionKeys = NO_KEYS, by: str, again: bool = False
    ) -> Submitted:
        """Decides all calls that a thread waits for, and stores `run`, which continues the parked one.

        `given` begins with the `ApprovalResponse`, whose decisions cover exactly the undecided calls. A repetition
        while the continuation is active returns that run again; `again` is as in `RunStore.submit`. Raises
        `NoPendingApproval`, `WrongToolCalls`, `AlreadyDecided`, `NameTaken`, or `Conflict` if another caller decided
        otherwise.
        """
        async with self._database.write(CrashPoint.DECIDE, thread_lock(run.thread_id)) as connection:
            seen = await submitted_before(connection, run, keys, again=again)
            if seen is not None:
                return Submitted(seen, is_new=False)
            asked_by = await _decide_waiting(connection, run, given, by)
            if asked_by.continued_by is not None:
                return Submitted(await get_run(connection, asked_by.continued_by), is_new=False)
            return Submitted(await _start_continuation(connection, run, given, asked_by, keys), is_new=True)

    async def decide(self, asked: Approval, decision: Decision, *, by: str, now: datetime) -> Decided:
        """Decides one request. A repetition of the same decision returns the result of the first.

        Raises `Conflict` if another decision is stored or a cancel of its run is recorded, and `NotFound` if it was
        deleted.
        """
        # Another caller that decides calls of the same answer waits for the thread.
        async with self._database.write(CrashPoint.DECIDE, thread_lock(asked.thread_id)) as connection:
            known = await load_approval(connection, asked.id)
            if known.decision is not None:
                _refuse_other_decision(known, decision)
                run = None if known.continued_by is None else await get_run(connection, known.continued_by)
                return Decided(known, run)
            parked = await _lock_parked(connection, known.run_id)
            await _store_decision(connection, known, decision, by=by, now=now, run_id=None)
            run = None
            if all(approval.decision is not None for approval in await requests_of(connection, parked.id)):
                asked_by = AskedBy(parked.id, parked.fence)
                response = NewMessage(id=self._ids.message(), created_at=now, body=ApprovalResponse([]))
                run = await _start_continuation(connection, self._continuation(parked, now), [response], asked_by)
            return Decided(await load_approval(connection, asked.id), run)

    def _continuation(self, parked: Run, now: datetime) -> Run:
        """Returns the continuation after decisions that came one by one. No request of a client starts it, so it has
        the options of the parked run."""
        return Run(
            id=self._ids.run(),
            project_id=parked.project_id,
            agent_id=parked.agent_id,
            thread_id=parked.thread_id,
            conversation_id=parked.conversation_id,
            options=msgspec.structs.replace(parked.options, background=True),
            created_at=now,
        )


async def _decide_waiting(connection: Connection, run: Run, given: Sequence[NewMessage], decided_by: str) -> AskedBy:
    """Stores the decisions at the beginning of `given`, each once. They must decide all calls that still wait."""
    response = given[0].body if given else None
    if not isinstance(response, ApprovalResponse):
        raise NoPendingApproval
    decisions = {decision.tool_call_id: decision for decision in response.decisions}
    await _refuse_if_cancelled(connection, run.thread_id)
    waiting = await waiting_on(connection, run.thread_id)
    expected = [approval.tool_call_id for approval in waiting]
    decided_twice = any(decisions[decision.tool_call_id] != decision for decision in response.decisions)
    if decided_twice or (waiting and set(expected) != set(decisions)):
        raise WrongToolCalls(expected, [decision.tool_call_id for decision in response.decisions])
    if not waiting:
        return await _decided_before(connection, run.thread_id, decisions)
    for approval in waiting:
        await _store_decision(
            connection, approval, decisions[approval.tool_call_id], by=decided_by, now=run.created_at, run_id=run.id
        )
    fence = await connection.execute(sa.select(runs.c.fence).where(runs.c.id == waiting[0].run_id))
    return AskedBy(waiting[0].run_id, fence.scalar_one())


async def _start_continuation(
    connection: Connection, run: Run, given: Sequence[NewMessage], asked_by: AskedBy, keys: SubmissionKeys = NO_KEYS
) -> Run:
    """Closes a parked run whose calls are all decided, and stores its continuation.

    Some decisions may have come earlier, one by one. So the run's input begins with an `ApprovalResponse` that has all
    decisions on the answer, instead of that in `given`. The run continues the trace of the run that asked.
    """
    now = run.created_at
    closed = {"continued_by": run.id, "decided_at": now}
    parked = await apply(connection, asked_by.run_id, RunTrigger.DECIDE, fence=asked_by.fence, now=now, values=closed)
    asked = await requests_of(connection, parked.id)
    await connection.execute(sa.update(approvals).where(approvals.c.run_id == parked.id).values(continued_by=run.id))
    response = ApprovalResponse([approval.decision for approval in asked if approval.decision is not None])
    whole = msgspec.structs.replace(given[0], body=response)
    continuation = msgspec.structs.replace(
        run,
        continues=parked.id,
        turn=parked.turn,
        code_version=parked.code_version,
        priority=run.priority or parked.priority,
        callback_url=run.callback_url or parked.callback_url,
        options=msgspec.structs.replace(
            run.options,
            traceparent=parked.options.traceparent,
            first_words=parked.options.first_words,
            parent=parked.options.parent,
            leg=parked.options.leg + 1,
            code_agent=parked.options.code_agent,
            journal=None if parked.options.code_agent is None else parked.journal,
            # The code repeats its requests to its model, and the tools are a part of them.
            client_tools=(run if parked.options.code_agent is None else parked).options.client_tools,
        ),
    )
    if parked.options.code_agent is not None:
        await connection.execute(MOVE_JOURNAL, {"of_journal": parked.journal, "to_run": run.id})
    return (await insert_run(connection, continuation, [whole, *given[1:]], keys)).run


def _refuse_other_decision(decided: Approval, decision: Decision) -> None:
    """Raises `Conflict` when a decided request gets another decision. The same decision again is fine."""
    known = decided.decision
    if known is None or known == decision:
        return
    verdict = "answered with a result" if known.kind == "tool" else "approved" if known.approve else "denied"
    reason = f" ({known.reason})" if known.reason else ""
    when = "" if decided.decided_at is None else f" at {decided.decided_at.isoformat(timespec='seconds')}"
    raise DecidedOtherwise(
        f"the call {decided.tool_call_id} of {decided.tool_name} was {verdict} by {decided.decided_by}{when}{reason}; "
        "a decision holds once"
    )


async def _refuse_if_cancelled(connection: Connection, thread_id: ThreadId) -> None:
    """Locks the thread's parked run. Raises `NoPendingApproval` when a cancel of it is recorded: the cancel came
    first."""
    parked = await connection.execute(
        sa.select(runs.c.cancel_requested_at)
        .where(runs.c.thread_id == thread_id, has_one_of(runs, ACTIVE), runs.c.status == RunStatus.AWAITING_APPROVAL)
        .with_for_update()
    )
    if any(row.cancel_requested_at is not None for row in parked):
        raise NoPendingApproval


async def _store_decision(
    connection: Connection, approval: Approval, decision: Decision, *, by: str, now: datetime, run_id: RunId | None
) -> None:
    """Writes one decision unless one is stored. Raises `Conflict` if another caller decided in the meantime, and
    `InvalidRequest` if it approves a call that only the client can run."""
    if approval.client_side and decision.kind == "approval" and decision.approve:
        raise InvalidRequest(
            f"{approval.tool_name} is run by the client: send its result with the decision 'tool_return', or deny it",
            field="decision",
        )
    written = await connection.execute(
        sa.update(approvals)
        .where(approvals.c.id == approval.id, approvals.c.decided_at.is_(None))
        .values(decision=to_json(decision), decided_at=now, decided_by=by, continued_by=run_id)
    )
    if written.rowcount != 1:
        raise DecidedOtherwise(f"another caller decided approval {approval.id} in the meantime")
    if by == EXPIRY:
        await record(connection, approval.project_id, "approval.expired", approval.id)
    else:
        await record_decision(connection, approval.project_id, approval.id, decision)


_NAMES = (approvals.c.tool_call_id, approvals.c.id, approvals.c.message_id)
"""The names by which a client may decide a call: the id of the call, of its approval, or of the message that asks. All
calls of an answer have the same message."""


async def _decided_before(connection: Connection, thread_id: ThreadId, decisions: Mapping[str, Decision]) -> AskedBy:
    found = await connection.execute(
        sa.select(approvals, runs.c.status, runs.c.fence)
        .join(runs, runs.c.id == approvals.c.continued_by)
        .where(approvals.c.thread_id == thread_id, sa.or_(*(name.in_(decisions) for name in _NAMES)))
        # Some model servers number the calls of each answer from the start, so an earlier turn may have had a call with
        # the same id.
        .order_by(approvals.c.decided_at.desc(), runs.c.number.desc())
    )
    rows = found.mappings().all()
    last = [row for row in rows if row["continued_by"] == rows[0]["continued_by"]]
    named = [{row[name.name] for name in _NAMES if row[name.name] in decisions} for row in last]
    if not last or set().union(*named) != set(decisions):
        raise NoPendingApproval
    for row, names in zip(last, named, strict=True):
        for name in names:
            decision = msgspec.structs.replace(decisions[name], tool_call_id=row["tool_call_id"])
            _refuse_other_decision(approval_of(row), decision)
    if last[0]["status"] not in ACTIVE:
        raise AlreadyDecided
    return AskedBy(last[0]["run_id"], last[0]["fence"], continued_by=last[0]["continued_by"])


async def _lock_parked(connection: Connection, run_id: RunId) -> Run:
    """Locks the run that asked, so that no process can record a cancel of it meanwhile."""
    found = await connection.execute(sa.select(*RUN_COLUMNS).where(runs.c.id == run_id).with_for_update())
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Run {run_id} not found")
    parked = run_of(row)
    if parked.status is not RunStatus.AWAITING_APPROVAL or parked.cancel is not None:
        raise Conflict(f"run {run_id} no longer waits for this decision: it was cancelled")
    return parked
