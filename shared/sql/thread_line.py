"""Who is next on a thread: one run at a time, in the order of submission, inside somebody's transaction."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.ids import RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.messages import ApprovalResponse, NewMessage
from shared.domain.runs import Run
from shared.sql.columns import run_of
from shared.sql.tables import messages, runs


class Ring(NamedTuple):
    """A run to ring, with the number of the ring."""

    run_id: RunId
    number: int


async def lock_thread(connection: AsyncConnection, thread_id: ThreadId) -> None:
    """Serialises submissions and ends on one thread until the transaction ends. SQLite's write lock does it already."""
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(thread_id, 0))))


def is_next_in_line(run: Run) -> sa.ColumnElement[bool]:
    """Nothing on the run's thread comes before it: no run is running or parked, and none was submitted earlier.

    A run that carries out a decision goes before those that were queued while the decision was waited for.
    """
    other = runs.alias("other")
    earlier = other.c.number < run.number
    if run.continues is None:
        earlier = earlier | other.c.continues.is_not(None)
    else:
        earlier = earlier & other.c.continues.is_not(None)
    comes_first = other.c.status.in_([RunStatus.RUNNING, RunStatus.AWAITING_APPROVAL]) | (
        (other.c.status == RunStatus.CREATED) & earlier
    )
    return ~sa.exists().where(other.c.thread_id == run.thread_id, other.c.id != run.id, comes_first)


async def run_in_progress(connection: AsyncConnection, thread_id: ThreadId) -> RunId | None:
    """The thread's oldest run that has not ended, whether it goes on, waits in line or waits for a person."""
    found = await connection.execute(
        sa.select(runs.c.id)
        .where(runs.c.thread_id == thread_id, runs.c.status.in_(ACTIVE))
        .order_by(runs.c.number)
        .limit(1)
    )
    return found.scalar_one_or_none()


async def next_turn(connection: AsyncConnection, thread_id: ThreadId) -> int:
    """The next free place in a thread's history."""
    # A forked conversation begins with turns that no run of its own has brought.
    taken = [
        await connection.execute(sa.select(sa.func.max(table.c.turn)).where(table.c.thread_id == thread_id))
        for table in (runs, messages)
    ]
    return max(found.scalar_one() or 0 for found in taken) + 1


def input_to_place(run: Run) -> list[NewMessage]:
    """What of the input enters the history when the run begins.

    A decision does; a user's message that came with it waits for the tools' results, which must come first.
    """
    return run.input[:1] if run.input and isinstance(run.input[0].body, ApprovalResponse) else run.input


async def renew_ring(connection: AsyncConnection, run: Run) -> Ring | None:
    """Counts a run's ring up, guarded by what the caller has seen: nobody has rung or claimed it since."""
    rung = await connection.execute(
        sa.update(runs)
        .where(runs.c.id == run.id, runs.c.ring == run.ring, runs.c.fence == run.fence, runs.c.status.in_(ACTIVE))
        .values(ring=run.ring + 1)
        .returning(runs.c.ring)
    )
    number = rung.scalar_one_or_none()
    return None if number is None else Ring(run.id, number)


async def next_waiting(connection: AsyncConnection, thread_id: ThreadId) -> Ring | None:
    """The thread's next run in line, with a new ring: for the one that has just made room."""
    found = await connection.execute(
        sa.select(runs)
        .where(runs.c.thread_id == thread_id, runs.c.status == RunStatus.CREATED)
        .order_by(runs.c.continues.is_(None), runs.c.number)
        .limit(1)
    )
    row = found.mappings().one_or_none()
    return None if row is None else await renew_ring(connection, run_of(row))
