"""What a worker writes while a run goes on: answers, intents, results. Every write is fenced and is one transaction.

A step has two checkpoints when it calls tools: the answer (so that a crash cannot make the model ask for the same
tools a second time) and the results. Between them the intents say which tools had been started.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.clock import unix_ms
from shared.crash_points import DurableWrite
from shared.domain.approvals import Approval
from shared.domain.ending import end_events
from shared.domain.errors import CancelMode, CancelRequested
from shared.domain.events import encode
from shared.domain.ids import RunId, Seq
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import NewMessage, ToolCall
from shared.domain.runs import Run, Step, ToolIntent, Usage
from shared.sql.approval_rows import insert_approvals
from shared.sql.callback_rows import insert_callback
from shared.sql.columns import to_json
from shared.sql.engine import Database
from shared.sql.event_rows import LogTail, insert_events
from shared.sql.message_rows import insert_messages
from shared.sql.run_transitions import apply, keep
from shared.sql.step_rows import upsert_step
from shared.sql.tables import agents, messages, runs, tool_intents


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What has become durable: messages, the step as it stands, usage so far, and the events that showed it."""

    now: datetime
    messages: list[NewMessage]
    tail: LogTail
    usage: Usage
    step_count: int
    step: Step | None = None


class CheckpointStore:
    """Writes the progress of running runs. Every method raises `StaleFence` when the run has a new owner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self, run: Run, checkpoint: Checkpoint, *, starting: Sequence[ToolCall] = (), again: bool = False
    ) -> None:
        """Stores a checkpoint; with it, that the tools of the calls `starting` are about to be started.

        `again`: it may have been stored before, by a commit whose answer was lost. It is stored once.
        """
        async with self._database.write(DurableWrite.CHECKPOINT) as connection:
            await keep(connection, run.id, held=run.fence, now=checkpoint.now, values=_progress(run, checkpoint))
            # Asked with the run's row locked: an earlier try may still be under way.
            if again and await _is_recorded(connection, checkpoint):
                return
            await _store(connection, run, checkpoint)
            await _insert_intents(connection, run, starting, checkpoint.now)

    async def record_intents(self, run: Run, calls: Sequence[ToolCall], now: datetime) -> None:
        """Stores that the tools of these calls are about to be started."""
        async with self._database.write(DurableWrite.INTENT) as connection:
            await keep(connection, run.id, held=run.fence, now=now, values={})
            await _insert_intents(connection, run, calls, now)

    async def reserve(self, run: Run, up_to: Seq, log: str, now: datetime) -> None:
        """Stores that events up to this one may be shown from now on, in this log (`OwnedLog.reserved_as`)."""
        async with self._database.write(DurableWrite.RESERVE) as connection:
            values = {"reserved_seq": up_to, "reserved_log": log}
            await keep(connection, run.id, held=run.fence, now=now, values=values)

    async def record_log(self, run: Run, tail: LogTail, now: datetime) -> None:
        """Stores events of a step that is not finished, so that a long answer does not live in Redis alone."""
        async with self._database.write() as connection:
            await keep(connection, run.id, held=run.fence, now=now, values={"last_seq": tail.last})
            await insert_events(connection, run.id, tail)

    async def leave(self, run: Run, tail: LogTail, shown: Seq, now: datetime) -> None:
        """Hands an unfinished step over: stores its events, of which `shown` is the last that anybody has seen. Without
        blame: its worker lives, so the claims so far do not count as stalled."""
        async with self._database.write() as connection:
            values = {"last_seq": shown, "reserved_seq": shown, "stalled_claims": 0}
            await keep(connection, run.id, held=run.fence, now=now, values=values)
            await insert_events(connection, run.id, tail)

    async def park(self, run: Run, checkpoint: Checkpoint, asked: Sequence[Approval]) -> LogTail:
        """Stores the answer and its approval requests and parks the run; gives the entries that end its stream.

        Raises `CancelRequested`, and stores nothing, when a cancel was recorded in the meantime: a parked run has no
        worker that would see it.
        """
        ending = end_events(
            at=unix_ms(checkpoint.now),
            status=RunStatus.AWAITING_APPROVAL,
            cause=None,
            stop_reason="requires_approval",
            error=None,
            usage=checkpoint.usage,
            step_count=checkpoint.step_count,
            status_events=run.options.status_events,
        )
        tail = LogTail(checkpoint.tail.first, [*checkpoint.tail.entries, *map(encode, ending)])
        whole = msgspec.structs.replace(checkpoint, tail=tail)
        async with self._database.write(DurableWrite.PARK) as connection:
            await _raise_if_cancelled(connection, run.id)
            parked = await apply(
                connection,
                run.id,
                RunTrigger.PARK,
                held=run.fence,
                now=checkpoint.now,
                values={
                    **_progress(run, whole),
                    "stop_reason": "requires_approval",
                    "completed_at": checkpoint.now,
                },
            )
            await _store(connection, run, whole)
            await insert_approvals(connection, asked)
            await connection.execute(
                sa.update(agents).where(agents.c.id == run.agent_id).values(last_stop_reason="requires_approval")
            )
            await insert_callback(connection, parked, checkpoint.now)
        return tail

    async def intents_of(self, run_id: RunId) -> dict[str, ToolIntent]:
        """The run's intents by tool call id."""
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(tool_intents).where(tool_intents.c.run_id == run_id))
            return {row["tool_call_id"]: ToolIntent(**row) for row in found.mappings()}


async def _is_recorded(connection: AsyncConnection, checkpoint: Checkpoint) -> bool:
    first = sa.select(messages.c.id).where(messages.c.id == checkpoint.messages[0].id)
    return (await connection.execute(first)).one_or_none() is not None


async def _raise_if_cancelled(connection: AsyncConnection, run_id: RunId) -> None:
    found = await connection.execute(sa.select(runs.c.cancel_mode).where(runs.c.id == run_id).with_for_update())
    mode = found.scalar_one_or_none()
    if mode is not None:
        raise CancelRequested(CancelMode(mode))


def _progress(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    last = max(run.last_seq, checkpoint.tail.last)
    return {
        "stalled_claims": 0,
        "usage": to_json(checkpoint.usage),
        "step_count": checkpoint.step_count,
        "last_seq": last,
        "checkpoint_seq": last,
    }


async def _store(connection: AsyncConnection, run: Run, checkpoint: Checkpoint) -> None:
    await insert_messages(connection, run, checkpoint.messages)
    await insert_events(connection, run.id, checkpoint.tail)
    if checkpoint.step is not None:
        await upsert_step(connection, run, checkpoint.step)


async def _insert_intents(connection: AsyncConnection, run: Run, calls: Sequence[ToolCall], now: datetime) -> None:
    rows = {
        call.id: {
            "run_id": run.id, "tool_call_id": call.id, "tool_name": call.name, "state": "started", "started_at": now
        }
        for call in calls
    }  # fmt: skip
    if rows:
        # Some servers number the calls of every answer anew: the id may be that of a call of an earlier step.
        same = sa.and_(tool_intents.c.run_id == run.id, tool_intents.c.tool_call_id.in_(rows))
        await connection.execute(sa.delete(tool_intents).where(same))
        await connection.execute(sa.insert(tool_intents), list(rows.values()))
