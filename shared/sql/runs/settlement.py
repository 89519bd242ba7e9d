"""Ends a run in one transaction, which stores its status, a valid conversation, the end of its log, its callback, and
the dispatch of the thread's next run. Parking a run ends its stream in the same way.

If the answer to the commit is lost, the caller repeats the end. The store writes it once, and each repetition returns
the same result: if a run has ended under the caller's fence, the caller has ended it, or the run no longer needs the
caller.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.concurrency import unix_ms
from shared.crash_points import CrashPoint
from shared.domain.approvals import Approval
from shared.domain.errors import CancelRequested, MoreInput
from shared.domain.events import encode
from shared.domain.groups import EndedTurn
from shared.domain.ids import IdMaker, Seq
from shared.domain.lifecycle import TERMINAL, RunStatus, RunTrigger, next_status
from shared.domain.limits import priced_as_set_aside
from shared.domain.log_writer import LogTail
from shared.domain.messages import AssistantMessage, Decision, NewMessage, ToolReturn, ToolReturns
from shared.domain.runs import NO_KEYS, Compaction, Dispatch, Run, Step, Usage
from shared.domain.settling import PARKED, RunEnd, close_calls, end_events, open_calls, returns_event
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.history.messages import (
    add_to_turn,
    has_compacted_its_own,
    has_undelivered,
    in_turn,
    insert_messages,
    messages_of_turn,
    replace_by_summary,
    roll_back,
    take_out_of_context,
    with_turn,
)
from shared.sql.history.thread_queue import has_next_in_queue, input_to_place, next_in_queue, next_turn, thread_lock
from shared.sql.portable import PositionOf
from shared.sql.run_tables import approvals, callbacks, webhook_deliveries
from shared.sql.runs.approvals import insert_approvals
from shared.sql.runs.budgets import count_usage, has_accounts
from shared.sql.runs.checkpoints import Checkpoint, close_tool_run, intents_of, store_step
from shared.sql.runs.rows import LockedRun, apply, get_run, input_of, insert_run, lock_run, lock_run_and_thread, refusal
from shared.sql.runs.run_store import submitted_before
from shared.sql.runs.steps import (
    count_small_blocks,
    first_token,
    insert_events,
    merge_small_blocks,
    read_events,
    upsert_step,
)
from shared.sql.tables import agent_groups, agents, group_turns, to_json, webhook_endpoints

# Other rows that the end of a run changes in its transaction: its agent, the outbox of callbacks and the approvals that
# it waited for.


_STOPPED = (
    sa.update(agents)
    .where(agents.c.id == sa.bindparam("of_agent"))
    .values(last_stop_reason=sa.bindparam("stop_reason"))
)


def set_last_stop_reason(connection: Connection, run: Run, stop_reason: str | None) -> None:
    """Stores how the agent's newest run stopped. The write is deferred."""
    if run.answers_messages:
        connection.defer(_STOPPED, {"of_agent": run.agent_id, "stop_reason": stop_reason})


async def enqueue_callback(connection: Connection, run: Run, now: datetime) -> None:
    """Puts the run's callback into the outbox, if its client wants one and the outbox has none."""
    if run.callback_url is None:
        return
    row = {"run_id": run.id, "project_id": run.project_id, "url": run.callback_url, "attempts": 0}
    unless_there = connection.insert(callbacks).on_conflict_do_nothing(index_elements=[callbacks.c.run_id])
    await connection.execute(unless_there.values(row | {"next_attempt_at": now}))


_OF_THE_END = {
    "project_id": sa.bindparam("of_project", type_=sa.Text),
    "run_id": sa.bindparam("of_run", type_=sa.Text),
    "outcome": sa.bindparam("came_to", type_=sa.Text),
    "created_at": sa.bindparam("now", type_=webhook_deliveries.c.created_at.type),
    "next_attempt_at": sa.bindparam("now", type_=webhook_deliveries.c.created_at.type),
    "attempts": sa.literal_column("0", sa.Integer),
}
_TELL_ENDPOINTS = sa.insert(webhook_deliveries).from_select(
    ["endpoint_id", *_OF_THE_END],
    sa.select(webhook_endpoints.c.id, *_OF_THE_END.values()).where(
        webhook_endpoints.c.project_id == sa.bindparam("of_project", type_=sa.Text),
        webhook_endpoints.c.dialect == sa.bindparam("of_dialect", type_=sa.Text),
        PositionOf(webhook_endpoints.c.outcomes, sa.bindparam("listed", type_=sa.Text)) > 0,
    ),
)


