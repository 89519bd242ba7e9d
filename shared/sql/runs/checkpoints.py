"""The writes of a worker during a run: answers, intents, results, events. Each is one transaction, which fails if the
worker's fence is old. A worker may repeat a write if the answer to its commit was lost; this changes nothing.

A step that calls tools has two checkpoints. The first stores the answer, so that after a crash the model does not ask
for the same tools a second time; the second stores the results. Between them, intents record which tools were about to
start.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from shared.crash_points import CrashPoint, crash_point
from shared.domain.effects import SettledEffect
from shared.domain.ids import BlockId, Fence, IdMaker, RunId, Seq
from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import RunStatus
from shared.domain.limits import Account
from shared.domain.log_writer import Entries, LogTail, consecutive
from shared.domain.messages import AssistantMessage, NewMessage, ToolCall, ToolReturn, ToolReturns
from shared.domain.runs import Compaction, Run, Step, Usage, WaitsFor, asked_call
from shared.domain.settling import RunEnd, unfinished_return
from shared.sql.connection import Connection
from shared.sql.engine import Database, Store
from shared.sql.group_commit import GroupCommit
from shared.sql.history.messages import insert_messages, replace_by_summary
from shared.sql.run_tables import runs, tool_intents
from shared.sql.runs.budgets import charge_unreserved, count_usage
from shared.sql.runs.effects import ATTEMPT, forget_intents, insert_results, store_intents, store_settled_effect
from shared.sql.runs.journal import (
    FORGET_JOURNAL,
    add_entry,
    entries_of,
    state_of_thread,
    store_entries,
    store_entry_alone,
)
from shared.sql.runs.rows import LockedRun, input_of, lock_owned, lock_run, update_owned
from shared.sql.runs.steps import first_token, insert_events, packed_blocks, upsert_step
from shared.sql.tables import from_json, microseconds, to_json


class EditedBlock(msgspec.Struct, frozen=True):
    """A block that an edit has changed."""

    id: BlockId
    version: int
    """The version from which the edit was computed. The edited block has the next one."""


class FinishedEdit(msgspec.Struct, frozen=True):
    """A stored edit: the result for the model, and the changed blocks."""

    result: ToolReturn
    edited: Sequence[EditedBlock] = ()


class _StoredResult(ToolReturn, frozen=True):
    """The stored result. Readers can also decode it as a plain `ToolReturn`."""

    edited: Sequence[EditedBlock] = ()


async def finish_intent(connection: Connection, run_id: RunId, finished: FinishedEdit, now: datetime) -> None:
    """Stores the result of a call, in the transaction that stores the call's effect."""
    result = finished.result
    is_it = (tool_intents.c.run_id == run_id, tool_intents.c.tool_call_id == result.tool_call_id)
    ended = {
        "state": "finished",
        "result": to_json(_StoredResult(**msgspec.structs.asdict(result), edited=finished.edited)),
    }
    # The row has the time and the number of the tool's starts. A call that never started has no row.
    if (await connection.execute(sa.update(tool_intents).where(*is_it).values(**ended))).rowcount == 0:
        place = {"run_id": run_id, "tool_call_id": result.tool_call_id, "tool_name": result.tool_name}
        await connection.execute(sa.insert(tool_intents).values(**place, **ended, started_at=now))


async def finished_edit(connection: Connection, run_id: RunId, call_id: str) -> FinishedEdit | None:
    """Returns the result of a call; None if none was stored with the call's effect."""
    found = await connection.execute(
        sa.select(tool_intents.c.result).where(
            tool_intents.c.run_id == run_id, tool_intents.c.tool_call_id == call_id, tool_intents.c.result.is_not(None)
        )
    )
    text = found.scalar_one_or_none()
    if text is None:
        return None
    return FinishedEdit(from_json(text, ToolReturn), from_json(text, _StoredResult).edited)


async def intents_of(connection: Connection, run_id: RunId) -> dict[str, ToolReturn | None]:
    """The ids of the run's calls whose tools were about to start, with the results that are stored."""
    found = await connection.execute(
        sa.select(tool_intents.c.tool_call_id, tool_intents.c.result).where(tool_intents.c.run_id == run_id)
    )
    return {row.tool_call_id: None if row.result is None else from_json(row.result, ToolReturn) for row in found}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a checkpoint: messages, the step's present state, usage so far, and the events that showed them."""

    now: datetime
    messages: list[NewMessage]
    tail: LogTail
    usage: Usage
    step_count: int
    step: Step | None = None
    shown_at: int = 0
    """When readers got the first piece of an answer, if SQL may lack that time; in Unix milliseconds, 0 for none."""
    body_state: bytes | None = None
    """The body's own state. None keeps the stored one."""
    journal: Sequence[JournalEntry] = ()
    """Entries of the turn's journal that are new, or have changed."""

    def columns(self, run_id: RunId, last_seq: Seq) -> dict[str, Any]:
        """Returns the run's columns after the checkpoint. `last_seq` is the number of the last event in SQL then."""
        return {
            "attempts_without_progress": 0,
            "usage": to_json(self.usage),
            "step_count": self.step_count,
            "last_seq": last_seq,
            "checkpoint_seq": last_seq,
            **first_token(run_id, self.step, self.shown_at),
            **({} if self.body_state is None else {"body_state": self.body_state}),
        }


