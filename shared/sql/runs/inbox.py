"""Messages that clients inject into running runs. Each enters the history exactly once, in order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.domain.errors import Conflict
from shared.domain.ids import RunId
from shared.domain.journal import JournalEntry
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.log_writer import LogTail
from shared.domain.messages import NewMessage
from shared.domain.runs import NO_KEYS, Run, SubmissionKeys
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.messages import has_undelivered, insert_messages
from shared.sql.run_tables import injected_messages, runs
from shared.sql.runs.checkpoints import store_tail
from shared.sql.runs.journal import store_entries
from shared.sql.runs.rows import lock_run, run_of_keys, store_keys, update_owned
from shared.sql.tables import from_json, to_json

IfEnded = Literal["refuse", "next"]
"""The fate of an injected message whose run ends before its delivery: it is dropped, or becomes input of the next
run."""


class WaitingMessages(NamedTuple):
    """Messages that wait for their delivery to a run."""

    messages: list[NewMessage]
    last: int
    """Number of the last one, in the order of their arrival; 0 when there is none."""


class InboxStore(Store):
    """Takes in and delivers injected messages."""

    async def inject(
        self, run: Run, messages: Sequence[NewMessage], if_ended: IfEnded, *, keys: SubmissionKeys = NO_KEYS
    ) -> bool:
        """Stores messages for a run that is running or will run. Returns False and changes nothing if the keys were
        seen before.

        A client may inject the same messages again if the answer was lost. Raises `Conflict` if the run cannot take
        them any more, and `NameTaken` if other content was sent under one of the names.
        """
        async with self._database.write(CrashPoint.INJECT) as connection:
            # The locked row makes a settle and this transaction run one after the other.
            locked = await lock_run(connection, run.id)
            if await _is_stored(connection, messages):
                return True
            if await run_of_keys(connection, run.project_id, run.thread_id, keys) is not None:
                return False
            if locked.status not in (RunStatus.CREATED, RunStatus.RUNNING):
                raise Conflict(f"run {run.id} takes no more messages: it has ended or waits for an approval")
            rows = [
                {
                    "run_id": run.id,
                    "thread_id": run.thread_id,
                    "message_id": message.id,
                    "message": to_json(message),
                    "if_ended": if_ended,
                }
                for message in messages
            ]
            await connection.execute(sa.insert(injected_messages), rows)
            store_keys(connection, run.thread_id, run.id, keys)
            return True

    async def has_waiting(self, run_id: RunId) -> bool:
        """Whether a message waits for its delivery to the run."""
        async with self._database.read() as connection:
            return (await connection.execute(_HAS_UNDELIVERED, {"run_id": run_id})).scalar_one()

    async def waiting(self, run_id: RunId) -> WaitingMessages:
        """The messages that wait for their delivery to the run."""
        async with self._database.read() as connection:
            rows = (await connection.execute(_UNDELIVERED, {"run_id": run_id})).all()
        return WaitingMessages([from_json(row.message, NewMessage) for row in rows], rows[-1].number if rows else 0)

    async def deliver(
        self, run: Run, waiting: WaitingMessages, tail: LogTail, now: datetime, journal: Sequence[JournalEntry] = ()
    ) -> None:
        """Moves waiting messages into the run's history, together with the events that show them, with which the tail
        of the log ends, and the entries of its journal that record them. A repetition changes nothing. Raises
        `StaleFence`."""
        async with self._database.write(CrashPoint.DELIVER) as connection:
            last_seq = await store_tail(connection, run, tail)
            await connection.execute(
                sa.update(injected_messages)
                .where(_undelivered(run.id), injected_messages.c.number <= waiting.last)
                .values(delivered_at=now)
            )
            await insert_messages(connection, run, waiting.messages)
            store_entries(connection, run, journal)
            update_owned(connection, run.id, now, {"last_seq": last_seq})


async def _is_stored(connection: Connection, messages: Sequence[NewMessage]) -> bool:
    ids = [message.id for message in messages]
    known = sa.select(injected_messages.c.number).where(injected_messages.c.message_id.in_(ids)).limit(1)
    return (await connection.execute(known)).first() is not None


_HAS_UNDELIVERED = sa.select(has_undelivered())
_UNDELIVERED = (
    sa.select(injected_messages.c.number, injected_messages.c.message)
    .where(injected_messages.c.run_id == sa.bindparam("run_id"), injected_messages.c.delivered_at.is_(None))
    .order_by(injected_messages.c.number)
)


_ENDED = runs.alias("ended")
_LEFT_OVER = sa.select(injected_messages.c.number).where(
    injected_messages.c.delivered_at.is_(None),
    injected_messages.c.if_ended == "next",
    injected_messages.c.thread_id == sa.bindparam("of_thread", type_=sa.Text),
    # In SQLite's RETURNING, columns appear without their tables. Each name here means the innermost table that has such
    # a column.
    sa.exists().where(_ENDED.c.id == injected_messages.c.run_id, _ENDED.c.status.in_(TERMINAL)),
)
_TAKE_LEFT_OVER = (
    sa.update(injected_messages)
    .where(injected_messages.c.number.in_(_LEFT_OVER))
    .values(delivered_at=sa.bindparam("now", type_=injected_messages.c.delivered_at.type))
    .returning(injected_messages.c.number, injected_messages.c.message)
)


def has_left_over() -> sa.ColumnElement[bool]:
    """Whether `take_left_over` would find messages for the thread that the parameter `of_thread` names."""
    return _LEFT_OVER.exists()


async def take_left_over(connection: Connection, run: Run, now: datetime) -> list[NewMessage]:
    """Takes the messages that earlier runs of the thread did not consume before their end and whose senders want the
    next run to get them."""
    taken = await connection.execute(_TAKE_LEFT_OVER, {"of_thread": run.thread_id, "now": now})
    return [from_json(row.message, NewMessage) for row in sorted(taken, key=lambda row: row.number)]


def _undelivered(run_id: RunId) -> sa.ColumnElement[bool]:
    return sa.and_(injected_messages.c.run_id == run_id, injected_messages.c.delivered_at.is_(None))