def enqueue_webhooks(connection: Connection, run: Run, end: RunEnd, now: datetime) -> None:
    """Puts the end of a background run into the outbox of webhooks, one row for each endpoint of the project that
    subscribes to it. The writes are deferred. Each run has one such event: a parked run has it when it parks, and no
    other when it ends."""
    if not run.options.background:
        return
    given = {"of_project": run.project_id, "of_run": run.id, "of_dialect": run.options.dialect, "now": now}
    connection.defer(_TELL_ENDPOINTS, {**given, "came_to": end.outcome, "listed": to_json(end.outcome)})


async def deny_pending(connection: Connection, run: Run, *, reason: str, cause: str | None, now: datetime) -> None:
    """Denies every call of the run that waits for a person. `cause` is the cause of the run's end."""
    denial = Decision(tool_call_id="", approve=False, reason=reason)
    is_waiting = (approvals.c.run_id == run.id, approvals.c.decided_at.is_(None))
    if cause == "approval_expired":
        waiting = await connection.execute(sa.select(approvals.c.id).where(*is_waiting))
        await record(connection, run.project_id, "approval.expired", *waiting.scalars())
    await connection.execute(
        sa.update(approvals)
        .where(*is_waiting)
        .values(decision=to_json(denial), decided_at=now, decided_by=cause or "system")
    )


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The data that is stored when a run ends. The caller has the run's fence."""

    end: RunEnd
    now: datetime
    tail: LogTail = LogTail(Seq(2), ())
    """Events that SQL lacks; the end of the log comes after them."""
    usage: Usage = Usage()
    lost: Usage = Usage()
    """Usage of calls that were lost with their workers, which `usage` lacks. It counts only if a worker had reserved an
    amount for them, and costs that amount, because an API process knows no prices."""
    step_count: int = 0
    messages: list[NewMessage] = []
    """The final answer, or the part of an interrupted answer that readers have seen."""
    step: Step | None = None
    shown_at: int = 0
    """As in `Checkpoint`."""
    known_returns: dict[str, ToolReturn] = {}
    """Results of tool calls that ended before the run was interrupted."""
    denial_reason: str = ""
    rollback: bool = False
    compaction: Compaction | None = None
    unless_more_input: bool = False
    """End the run only if no message waits for its delivery to it."""


class Settled(NamedTuple):
    """The result of a settle: the run in its final state, the entries that Redis should get, and the next run of the
    thread."""

    run: Run
    tail: LogTail
    next: Dispatch | None


_SEEN = with_turn(
    has_undelivered().label("has_more_input"),
    has_next_in_queue().label("has_next"),
    count_small_blocks().label("small_blocks"),
)
"""The query at the end of a run. It begins when the transaction has the locks, so it sees all earlier writes."""


