"""The queue of a thread: one run at a time, in the order of submission. Inside a caller's transaction.

Every query here costs the same for a thread with ten earlier runs and for one with a hundred thousand: it reads only
runs that have not ended, which have a separate index.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from shared.domain.ids import Fence, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.messages import ApprovalResponse, NewMessage
from shared.domain.runs import Dispatch, Run
from shared.sql.connection import Connection, Filled
from shared.sql.portable import AdvisoryLock
from shared.sql.run_tables import has_one_of, runs
from shared.sql.tables import from_json, messages


class InProgress(NamedTuple):
    """A run of a thread that has not ended."""

    run_id: RunId
    status: RunStatus


def lock_of(thread_id: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """`thread_lock` as a column of a query."""
    return AdvisoryLock(sa.func.hashtextextended(thread_id, 0))


_LOCK_THREAD = sa.select(lock_of(sa.bindparam("thread_id", type_=sa.Text)))


def thread_lock(thread_id: ThreadId) -> Filled:
    """Returns the lock that lets one transaction at a time submit, claim or end a run of this thread."""
    return Filled(_LOCK_THREAD, {"thread_id": thread_id})


async def lock_thread(connection: Connection, thread_id: ThreadId) -> None:
    """`thread_lock` for a transaction that has begun with another lock."""
    await connection.execute(_LOCK_THREAD, {"thread_id": thread_id})


def is_next_in_queue(*, continues: bool) -> sa.ColumnElement[bool]:
    """Whether no run of a thread precedes a certain one: none is running or parked, and none was submitted earlier. The
    parameters `of_thread`, `of_run` and `of_number` name the run.

    The continuation of a parked run precedes the runs that were queued while the decision was pending.
    """
    other = runs.alias("other")
    earlier = other.c.number < sa.bindparam("of_number")
    is_continuation = other.c.continues.is_not(None)
    earlier = earlier & is_continuation if continues else earlier | is_continuation
    is_another = (has_one_of(other, ACTIVE), other.c.id != sa.bindparam("of_run"))
    comes_first = (other.c.status != RunStatus.CREATED) | earlier
    return ~sa.exists().where(other.c.thread_id == sa.bindparam("of_thread"), *is_another, comes_first)


async def oldest_in_progress(
    connection: Connection, thread_id: ThreadId, *conditions: sa.ColumnElement[bool]
) -> InProgress | None:
    """Returns the thread's oldest run that is running, queued or parked and meets the conditions."""
    found = await connection.execute(_OLDEST.where(*conditions) if conditions else _OLDEST, {"of_thread": thread_id})
    row = found.one_or_none()
    return None if row is None else InProgress(row.id, RunStatus(row.status))


_OLDEST = (
    sa.select(runs.c.id, runs.c.status)
    .where(runs.c.thread_id == sa.bindparam("of_thread"), has_one_of(runs, ACTIVE))
    .order_by(runs.c.number)
    .limit(1)
)


def oldest_other_in_progress() -> sa.ScalarSelect[Any]:
    """The id of the oldest run that has not ended, in the thread that the parameter `of_thread` names, except the run
    that `of_run` names."""
    other = runs.alias("other")
    return (
        sa.select(other.c.id)
        .where(other.c.thread_id == sa.bindparam("of_thread"), has_one_of(other, ACTIVE))
        .where(other.c.id != sa.bindparam("of_run"))
        .order_by(other.c.number)
        .limit(1)
        .scalar_subquery()
    )


def turn_after_all() -> sa.ScalarSelect[int]:
    """The next free place in the history of the thread that the parameter `of_thread` names."""
    # A forked conversation begins with turns that none of its own runs made.
    taken = sa.union_all(
        *(
            sa.select(sa.func.max(table.c.turn).label("turn")).where(table.c.thread_id == sa.bindparam("of_thread"))
            for table in (runs.alias("others"), messages)
        )
    ).subquery("taken")
    return sa.select(sa.func.coalesce(sa.func.max(taken.c.turn), 0) + 1).scalar_subquery()


_NEXT_TURN = sa.select(turn_after_all())


async def next_turn(connection: Connection, thread_id: ThreadId) -> int:
    """The next free place in a thread's history."""
    return (await connection.execute(_NEXT_TURN, {"of_thread": thread_id})).scalar_one()


def input_to_place(run: Run, given: list[NewMessage]) -> list[NewMessage]:
    """The part of a run's input that enters the history when the run begins.

    A decision enters at once. A user's message that came with it waits for the tools' results, which must come first.
    The input of a run with a thread of its own is in no history.
    """
    if run.has_own_thread:
        return []
    is_continuation = run.continues is not None and given and isinstance(given[0].body, ApprovalResponse)
    return given[:1] if is_continuation else given


async def next_dispatches(connection: Connection, seen: Sequence[tuple[RunId, int, Fence]]) -> list[Dispatch]:
    """Gives runs that have not ended their next dispatch. `seen` has each run with the dispatch and the fence that the
    caller has read. Skips a run that was dispatched or claimed since."""
    is_as_seen = sa.tuple_(runs.c.id, runs.c.dispatch, runs.c.fence).in_(seen)
    # SQLite finds rows by an index for a list of ids, and not for a list of tuples.
    is_seen = runs.c.id.in_([run_id for run_id, _, _ in seen])
    dispatched = await connection.execute(
        sa.update(runs)
        .where(is_seen, is_as_seen, has_one_of(runs, ACTIVE))
        .values(dispatch=runs.c.dispatch + 1)
        .returning(runs.c.id, runs.c.dispatch, runs.c.project_id, runs.c.priority, runs.c.options, runs.c.code_version)
    )
    return [
        Dispatch(
            row.id,
            row.dispatch,
            row.project_id,
            row.priority,
            from_json(row.options, _BodyChoice).code_agent,
            row.code_version,
        )
        for row in dispatched
    ]


class _BodyChoice(msgspec.Struct, frozen=True):
    """The fields of a run's options that decide which workers may claim it."""

    code_agent: str | None = None


_NEXT_IN_QUEUE = (
    sa.select(runs.c.id, runs.c.dispatch, runs.c.fence)
    .where(runs.c.thread_id == sa.bindparam("of_thread"), has_one_of(runs, ACTIVE), runs.c.status == RunStatus.CREATED)
    .order_by(runs.c.continues.is_(None), runs.c.number)
    .limit(1)
)


def has_next_in_queue() -> sa.ColumnElement[bool]:
    """Whether a run waits in the queue of the thread that the parameter `of_thread` names."""
    return sa.exists(_NEXT_IN_QUEUE)


async def next_in_queue(connection: Connection, thread_id: ThreadId) -> Dispatch | None:
    """Returns the next run in the thread's queue, with a new dispatch, for a caller that has just ended the previous
    run."""
    found = await connection.execute(_NEXT_IN_QUEUE, {"of_thread": thread_id})
    row = found.one_or_none()
    dispatched = [] if row is None else await next_dispatches(connection, [(row.id, row.dispatch, row.fence)])
    return dispatched[0] if dispatched else None
