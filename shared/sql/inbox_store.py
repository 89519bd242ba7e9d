"""Messages that are injected into running runs: each enters the history exactly once, in order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.crash_points import DurableWrite
from shared.domain.errors import Conflict
from shared.domain.ids import RunId, ThreadId
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.messages import NewMessage
from shared.domain.runs import Run
from shared.sql.columns import from_json, to_json
from shared.sql.engine import Database
from shared.sql.event_rows import LogTail, insert_events
from shared.sql.message_rows import insert_messages
from shared.sql.run_rows import get_run
from shared.sql.run_transitions import keep
from shared.sql.tables import injected_messages, runs, submission_keys

IfEnded = Literal["refuse", "next"]
"""What becomes of an injected message when its run ends before it is delivered: dropped, or the next run's input."""


class Waiting(NamedTuple):
    """Messages that a run is to get."""

    messages: list[NewMessage]
    last: int
    """Number of the last one, in the order of their arrival; 0 when there is none."""


class InboxStore:
    """Takes in and delivers injected messages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def inject(
        self, run_id: RunId, messages: Sequence[NewMessage], if_ended: IfEnded, *, keys: Sequence[str] = ()
    ) -> bool:
        """Keeps messages for a run that is running or will run. False: these keys were seen before, nothing changes.

        Raises `Conflict` when the run cannot take them any more.
        """
        async with self._database.write(DurableWrite.INJECT) as connection:
            # Writing to the run's row makes this wait for a settle that is under way, and the settle for us.
            open_ = await connection.execute(
                sa.update(runs)
                .where(runs.c.id == run_id, runs.c.status.in_([RunStatus.CREATED, RunStatus.RUNNING]))
                .values(ring=runs.c.ring)
                .returning(runs.c.id)
            )
            takes_more = open_.scalar_one_or_none() is not None
            thread_id = (await get_run(connection, run_id)).thread_id
            if not await _are_new(connection, thread_id, run_id, keys):
                return False
            if not takes_more:
                raise Conflict(f"run {run_id} takes no more messages: it has ended or waits for an approval")
            rows = [{"run_id": run_id, "message": to_json(message), "if_ended": if_ended} for message in messages]
            await connection.execute(sa.insert(injected_messages), rows)
            return True

    async def has_waiting(self, run_id: RunId) -> bool:
        """Whether a message waits for its delivery to the run."""
        async with self._database.read() as connection:
            return await has_undelivered(connection, run_id)

    async def waiting(self, run_id: RunId) -> Waiting:
        """What waits for its delivery to the run."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(injected_messages).where(_undelivered(run_id)).order_by(injected_messages.c.number)
            )
            rows = found.mappings().all()
        return Waiting([from_json(row["message"], NewMessage) for row in rows], rows[-1]["number"] if rows else 0)

    async def deliver(self, run: Run, waiting: Waiting, tail: LogTail, now: datetime) -> None:
        """Moves what was found waiting into the run's history, together with the events that say so, which the tail of
        its log ends with. Does nothing the second time. Raises `StaleFence`."""
        async with self._database.write(DurableWrite.DELIVER) as connection:
            await keep(connection, run.id, held=run.fence, now=now, values={"last_seq": tail.last})
            delivered = await connection.execute(
                sa.update(injected_messages)
                .where(_undelivered(run.id), injected_messages.c.number <= waiting.last)
                .values(delivered_at=now)
                .returning(injected_messages.c.number)
            )
            if delivered.all():
                await insert_messages(connection, run, waiting.messages)
                await insert_events(connection, run.id, tail)


async def _are_new(connection: AsyncConnection, thread_id: ThreadId, run_id: RunId, keys: Sequence[str]) -> bool:
    """Notes the keys of a submission that a run takes in. False, and notes nothing, when one was seen before."""
    if not keys:
        return True
    seen = await connection.execute(
        sa.select(submission_keys.c.key).where(
            submission_keys.c.thread_id == thread_id, submission_keys.c.key.in_(keys)
        )
    )
    if seen.first() is not None:
        return False
    rows = [{"thread_id": thread_id, "key": key, "run_id": run_id} for key in dict.fromkeys(keys)]
    await connection.execute(sa.insert(submission_keys), rows)
    return True


async def has_undelivered(connection: AsyncConnection, run_id: RunId) -> bool:
    """Whether a message waits for its delivery to the run."""
    waiting = await connection.execute(sa.select(injected_messages.c.number).where(_undelivered(run_id)).limit(1))
    return waiting.one_or_none() is not None


async def take_left_over(connection: AsyncConnection, run: Run, now: datetime) -> list[NewMessage]:
    """Messages that runs of the thread ended without, of those whose sender wants the next run to have them."""
    ended = sa.select(runs.c.id).where(runs.c.thread_id == run.thread_id, runs.c.status.in_(TERMINAL))
    left_over = sa.and_(
        injected_messages.c.run_id.in_(ended),
        injected_messages.c.delivered_at.is_(None),
        injected_messages.c.if_ended == "next",
    )
    taken = await connection.execute(
        sa.update(injected_messages)
        .where(left_over)
        .values(delivered_at=now)
        .returning(injected_messages.c.number, injected_messages.c.message)
    )
    return [from_json(row.message, NewMessage) for row in sorted(taken, key=lambda row: row.number)]


def _undelivered(run_id: RunId) -> sa.ColumnElement[bool]:
    return sa.and_(injected_messages.c.run_id == run_id, injected_messages.c.delivered_at.is_(None))