class SettlementStore:
    """Writes the end of runs."""

    def __init__(self, database: Database, ids: IdMaker) -> None:
        self._database = database
        self._ids = ids

    async def settle(self, run: Run, settlement: Settlement) -> Settled:
        """Ends a run whose fence the caller has. Changes nothing if it raises `StaleFence`, `IllegalTransition` or
        `MoreInput`."""
        async with self._database.write(CrashPoint.SETTLE) as connection:
            # The locks come before the messages, so that the second of two processes that end a run gets `StaleFence`
            # instead of a conflict with the rows of the first.
            locked = await lock_run_and_thread(connection, run.id)
            if locked.fence == run.fence and locked.status in TERMINAL:
                return await _settled_before(connection, run, settlement.tail.first)
            if locked.fence != run.fence or locked.status is not run.status:
                raise refusal(locked, run.id, settlement.end.trigger, run.fence)
            looked_at = {"run_id": run.id, "of_thread": run.thread_id, "of_turn": run.turn}
            rows = (await connection.execute(_SEEN, looked_at)).mappings().all()
            if settlement.unless_more_input and rows[0]["has_more_input"]:
                raise MoreInput
            settled = await self._settle(connection, run, locked, settlement, in_turn(rows))
            await merge_small_blocks(connection, run.id, rows[0]["small_blocks"] + 1)
            has_next = rows[0]["has_next"]
            return settled._replace(next=await next_in_queue(connection, run.thread_id) if has_next else None)

    async def store_refused(
        self, run: Run, given: Sequence[NewMessage], settlement: Settlement, *, again: bool = False
    ) -> Run:
        """Stores a run that never begins, together with its end, whatever its thread waits for. Returns the run in its
        final state. It was never in the thread's queue, so its end starts no next run and does not change the agent's
        last stop reason. `again`: an earlier try may have stored this very run and lost its answer."""
        async with self._database.write(CrashPoint.SUBMIT_REFUSED, thread_lock(run.thread_id)) as connection:
            seen = await submitted_before(connection, run, NO_KEYS, again=again)
            if seen is not None:
                return seen
            stored = (await insert_run(connection, run, given)).run
            locked = LockedRun(stored.status, stored.fence, stored.owner, stored.last_seq, None, stored.usage, None)
            return (await self._settle(connection, stored, locked, settlement, [], has_begun=False)).run

    async def park(self, run: Run, checkpoint: Checkpoint, asked: Sequence[Approval]) -> LogTail:
        """Stores the answer and its approval requests and parks the run. Returns the entries that end its stream.

        Raises `StaleFence`. Raises `CancelRequested`, and stores nothing, when a cancel was recorded in the meantime: a
        parked run has no worker that would see it.
        """
        async with self._database.write(CrashPoint.PARK) as connection:
            locked = await lock_run(connection, run.id)
            if locked.fence == run.fence and locked.status is not RunStatus.RUNNING:
                return await _stored_from(connection, run, checkpoint.tail.first)
            if locked.fence != run.fence:
                raise refusal(locked, run.id, RunTrigger.PARK, run.fence)
            if locked.cancel_mode is not None:
                raise CancelRequested(locked.cancel_mode)
            log_end = _log_end(run, PARKED, checkpoint.now, checkpoint.usage, checkpoint.step_count)
            tail = LogTail(checkpoint.tail.first, [*checkpoint.tail.entries, *log_end])
            values = {
                **checkpoint.columns(run.id, tail.last),
                "stop_reason": PARKED.stop_reason,
                "completed_at": checkpoint.now,
            }
            await store_step(connection, run, checkpoint)
            await insert_events(connection, run.id, tail.behind(locked.last_seq))
            set_last_stop_reason(connection, run, PARKED.stop_reason)
            await apply(connection, run.id, RunTrigger.PARK, fence=run.fence, now=checkpoint.now, values=values)
            await insert_approvals(connection, asked)
            await enqueue_callback(connection, run, checkpoint.now)
            enqueue_webhooks(connection, run, PARKED, checkpoint.now)
            await count_usage(connection, run.id, locked, checkpoint.usage)
            return tail

    async def _settle(
        self,
        connection: Connection,
        run: Run,
        locked: LockedRun,
        settlement: Settlement,
        turn: Sequence[RowMapping],
        *,
        has_begun: bool = True,
    ) -> Settled:
        end, now = settlement.end, settlement.now
        # If accounts pay, a worker reserves an amount before each call. A worker that died without one was in no call.
        was_in_call = locked.reservation is not None
        if settlement.lost.estimated and (was_in_call or not await has_accounts(connection, run.project_id)):
            usage = settlement.usage.plus(priced_as_set_aside(settlement.lost, locked.reservation))
            settlement = msgspec.structs.replace(settlement, usage=usage)
        run = msgspec.structs.replace(run, turn=run.turn or await next_turn(connection, run.thread_id))
        added = await self._close(connection, run, settlement, turn)
        if settlement.compaction is not None:
            await replace_by_summary(connection, run, settlement.compaction)
        tail = _tail_to_the_end(run, settlement, added)
        last_seq = max(locked.last_seq, tail.last)
        values = {
            "stop_reason": end.stop_reason,
            "cause": end.cause,
            "error": None if end.error is None else to_json(end.error),
            "turn": run.turn,
            "usage": to_json(settlement.usage),
            "step_count": settlement.step_count,
            "last_seq": last_seq,
            "checkpoint_seq": last_seq,
            "completed_at": now,
            "waits_until": None,
            "waits_for": None,
            **first_token(run.id, settlement.step, settlement.shown_at),
        }
        await insert_events(connection, run.id, tail.behind(locked.last_seq))
        if settlement.step is not None:
            upsert_step(connection, run, settlement.step)
        if has_begun:
            set_last_stop_reason(connection, run, end.stop_reason)
            enqueue_turn_of(connection, run, end.trigger, now)
        settled = await apply(connection, run.id, end.trigger, fence=run.fence, now=now, values=values)
        if run.status is RunStatus.AWAITING_APPROVAL:
            await deny_pending(connection, run, reason=settlement.denial_reason, cause=end.cause, now=settlement.now)
        else:
            enqueue_webhooks(connection, run, end, now)
        await enqueue_callback(connection, run, now)
        await count_usage(connection, run.id, locked, settlement.usage)
        return Settled(settled, tail, None)

    async def _close(
        self, connection: Connection, run: Run, settlement: Settlement, turn: Sequence[RowMapping]
    ) -> list[NewMessage]:
        """Stores the results of the run. Returns the messages that the log must show before its end."""
        if run.options.tool_name is not None:
            returns, end = settlement.known_returns, settlement.end
            return [await close_tool_run(connection, run.id, returns, end, self._ids, settlement.now)]
        if run.has_own_thread:
            return []
        return await self._close_conversation(connection, run, settlement, turn)

    async def _close_conversation(
        self, connection: Connection, run: Run, settlement: Settlement, turn: Sequence[RowMapping]
    ) -> list[NewMessage]:
        """Stores the messages that the run adds to its turn. Returns those that were missing for a valid
        conversation."""
        # The history has all input of a claimed run, unless the input came with a decision.
        is_placed = run.fence > 0 and run.continues is None
        given = [] if is_placed or settlement.rollback else await input_of(connection, run.id)
        if settlement.rollback:
            await roll_back(connection, run)
            turn = await messages_of_turn(connection, run)
        added = [] if settlement.rollback else [*input_to_place(run, given), *settlement.messages]
        history = add_to_turn(connection, run, turn, added)
        mine = [message.body for message in history if message.run_id == run.id]
        left_nothing = not any(isinstance(body, AssistantMessage | ToolReturns) for body in mine)
        open_ = open_calls(history)
        closing: list[NewMessage] = []
        if open_ is not None:
            intents = await intents_of(connection, run.id)
            finished = {call_id: result for call_id, result in intents.items() if result is not None}
            closing = close_calls(
                open_,
                known=finished | settlement.known_returns,
                started=set(intents),
                why=settlement.end.of_open_calls,
                reason=settlement.denial_reason,
                ids=self._ids,
                now=settlement.now,
            )
        elif (
            left_nothing
            and settlement.end.trigger is RunTrigger.FAIL
            and not await has_compacted_its_own(connection, run.id)
        ):
            # A turn without output leaves the context. If the client sends its input again, the model sees it once.
            await take_out_of_context(connection, run.id)
        await insert_messages(connection, run, [*closing, *given])
        return closing