class Spent(NamedTuple):
    """A finished model call, and the run's usage and steps with it."""

    step: Step
    usage: Usage
    step_count: int
    accounts: Sequence[Account]
    """The accounts that pay."""


class CheckpointStore:
    """Writes the progress of running runs. Every write raises `StaleFence` if the run has a new owner. With `together`,
    one transaction may store events of several runs."""

    def __init__(self, database: Database, together: GroupCommit | None = None) -> None:
        self._database = database
        self._together = together

    async def record(self, run: Run, checkpoint: Checkpoint, *, starting: Sequence[ToolCall] = ()) -> None:
        """Stores a checkpoint, and that the tools of the calls `starting` are about to start."""
        async with self._database.write(CrashPoint.CHECKPOINT) as connection:
            locked, last_seq = await lock_and_store(connection, run, checkpoint.tail)
            await store_step(connection, run, checkpoint, starting)
            await count_usage(connection, run.id, locked, checkpoint.usage)
            update_owned(connection, run.id, checkpoint.now, checkpoint.columns(run.id, last_seq))

    async def compact(
        self, run: Run, compaction: Compaction, tail: LogTail, usage: Usage, now: datetime, *, shown_at: int = 0
    ) -> None:
        """Stores a compaction in the middle of a run, with the events that show it. A repetition changes nothing.
        `shown_at` is as in `Checkpoint`: a later owner cannot learn it from the log any more.

        The run's next owner continues after those events. This does not count as progress, because no step has ended.
        """
        async with self._database.write(CrashPoint.COMPACT) as connection:
            locked, last_seq = await lock_and_store(connection, run, tail)
            await replace_by_summary(connection, run, compaction)
            await count_usage(connection, run.id, locked, usage)
            values = {"usage": to_json(usage), "last_seq": last_seq, "checkpoint_seq": last_seq}
            update_owned(connection, run.id, now, {**values, **first_token(run.id, None, shown_at)})

    async def record_intents(
        self,
        run: Run,
        calls: Sequence[ToolCall],
        now: datetime,
        *,
        results: Sequence[ToolReturn] = (),
        attempt: int = 1,
    ) -> None:
        """Stores that the tools of these calls are about to be started, for the `attempt`th time, and the results of
        earlier calls."""
        async with self._database.write(CrashPoint.INTENT) as connection:
            await lock_owned(connection, run.id, run.fence)
            insert_results(connection, run.id, results)
            await connection.flush()
            store_intents(connection, run.id, calls, now, attempt)

    async def attempt(self, run: Run, call_id: str) -> int:
        """Returns how often the tool of this call was started; 0 if it was not."""
        async with self._database.read() as connection:
            found = await connection.execute(ATTEMPT, {"of_run": run.id, "call_id": call_id})
            return found.scalar_one_or_none() or 0

    async def record_settled_effect(self, run: Run, said: SettledEffect, results: Sequence[ToolReturn] = ()) -> None:
        """Stores a probe's verdict on a call that an earlier owner had started, with the result that it gives the
        call."""
        async with self._database.write(CrashPoint.SETTLE_EFFECT) as connection:
            await lock_owned(connection, run.id, run.fence)
            insert_results(connection, run.id, results)
            await store_settled_effect(connection, run, said)

    async def record_results(self, run: Run, results: Sequence[ToolReturn]) -> None:
        """Stores the results of calls while other calls of the same answer still run. A stored result stays."""
        async with self._database.write(CrashPoint.RESULT) as connection:
            await lock_owned(connection, run.id, run.fence)
            insert_results(connection, run.id, results)

    async def record_journal(
        self,
        run: Run,
        entries: Sequence[JournalEntry],
        tail: LogTail,
        now: datetime,
        *,
        spent: Spent | None = None,
        anew: bool = False,
        state: bytes = b"",
    ) -> None:
        """Stores entries of the turn's journal with the events up to them, and with the amount that a model call has
        spent. Their step continues: the run's next owner shows its text again. `anew`: these entries replace the
        journal. `state` is the body's; empty: unchanged."""
        is_alone = len(entries) == 1 and not (tail.entries or spent or anew or state)
        if is_alone and await self._has_recorded(run, entries[0], now):
            return
        # The slow path: it stores more than an entry, and raises the reason for a refusal.
        async with self._database.write(CrashPoint.JOURNAL) as connection:
            locked, last_seq = await lock_and_store(connection, run, tail)
            if anew:
                await connection.execute(FORGET_JOURNAL, {"of_journal": run.journal})
            store_entries(connection, run, entries)
            values: dict[str, Any] = {"last_seq": last_seq, "attempts_without_progress": 0}
            if state:
                values["body_state"] = state
            if spent is not None:
                upsert_step(connection, run, spent.step)
                await charge_unreserved(connection, run, locked, spent.usage, spent.accounts, now)
                values |= {"usage": to_json(spent.usage), "step_count": spent.step_count}
            update_owned(connection, run.id, now, values)

    async def _has_recorded(self, run: Run, entry: JournalEntry, now: datetime) -> bool:
        if self._together is not None:
            with crash_point(CrashPoint.JOURNAL):
                return await self._together.write(partial(add_entry, run, entry, now))
        if self._database.is_sqlite:
            return False
        async with self._database.single(CrashPoint.JOURNAL) as connection:
            return await store_entry_alone(connection, run, entry, now)

    async def journal(self, run: Run) -> list[JournalEntry]:
        """The journal of the run's turn, in order."""
        async with self._database.read() as connection:
            return await entries_of(connection, run)

    async def record_events(self, run: Run, tail: LogTail, now: datetime) -> None:
        """Stores events of an unfinished step, so that a long answer is not in Redis alone."""
        if self._together is not None:
            blocks = await packed_blocks(run.id, tail)
            with crash_point(CrashPoint.SPILL):
                if await self._together.write(partial(_add_events, run, tail, blocks, now)):
                    return
        # The slow path: it skips events that SQL already has, and raises the reason for a refusal.
        async with self._database.write(CrashPoint.SPILL) as connection:
            last_seq = await store_tail(connection, run, tail)
            update_owned(connection, run.id, now, {"last_seq": last_seq})

    async def adopt(self, run: Run, entries: Entries, now: datetime) -> None:
        """Stores the events that earlier owners of the run have shown and SQL lacks, before the new owner shows
        anything."""
        async with self._database.write(CrashPoint.ADOPT) as connection:
            locked = await lock_owned(connection, run.id, run.fence)
            new = [(seq, entry) for seq, entry in entries if seq > locked.last_seq]
            for tail in consecutive(new):
                await insert_events(connection, run.id, tail)
            if new:
                update_owned(connection, run.id, now, {"last_seq": new[-1][0]})

    async def hand_over(
        self,
        run: Run,
        tail: LogTail,
        now: datetime,
        *,
        waits_until: datetime | None = None,
        waits_for: WaitsFor = "budget",
        owner: str | None = None,
    ) -> None:
        """Stores the events of an unfinished step for the worker that continues it, if the wait for that worker is long
        enough to need this. The present worker is alive, so the claims so far do not count as attempts without
        progress. `owner` is the run's from now on: None unless a model call was in progress, which the next owner
        repeats."""
        async with self._database.write(CrashPoint.HAND_OVER) as connection:
            last_seq = await store_tail(connection, run, tail)
            values = {
                "last_seq": last_seq,
                "attempts_without_progress": 0,
                "waits_until": waits_until,
                "waits_for": None if waits_until is None else waits_for,
                "owner": owner,
            }
            update_owned(connection, run.id, now, values)

    async def take_new_fence(self, run: Run, tail: LogTail, now: datetime) -> Run:
        """Stores events and gives the run's owner a new fence, because the present fence has few event numbers
        left."""
        renewed = msgspec.structs.replace(run, fence=Fence(run.fence + 1))
        async with self._database.write(CrashPoint.NEW_FENCE) as connection:
            locked = await lock_run(connection, run.id)
            was_taken = locked.fence == renewed.fence and locked.owner == run.owner
            # The tail of a repeated try may be longer than that of the first.
            last_seq = await store_tail(connection, renewed if was_taken else run, tail)
            update_owned(connection, run.id, now, {"last_seq": last_seq, "fence": renewed.fence})
            return renewed

    async def has_fence(self, run: Run) -> bool:
        """Whether the caller is still the run's owner."""
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id).where(runs.c.id == run.id, runs.c.fence == run.fence))
            return found.one_or_none() is not None

    async def intents(self, run_id: RunId) -> dict[str, ToolReturn | None]:
        """The ids of the run's tool calls whose tools were about to be started, with the results that are stored."""
        async with self._database.read() as connection:
            return await intents_of(connection, run_id)

    async def body_state(self, run: Run) -> bytes | None:
        """Returns the stored state of the run's body: this run's, or else that of the parked run that it continues."""
        async with self._database.read() as connection:
            of_run: RunId | None = run.id
            while of_run is not None:
                found = await connection.execute(_BODY_STATE, {"of_run": of_run, "of_project": run.project_id})
                row = found.one_or_none()
                if row is None or row.body_state is not None:
                    return None if row is None else row.body_state
                of_run = row.continues
        return None

    async def thread_state(self, run: Run) -> bytes | None:
        """Returns the state that the newest completed run of the thread has left, among runs with a state."""
        async with self._database.read() as connection:
            return await state_of_thread(connection, run)


