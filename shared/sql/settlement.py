"""Settling a run: its terminal status, a valid conversation, the end of its log and who is next, in one transaction."""

from datetime import datetime
from typing import Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.clock import unix_ms
from shared.crash_points import DurableWrite
from shared.domain.closing import close_calls, open_calls, returns_event
from shared.domain.compaction import Compaction
from shared.domain.ending import end_events
from shared.domain.errors import MoreInput
from shared.domain.events import encode
from shared.domain.ids import IdMaker, RunId, Seq
from shared.domain.lifecycle import RunStatus, RunTrigger, next_status
from shared.domain.messages import AssistantMessage, Decision, NewMessage, ToolReturn, ToolReturns
from shared.domain.runs import Cause, Run, RunError, Step, Usage
from shared.sql.callback_rows import insert_callback
from shared.sql.columns import to_json
from shared.sql.engine import Database
from shared.sql.event_rows import LogTail, insert_events, merge_small_blocks
from shared.sql.inbox_store import has_undelivered
from shared.sql.message_rows import insert_messages, messages_of_turn, replace_by_summary, take_out_of_context
from shared.sql.run_transitions import apply, hold
from shared.sql.step_rows import upsert_step
from shared.sql.tables import agents, approvals, tool_intents
from shared.sql.thread_line import Ring, input_to_place, lock_thread, next_turn, next_waiting


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends. The caller holds the run's fence."""

    trigger: Literal[RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL]
    stop_reason: str
    now: datetime
    cause: Cause | None = None
    error: RunError | None = None
    usage: Usage = Usage()
    step_count: int = 0
    messages: list[NewMessage] = []
    """The final answer, or what was shown of the one that was cut off."""
    step: Step | None = None
    tail: LogTail = LogTail(Seq(2), ())
    """Events that SQL does not have yet; the end of the log follows on them."""
    known_returns: dict[str, ToolReturn] = {}
    """Results of tool calls that were there before the run was cut off."""
    denial_reason: str = ""
    rollback: bool = False
    compaction: Compaction | None = None
    unless_more_input: bool = False
    """The run has answered everything, and ends only if that is still so."""


class Settled(NamedTuple):
    """What settling did: the run as it is for ever, entries that Redis should get, and who is next on the thread."""

    run: Run
    tail: LogTail
    next: Ring | None


class SettlementStore:
    """Writes the end of runs."""

    def __init__(self, database: Database, ids: IdMaker) -> None:
        self._database = database
        self._ids = ids

    async def settle(self, run: Run, end: Settlement) -> Settled:
        """Ends a run whose fence the caller holds. Raises `StaleFence`, `IllegalTransition` or `MoreInput`, and changes
        nothing."""
        async with self._database.write(DurableWrite.SETTLE) as connection:
            # The thread first, as everybody who takes both locks does; the run before its messages, so that the second
            # of two who end it is told so instead of stumbling over the first one's rows.
            await lock_thread(connection, run.thread_id)
            await hold(connection, run.id, end.trigger, held=run.fence)
            if end.unless_more_input and await has_undelivered(connection, run.id):
                raise MoreInput
            turn = run.turn or await next_turn(connection, run.thread_id)
            run = msgspec.structs.replace(run, turn=turn)
            closing = await self._close_conversation(connection, run, end)
            if end.compaction is not None:
                await replace_by_summary(connection, run, end.compaction)
            tail = _log_to_the_end(run, end, closing)
            values = {
                "stop_reason": end.stop_reason,
                "cause": end.cause,
                "error": None if end.error is None else to_json(end.error),
                "turn": turn,
                "usage": to_json(end.usage),
                "step_count": end.step_count,
                "last_seq": max(run.last_seq, tail.last),
                "checkpoint_seq": max(run.last_seq, tail.last),
                "completed_at": end.now,
            }
            settled = await apply(connection, run.id, end.trigger, held=run.fence, now=end.now, values=values)
            await insert_events(connection, run.id, tail)
            await merge_small_blocks(connection, run.id)
            if end.step is not None:
                await upsert_step(connection, run, end.step)
            await _deny_what_waits(connection, run.id, end)
            if run.options.compaction is None:
                await connection.execute(
                    sa.update(agents).where(agents.c.id == run.agent_id).values(last_stop_reason=end.stop_reason)
                )
            await insert_callback(connection, settled, end.now)
            return Settled(settled, tail, await next_waiting(connection, run.thread_id))

    async def _close_conversation(self, connection: AsyncConnection, run: Run, end: Settlement) -> list[NewMessage]:
        """Stores what the run leaves behind; gives back the messages that had to be added for it to be valid."""
        if end.rollback:
            await take_out_of_context(connection, run.id, "rolled_back")
        else:
            await insert_messages(connection, run, [*input_to_place(run), *end.messages])
        history = await messages_of_turn(connection, run.thread_id, run.turn or 0)
        mine = [message.body for message in history if message.run_id == run.id]
        left_nothing = not any(isinstance(body, AssistantMessage | ToolReturns) for body in mine)
        open_ = open_calls(history)
        closing: list[NewMessage] = []
        if open_ is not None:
            started = await connection.execute(
                sa.select(tool_intents.c.tool_call_id).where(tool_intents.c.run_id == run.id)
            )
            closing = close_calls(
                open_,
                known=end.known_returns,
                started={row.tool_call_id for row in started},
                why="cancel" if end.trigger is RunTrigger.CANCEL else "error",
                reason=end.denial_reason,
                ids=self._ids,
                now=end.now,
            )
        elif left_nothing and end.trigger is RunTrigger.FAIL:
            # A turn that brought nothing leaves nothing: sent again, the model does not see it twice.
            await take_out_of_context(connection, run.id, "rolled_back")
        late_input = [] if end.rollback else run.input
        await insert_messages(connection, run, [*closing, *late_input])
        return closing


def _log_to_the_end(run: Run, end: Settlement, closing: list[NewMessage]) -> LogTail:
    if run.status is RunStatus.AWAITING_APPROVAL:
        # The stream of a parked run ended when it was parked, and a stream ends once.
        return LogTail(Seq(run.last_seq + 1), ())
    at = unix_ms(end.now)
    events = [event for message in closing if (event := returns_event(message, at)) is not None]
    ending = end_events(
        at=at,
        status=next_status(run.status, end.trigger),
        cause=end.cause,
        stop_reason=end.stop_reason,
        error=end.error,
        usage=end.usage,
        step_count=end.step_count,
        status_events=run.options.status_events,
    )
    return LogTail(end.tail.first, [*end.tail.entries, *map(encode, [*events, *ending])])


async def _deny_what_waits(connection: AsyncConnection, run_id: RunId, end: Settlement) -> None:
    denial = Decision(tool_call_id="", approve=False, reason=end.denial_reason)
    await connection.execute(
        sa.update(approvals)
        .where(approvals.c.run_id == run_id, approvals.c.decided_at.is_(None))
        .values(decision=to_json(denial), decided_at=end.now, decided_by=end.cause or "system")
    )
