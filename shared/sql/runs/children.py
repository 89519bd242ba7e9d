"""The children of runs: the runs that a run's calls of other agents have started, and the wait for their answers.

A run that waits is running in SQL, but no worker has it. `let_wait` compares what its worker saw of the children with
what is stored; `wake` is called after each end of a child. Both lock the parent's row first, and read or follow the
child's committed state, so that one of the two sees the other.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa

from shared.crash_points import CrashPoint
from shared.domain.errors import CancelRequested
from shared.domain.ids import Fence, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.log_writer import LogTail
from shared.domain.run_trees import SeenChild
from shared.domain.runs import Dispatch, Run, RunOptions
from shared.sql.connection import Connection
from shared.sql.engine import Database
from shared.sql.history.thread_queue import next_dispatches
from shared.sql.paging import made_of
from shared.sql.run_tables import has_one_of, runs
from shared.sql.runs.checkpoints import lock_and_store
from shared.sql.runs.rows import RUN_COLUMNS, run_of, status_of, update_owned
from shared.sql.tables import from_json

_WAITS = (sa.literal_column("waits_for = 'runs'", sa.Boolean), runs.c.waits_until.is_not(None))
"""The first is literally the condition of the index `ix_runs_waits_for_runs`. It stays so until the next claim, which
then knows that the run has waited."""

MOST_LOOKED_AT = 1000
"""Runs that a search for a circle of waiting runs visits."""

AT_ONCE = 100
"""Runs of one round of the sweeper."""


class ChildStore:
    """Reads and writes trees of runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_call(self, parent_id: RunId, call_id: str) -> list[Run]:
        """Returns the runs that a call has started, in their order. A run that was continued after a decision is
        replaced by the last run of its turn."""
        return [run for run in await self.of_run(parent_id) if _is_of_call(run, call_id)]

    async def of_run(self, parent_id: RunId) -> list[Run]:
        """Returns the children of a run, as `of_call` returns those of a call."""
        is_last = (runs.c.parent_run_id == parent_id, runs.c.continued_by.is_(None))
        return await self._found(sa.select(*RUN_COLUMNS).where(*is_last).order_by(runs.c.number))

    async def active_of(self, parent_id: RunId) -> list[Run]:
        """Returns the children of a run that have not ended."""
        is_active = (runs.c.parent_run_id == parent_id, has_one_of(runs, ACTIVE))
        return await self._found(sa.select(*RUN_COLUMNS).where(*is_active).order_by(runs.c.number))

    async def count(self, root_id: RunId) -> int:
        """Returns how many runs the tree has below its root; the turns of continued runs count once."""
        counted = sa.select(sa.func.count()).where(runs.c.root_run_id == root_id, runs.c.continues.is_(None))
        async with self._database.read() as connection:
            return (await connection.execute(counted)).scalar_one()

    async def let_wait(
        self, run: Run, tail: LogTail, seen: Collection[SeenChild], *, until: datetime, now: datetime
    ) -> Dispatch | None:
        """Stores the events that SQL lacks, and lets the run wait without a worker. If its worker does not know yet
        that a child waits for a person, or that all have ended, the run does not wait: returns its next dispatch.

        Raises `CancelRequested` if a cancel was recorded in the meantime, `StaleFence`, and `IllegalTransition`.
        """
        async with self._database.write(CrashPoint.LET_WAIT) as connection:
            locked, last_seq = await lock_and_store(connection, run, tail)
            if locked.cancel_mode is not None:
                raise CancelRequested(locked.cancel_mode)
            active = {child for child in await _awaited(connection, run.id) if child.run_id in _ids(seen)}
            waits = active == set(seen) or (_any_goes_on(active) and _parked(active) <= _parked(seen))
            values = {"last_seq": last_seq, "attempts_without_progress": 0, "owner": None, "waits_for": "runs"}
            update_owned(connection, run.id, now, {**values, "waits_until": until if waits else None})
            return None if waits else await _next_dispatch(connection, run.id, run.dispatch, run.fence)

    async def wake(self, parent_id: RunId, now: datetime, *, is_parked: bool = False) -> Dispatch | None:
        """Ends the wait of a run, after a child has ended or, with `is_parked`, begun to wait for a person. Returns the
        run's next dispatch; None if it does not wait for runs, or goes on waiting for another child's end."""
        async with self._database.write(CrashPoint.WAKE) as connection:
            # First the lock: if the parent is about to wait, this sees it wait, or the parent sees the child's end.
            await connection.execute(sa.select(runs.c.id).where(runs.c.id == parent_id).with_for_update())
            waits = (runs.c.id == parent_id, runs.c.status == RunStatus.RUNNING, *_WAITS)
            found = await connection.execute(sa.select(runs.c.dispatch, runs.c.fence).where(*waits))
            row = found.one_or_none()
            if row is None or not (is_parked or not _any_goes_on(await _awaited(connection, parent_id))):
                return None
            update_owned(connection, parent_id, now, {"waits_until": None})
            return await _next_dispatch(connection, parent_id, row.dispatch, row.fence)

    async def forgotten_parents(self, limit: int = AT_ONCE) -> list[RunId]:
        """Returns runs that wait although none of their children is active: the process that ended the last of them
        died before it woke the parent."""
        child = runs.alias("child")
        has_active = sa.exists().where(child.c.parent_run_id == runs.c.id, has_one_of(child, ACTIVE))
        forgotten = sa.select(runs.c.id).where(*_WAITS, ~has_active).order_by(runs.c.number).limit(limit)
        async with self._database.read() as connection:
            return list((await connection.execute(forgotten)).scalars())

    async def left_behind(self, limit: int = AT_ONCE) -> list[Run]:
        """Returns active runs whose parent was cancelled or has failed, and for which no cancel is recorded yet."""
        parent = runs.alias("parent")
        is_over = sa.or_(
            parent.c.cancel_requested_at.is_not(None), parent.c.status.in_([RunStatus.CANCELLED, RunStatus.FAILED])
        )
        query = (
            sa.select(*RUN_COLUMNS)
            .join(parent, parent.c.id == runs.c.parent_run_id)
            .where(runs.c.parent_run_id.is_not(None), has_one_of(runs, ACTIVE), runs.c.cancel_requested_at.is_(None))
            .where(is_over)
        )
        return await self._found(query.order_by(runs.c.number).limit(limit))

    async def waits_for_itself(self, run_id: RunId, children: Sequence[Run]) -> bool:
        """Returns whether one of these children, for which the run is about to wait, can begin only after the run has
        ended: because it is queued behind the run, or behind a run that waits, over any number of steps, for a run that
        is queued behind it.

        Two runs that begin such waits at the same time have stored their children before, so one of the two sees it.
        """
        looked_at, children_of = set[RunId](), [(child.id, child.thread_id, child.status) for child in children]
        async with self._database.read() as connection:
            while children_of and len(looked_at) < MOST_LOOKED_AT:
                queued = [thread_id for _, thread_id, status in children_of if status is RunStatus.CREATED]
                busy = await connection.execute(_BUSY.where(runs.c.thread_id.in_(queued)))
                found = {
                    *busy.scalars(),
                    *(child_id for child_id, _, status in children_of if status is not RunStatus.CREATED),
                }
                if run_id in found:
                    return True
                children_of = await _awaited_children(connection, found - looked_at)
                looked_at |= found
        return False

    async def _found(self, query: sa.Select[tuple[object, ...]]) -> list[Run]:
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return await made_of(found.mappings().all(), run_of, "options")