_BODY_STATE = sa.select(runs.c.body_state, runs.c.continues).where(
    runs.c.id == sa.bindparam("of_run"), runs.c.project_id == sa.bindparam("of_project")
)

ADD_EVENTS = (
    "UPDATE runs SET last_seq = :last, updated_at = :now"
    " WHERE id = :run AND fence = :fence AND status = :running AND last_seq < :first",
    "INSERT INTO event_blocks (run_id, first_seq, last_seq, data) VALUES (:run_id, :first_seq, :last_seq, :data)",
)
"""Like `store_tail`, for SQLite."""


def _add_events(
    run: Run, tail: LogTail, blocks: Sequence[Mapping[str, Any]], now: datetime, connection: sqlite3.Connection
) -> bool:
    """Stores entries in these blocks. Returns False if the caller does not own the run or SQL already has some of
    them."""
    update, insert = ADD_EVENTS
    values = {"run": run.id, "fence": run.fence, "running": RunStatus.RUNNING, "first": tail.first, "last": tail.last}
    is_ours = connection.execute(update, values | {"now": microseconds(now)}).rowcount == 1
    if is_ours:
        connection.executemany(insert, blocks)
    return is_ours


async def store_tail(connection: Connection, run: Run, tail: LogTail) -> Seq:
    """Locks the run and stores the entries that SQL lacks. Returns the last number in SQL.

    Raises `StaleFence`, `IllegalTransition` if the run has ended or is parked, and `NotFound` if it was deleted.
    """
    return (await lock_and_store(connection, run, tail))[1]