async def _settled_before(connection: Connection, run: Run, first: Seq) -> Settled:
    """Returns the result of the first commit of this end, whose answer was lost. It may dispatch the next run a second
    time, which is harmless."""
    settled = await get_run(connection, run.id)
    was_parked = run.status is RunStatus.AWAITING_APPROVAL
    tail = _nothing_to_send(run) if was_parked else await _stored_from(connection, run, first)
    return Settled(settled, tail, await next_in_queue(connection, run.thread_id))


async def _stored_from(connection: Connection, run: Run, first: Seq) -> LogTail:
    """Returns the entries in SQL from this number on, which is the first one of the run's last owner."""
    return LogTail(first, [entry for _, entry in await read_events(connection, run.id, Seq(first - 1))])


def _nothing_to_send(parked: Run) -> LogTail:
    """Returns no entries: the stream of a parked run ended when the run was parked, and a stream ends once."""
    return LogTail(Seq(parked.last_seq + 1), ())


def _tail_to_the_end(run: Run, settlement: Settlement, added: list[NewMessage]) -> LogTail:
    if run.status is RunStatus.AWAITING_APPROVAL:
        return _nothing_to_send(run)
    tail = settlement.tail
    at = unix_ms(settlement.now)
    shown = [encode(event) for message in added if (event := returns_event(message, at)) is not None]
    log_end = _log_end(run, settlement.end, settlement.now, settlement.usage, settlement.step_count)
    return LogTail(tail.first, [*tail.entries, *shown, *log_end])