def _is_of_call(run: Run, call_id: str) -> bool:
    return run.options.parent is not None and run.options.parent.call_id == call_id


async def _awaited(connection: Connection, parent_id: RunId) -> set[SeenChild]:
    """Returns the active children whose answers the run wants."""
    return {
        SeenChild(child_id, status is RunStatus.AWAITING_APPROVAL)
        for child_id, _, status in await _awaited_children(connection, [parent_id])
    }


def _ids(children: Collection[SeenChild]) -> set[RunId]:
    return {child.run_id for child in children}


def _parked(children: Collection[SeenChild]) -> set[SeenChild]:
    return {child for child in children if child.is_parked}


def _any_goes_on(children: Collection[SeenChild]) -> bool:
    """Returns whether one of the children works, or waits in the queue."""
    return any(not child.is_parked for child in children)


async def _next_dispatch(connection: Connection, run_id: RunId, dispatch: int, fence: Fence) -> Dispatch | None:
    dispatched = await next_dispatches(connection, [(run_id, dispatch, fence)])
    return dispatched[0] if dispatched else None


_BUSY = sa.select(runs.c.id).where(has_one_of(runs, ACTIVE), runs.c.status == RunStatus.RUNNING)


async def _awaited_children(
    connection: Connection, parents: Collection[RunId]
) -> list[tuple[RunId, ThreadId, RunStatus]]:
    """Returns the active children whose answers these runs want."""
    found = await connection.execute(
        sa.select(runs.c.id, runs.c.thread_id, runs.c.status, runs.c.options).where(
            runs.c.parent_run_id.in_(parents), has_one_of(runs, ACTIVE)
        )
    )
    return [(row.id, row.thread_id, status_of(row.status)) for row in found if _is_awaited(row.options)]


def _is_awaited(options: str) -> bool:
    parent = from_json(options, RunOptions).parent
    return parent is not None and parent.awaited
