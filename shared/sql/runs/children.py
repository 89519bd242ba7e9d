"""Stores the children of runs, which a run's calls of other agents have started, and a run's wait for their answers.

A waiting run has the status running in SQL, but no worker holds it. `let_wait` compares the children as the worker saw
them with the stored ones. The API or a worker calls `wake` after each end of a child. Both lock the parent's row first,
and then read the children's committed state, so one of the two sees the other's change.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec.structs import replace

from shared.crash_points import CrashPoint
from shared.domain.errors import CancelMode, CancelRequested
from shared.domain.ids import RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.log_writer import LogTail
from shared.domain.run_trees import SeenChild
from shared.domain.runs import Dispatch, Run
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.thread_queue import next_dispatches
from shared.sql.run_tables import has_one_of, runs
from shared.sql.runs.checkpoints import lock_and_store
from shared.sql.runs.rows import RUN_COLUMNS, cancel_mode_of, run_of, status_of, update_owned
from shared.sql.tables import made_of, to_json

_WAITS = (sa.literal_column("waits_for = 'runs'", sa.Boolean), runs.c.waits_until.is_not(None))
"""The first condition is literally that of the index `ix_runs_waits_for_runs`. The column keeps its value until the
next claim, which thereby learns that the run has waited."""

MOST_LOOKED_AT = 1000
"""The limit for a search for a circle of waiting runs, in runs."""

AT_ONCE = 100
"""The limit for one round of the sweeper, in runs."""


class ChildStore(Store):
    """Reads and writes trees of runs."""

    async def of_call(self, parent: Run, call_id: str) -> list[Run]:
        """Returns the runs that a call has started, in their order. The last run of a turn stands for the runs that it
        continues."""
        is_last = (runs.c.parent_run_id == parent.id, runs.c.continued_by.is_(None))
        found = await self._found(sa.select(*RUN_COLUMNS).where(*is_last).order_by(runs.c.number))
        return [run for run in found if run.options.parent is not None and run.options.parent.call_id == call_id]

    async def active_of(self, parent: Run) -> list[Run]:
        """Returns the children of a run that have not ended."""
        is_active = (runs.c.parent_run_id == parent.id, has_one_of(runs, ACTIVE))
        return await self._found(sa.select(*RUN_COLUMNS).where(*is_active).order_by(runs.c.number))

    async def count(self, run: Run) -> int:
        """Returns the number of runs below the root of the run's tree. A run and its continuation count once."""
        root_id = run.id if run.options.parent is None else run.options.parent.root_id
        counted = sa.select(sa.func.count()).where(runs.c.root_run_id == root_id, runs.c.continues.is_(None))
        async with self._database.read() as connection:
            return (await connection.execute(counted)).scalar_one()

    async def let_wait(
        self, run: Run, tail: LogTail, seen: Collection[SeenChild], *, until: datetime, now: datetime
    ) -> Dispatch | None:
        """Stores the events that SQL lacks, and begins the run's wait without a worker. If the worker has missed that a
        child waits for a person, or that all have ended, the run does not wait, and the method returns its next
        dispatch.

        Raises `CancelRequested` if a cancel was recorded in the meantime, `StaleFence`, and `IllegalTransition`.
        """
        async with self._database.write(CrashPoint.LET_WAIT) as connection:
            locked, last_seq = await lock_and_store(connection, run, tail)
            if locked.cancel_mode is not None:
                raise CancelRequested(locked.cancel_mode)
            # The run must not wait for the end of a child whose call has ended without its answer.
            others = (
                runs.c.parent_run_id == run.id,
                runs.c.id.not_in([child.run_id for child in seen]),
                has_one_of(runs, ACTIVE),
            )
            await connection.execute(sa.update(runs).where(*others, runs.c.awaited).values(awaited=False))
            active = await _awaited(connection, run.id)
            waits = active == set(seen) or (_any_goes_on(active) and _parked(active) <= _parked(seen))
            values = {"last_seq": last_seq, "attempts_without_progress": 0, "owner": None, "waits_for": "runs"}
            update_owned(connection, run.id, now, {**values, "waits_until": until if waits else None})
            return None if waits else await _next_dispatch(connection, run.id)

    async def stop_awaiting(self, child: Run) -> None:
        """Stores that the parent of this run no longer waits for its answer. The parent's next wait depends only on the
        runs that it waits for then."""
        call = child.options.parent
        if call is None or not call.awaited:
            return
        options = replace(child.options, parent=replace(call, awaited=False))
        async with self._database.write() as connection:
            values = {"awaited": False, "options": to_json(options)}
            await connection.execute(sa.update(runs).where(runs.c.id == child.id).values(values))

    async def wake(self, child: Run, now: datetime, *, is_parked: bool = False, again: bool = False) -> Dispatch | None:
        """Ends the wait of the child's parent. The child has ended or, with `is_parked`, waits for a person now.
        Returns the parent's next dispatch; None if the parent does not wait for runs, or still waits for another one.

        With `again`, the caller repeats a call whose answer was lost. If that call has woken the parent and no worker
        has claimed it since, the method gives it another dispatch.
        """
        parent = child.options.parent
        if parent is None:
            return None
        async with self._database.write(CrashPoint.WAKE) as connection:
            return await _wake(connection, parent.run_id, now, is_parked=is_parked, again=again)

    async def wake_forgotten(self, now: datetime, limit: int = AT_ONCE) -> list[Dispatch]:
        """Ends the waits of runs whose awaited children have all ended: the process that ended the last child died
        before it woke the parent. Returns the next dispatches of the parents."""
        async with self._database.read() as connection:
            found = (await connection.execute(_FORGOTTEN.limit(limit))).scalars().all()
        dispatches = list[Dispatch | None]()
        for run_id in found:
            async with self._database.write() as connection:
                dispatches.append(await _wake(connection, run_id, now))
        return [dispatch for dispatch in dispatches if dispatch is not None]

    async def left_behind(self, limit: int = AT_ONCE) -> list[tuple[Run, CancelMode]]:
        """Returns active runs whose parent was cancelled or has failed, and for which no cancel is recorded yet. Each
        with the mode in which it is to be cancelled: that of its parent."""
        async with self._database.read() as connection:
            found = (await connection.execute(_LEFT_BEHIND.limit(limit))).mappings().all()
        modes = [cancel_mode_of(row["parents_mode"] or CancelMode.INTERRUPT) for row in found]
        return list(zip(await made_of(found, run_of, "options"), modes, strict=True))

    async def waits_for_itself(self, run: Run, children: Sequence[Run]) -> bool:
        """Returns whether the run would wait for itself: whether one of these children can begin only after the run has
        ended, because it is queued behind the run, or behind a run that waits, directly or not, for a run behind it.

        If two runs begin such waits at the same time, both have stored their children before, so one of the runs sees
        the other's.
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
                if run.id in found:
                    return True
                children_of = await _awaited_children(connection, found - looked_at)
                looked_at |= found
        return False

    async def _found(self, query: sa.Select[tuple[object, ...]]) -> list[Run]:
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return await made_of(found.mappings().all(), run_of, "options")


async def _wake(
    connection: Connection, parent_id: RunId, now: datetime, *, is_parked: bool = False, again: bool = False
) -> Dispatch | None:
    # The lock comes first: then either this process sees the parent's wait, or the parent sees the child's end.
    await connection.execute(sa.select(runs.c.id).where(runs.c.id == parent_id).with_for_update())
    waits = (runs.c.id == parent_id, runs.c.status == RunStatus.RUNNING, *(_WAITS[:1] if again else _WAITS))
    found = await connection.execute(sa.select(runs.c.id).where(*waits))
    if found.one_or_none() is None:
        return None
    if not is_parked and _any_goes_on(await _awaited(connection, parent_id)):
        return None
    update_owned(connection, parent_id, now, {"waits_until": None})
    return await _next_dispatch(connection, parent_id)


async def _awaited(connection: Connection, parent_id: RunId) -> set[SeenChild]:
    """Returns the active children whose answers the run awaits."""
    return {
        SeenChild(child_id, status is RunStatus.AWAITING_APPROVAL)
        for child_id, _, status in await _awaited_children(connection, [parent_id])
    }


def _parked(children: Collection[SeenChild]) -> set[SeenChild]:
    return {child for child in children if child.is_parked}


def _any_goes_on(children: Collection[SeenChild]) -> bool:
    """Returns whether one of the children is running or queued."""
    return any(not child.is_parked for child in children)


async def _next_dispatch(connection: Connection, run_id: RunId) -> Dispatch | None:
    """Returns the next dispatch of a run whose row the caller has locked."""
    found = await connection.execute(sa.select(runs.c.dispatch, runs.c.fence).where(runs.c.id == run_id))
    row = found.one()
    dispatched = await next_dispatches(connection, [(run_id, row.dispatch, row.fence)])
    return dispatched[0] if dispatched else None


_CHILD, _PARENT = runs.alias("child"), runs.alias("parent")
_GOES_ON = sa.exists().where(_CHILD.c.parent_run_id == runs.c.id, has_one_of(_CHILD, ACTIVE), _CHILD.c.awaited)
_FORGOTTEN = sa.select(runs.c.id).where(*_WAITS, ~_GOES_ON).order_by(runs.c.number)
_LEFT_BEHIND = (
    sa.select(*RUN_COLUMNS, _PARENT.c.cancel_mode.label("parents_mode"))
    .join(_PARENT, _PARENT.c.id == runs.c.parent_run_id)
    .where(runs.c.parent_run_id.is_not(None), has_one_of(runs, ACTIVE), runs.c.cancel_requested_at.is_(None))
    .where(
        sa.or_(
            _PARENT.c.cancel_requested_at.is_not(None), _PARENT.c.status.in_([RunStatus.CANCELLED, RunStatus.FAILED])
        )
    )
    .order_by(runs.c.number)
)
_BUSY = sa.select(runs.c.id).where(has_one_of(runs, ACTIVE), runs.c.status == RunStatus.RUNNING)


async def _awaited_children(
    connection: Connection, parents: Collection[RunId]
) -> list[tuple[RunId, ThreadId, RunStatus]]:
    """Returns the active children whose answers these runs await."""
    found = await connection.execute(
        sa.select(runs.c.id, runs.c.thread_id, runs.c.status).where(
            runs.c.parent_run_id.in_(parents), has_one_of(runs, ACTIVE), runs.c.awaited
        )
    )
    return [(row.id, row.thread_id, status_of(row.status)) for row in found]