def _log_end(run: Run, end: RunEnd, now: datetime, usage: Usage, step_count: int) -> list[bytes]:
    status = next_status(run.status, end.trigger)
    events = end_events(
        end, at=unix_ms(now), status=status, usage=usage, step_count=step_count, status_events=run.options.status_events
    )
    return [encode(event) for event in events]


# Stores the turns of agents for their sleep-time agents.
#
# The transaction that ends a turn writes a row for each group that the turn's agent manages, and does nothing more for
# them. `definitions/due_turns.py` reads the rows.


_TURN = {
    "project_id": sa.bindparam("of_project", type_=sa.Text),
    "thread_id": sa.bindparam("of_thread", type_=sa.Text),
    "turn": sa.bindparam("of_turn", type_=sa.Integer),
    "cause_id": sa.bindparam("of_cause", type_=sa.Text),
    "submitted_by": sa.bindparam("of_key", type_=sa.Text),
    "counts": sa.bindparam("counts", type_=sa.Boolean),
    "state": sa.literal_column("'new'", sa.Text),
    "look_at": sa.bindparam("now", type_=group_turns.c.look_at.type),
}
_TELL_GROUPS = sa.insert(group_turns).from_select(
    ["group_id", *_TURN],
    sa.select(agent_groups.c.id, *_TURN.values()).where(
        agent_groups.c.manager_agent_id == sa.bindparam("of_agent", type_=sa.Text),
        agent_groups.c.project_id == sa.bindparam("of_project", type_=sa.Text),
        agent_groups.c.is_on,
    ),
)


def enqueue_turn(connection: Connection, ended: EndedTurn, now: datetime) -> None:
    """Puts a turn into the outbox of the group that its agent manages, if there is one. The statement is deferred."""
    given = {
        "of_agent": ended.agent_id,
        "of_project": ended.project_id,
        "of_thread": ended.thread_id,
        "of_turn": ended.turn,
        "of_cause": ended.cause_id,
        "of_key": ended.submitted_by,
        "counts": ended.counts,
        "now": now,
    }
    connection.defer(_TELL_GROUPS, given)


def enqueue_turn_of(connection: Connection, run: Run, trigger: RunTrigger, now: datetime) -> None:
    """`enqueue_turn` for a run that ends. Only a completed turn counts, but the agents get the messages of other turns,
    too."""
    if not run.answers_messages or run.turn is None:
        return
    ended = EndedTurn(
        agent_id=run.agent_id,
        project_id=run.project_id,
        thread_id=run.thread_id,
        turn=run.turn,
        cause_id=run.id,
        submitted_by=run.options.submitted_by,
        counts=trigger is RunTrigger.COMPLETE,
    )
    enqueue_turn(connection, ended, now)