async def lock_and_store(connection: Connection, run: Run, tail: LogTail) -> tuple[LockedRun, Seq]:
    """Like `store_tail`, but also returns the locked row."""
    locked = await lock_owned(connection, run.id, run.fence)
    await insert_events(connection, run.id, tail.behind(locked.last_seq))
    # Readers have seen nothing of an owner without entries, so the end of the log stays where it was.
    return locked, max(locked.last_seq, tail.last) if tail.entries else locked.last_seq


async def store_step(
    connection: Connection, run: Run, checkpoint: Checkpoint, starting: Sequence[ToolCall] = ()
) -> None:
    """Stores all of a checkpoint except its events, and that the tools of the calls `starting` are about to start. The
    caller has locked the run's row."""
    begun = {call.id for call in starting}
    await forget_intents(connection, run.id, [one for one in _called_in(checkpoint.messages) if one not in begun])
    store_intents(connection, run.id, starting, checkpoint.now)
    await insert_messages(connection, run, checkpoint.messages)
    if checkpoint.step is not None:
        upsert_step(connection, run, checkpoint.step)
    store_entries(connection, run, checkpoint.journal)


def _called_in(messages: Sequence[NewMessage]) -> list[str]:
    return [call.id for new in messages if isinstance(new.body, AssistantMessage) for call in new.body.tool_calls]


# The row of a call's intent has the result of a run that only makes this call.


class ToolRunStore(Store):
    """Reads the results of such runs."""

    async def result(self, run: Run) -> ToolReturn | None:
        """Returns the result of an ended run's call; None if retention has deleted it."""
        is_ours = sa.exists().where(runs.c.id == tool_intents.c.run_id, runs.c.project_id == run.project_id)
        query = sa.select(tool_intents.c.result).where(
            tool_intents.c.run_id == run.id, tool_intents.c.result.is_not(None), is_ours
        )
        async with self._database.read() as connection:
            text = (await connection.execute(query)).scalar_one_or_none()
        return None if text is None else from_json(text, ToolReturn)


async def close_tool_run(
    connection: Connection, run_id: RunId, known: Mapping[str, ToolReturn], end: RunEnd, ids: IdMaker, now: datetime
) -> NewMessage:
    """Stores the result of the run's call in the transaction that settles the run, in the API or in a worker. Returns
    the message that shows the result in the log; it enters no history.

    `known` has the results that the run's owner has. A result that was stored with the call's effect counts, too.
    """
    call = asked_call(await input_of(connection, run_id)).call
    intents = await intents_of(connection, run_id)
    result = known.get(call.id) or intents.get(call.id)
    if result is None:
        result = unfinished_return(call, was_started=call.id in intents, why=end.of_open_calls)
    await finish_intent(connection, run_id, FinishedEdit(result), now)
    return NewMessage(id=ids.message(), created_at=now, body=ToolReturns([result]))
