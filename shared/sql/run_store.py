"""Runs: submitting, claiming, cancelling. What ends a step or a run is in `checkpoint_store`."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.crash_points import DurableWrite
from shared.domain.errors import Busy, CancelMode, LifecycleError, NotFound
from shared.domain.ids import Fence, ProjectId, RunId, ThreadId
from shared.domain.lifecycle import ACTIVE, RunStatus, RunTrigger
from shared.domain.runs import CancelRequest, Run
from shared.sql.approval_rows import decide, refuse_if_waiting, start_carrying
from shared.sql.columns import run_of
from shared.sql.engine import Database
from shared.sql.inbox_store import take_left_over
from shared.sql.message_rows import insert_messages
from shared.sql.run_rows import get_run, insert_run, not_found
from shared.sql.run_transitions import apply, keep
from shared.sql.tables import runs, submission_keys
from shared.sql.thread_line import (
    Ring,
    input_to_place,
    is_next_in_line,
    lock_thread,
    next_turn,
    renew_ring,
    run_in_progress,
)


class Submitted(NamedTuple):
    """A stored submission; `is_new` is False when its keys had been seen and this is the run of the first time."""

    run: Run
    is_new: bool


class RunStore:
    """Reads and writes runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, run: Run, *, keys: Sequence[str] = (), refuse_if_busy: bool = False) -> Submitted:
        """Stores a run with its input. The same keys (otid, Idempotency-Key) on one thread give the first run again.

        Raises `PendingApproval` when a person must decide first, `Busy` when `refuse_if_busy` and a run is active.
        """
        async with self._database.write(DurableWrite.SUBMIT) as connection:
            await lock_thread(connection, run.thread_id)
            seen = await _run_of_keys(connection, run.thread_id, keys)
            if seen is not None:
                return Submitted(seen, is_new=False)
            await refuse_if_waiting(connection, run.thread_id)
            active = await run_in_progress(connection, run.thread_id) if refuse_if_busy else None
            if active is not None:
                raise Busy(run_id=active)
            return Submitted(await insert_run(connection, run, keys), is_new=True)

    async def submit_decision(self, run: Run, *, keys: Sequence[str] = (), decided_by: str) -> Submitted:
        """Stores the decisions on a parked run, closes it, and stores the run that carries them out.

        The decisions are the `ApprovalResponse` that `run.input` begins with; they cover exactly the calls that nobody
        has decided yet. Repeated while the carrying run is active, they give that run again. Raises
        `NoPendingApproval`, `WrongToolCalls`, `AlreadyDecided`, or `Conflict` when somebody decided otherwise.
        """
        async with self._database.write(DurableWrite.DECIDE) as connection:
            await lock_thread(connection, run.thread_id)
            seen = await _run_of_keys(connection, run.thread_id, keys)
            if seen is not None:
                return Submitted(seen, is_new=False)
            asked_by = await decide(connection, run, decided_by)
            if asked_by.continued_by is not None:
                return Submitted(await get_run(connection, asked_by.continued_by), is_new=False)
            return Submitted(await start_carrying(connection, run, asked_by, keys), is_new=True)

    async def store_refused(self, run: Run) -> Run:
        """Stores a run that is about to be settled as failed, whatever its thread waits for."""
        async with self._database.write() as connection:
            return await insert_run(connection, run)

    async def of_keys(self, thread_id: ThreadId, keys: Sequence[str]) -> Run | None:
        """The run of a submission that was seen before. None: none of these keys was."""
        async with self._database.read() as connection:
            return await _run_of_keys(connection, thread_id, keys)

    async def get(self, project_id: ProjectId, run_id: RunId) -> Run:
        """One run of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            run = await get_run(connection, run_id)
        if run.project_id != project_id:
            raise NotFound(not_found(run_id))
        return run

    async def look_up(self, run_id: RunId) -> Run:
        """One run of any project: for workers. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await get_run(connection, run_id)

    async def claim(self, run_id: RunId, ring: int, now: datetime) -> Run | None:
        """Makes the caller the run's owner, with a new fence. None: this ring is not to run it, or not yet.

        Refused while another run of the thread is running, waits for a person, or is earlier in line. The first claim
        puts the run's input into the history.
        """
        try:
            async with self._database.write(DurableWrite.CLAIM) as connection:
                waiting = await get_run(connection, run_id)
                if waiting.turn is None:
                    # Somebody who ends another run of the thread unclaimed takes a turn for it, too.
                    await lock_thread(connection, waiting.thread_id)
                claimed = await apply(
                    connection,
                    run_id,
                    RunTrigger.CLAIM,
                    held=waiting.fence,
                    now=now,
                    guards=(runs.c.ring == ring, is_next_in_line(waiting)),
                    values={
                        "fence": waiting.fence + 1,
                        "stalled_claims": waiting.stalled_claims + 1,
                        "started_at": waiting.started_at or now,
                        "turn": waiting.turn or await next_turn(connection, waiting.thread_id),
                    },
                )
                if waiting.fence == 0:
                    # What was left over for the next run is for one that answers.
                    takes_more = waiting.turn is None and waiting.options.compaction is None
                    left_over = await take_left_over(connection, claimed, now) if takes_more else []
                    await insert_messages(connection, claimed, [*left_over, *input_to_place(claimed)])
                return claimed
        except (LifecycleError, NotFound, IntegrityError):
            return None

    async def owns(self, run_id: RunId, fence: Fence, ring: int) -> bool:
        """Whether the run is running under this fence, and nobody has rung since for somebody else to claim it."""
        is_mine = (runs.c.fence == fence, runs.c.ring == ring, runs.c.status == RunStatus.RUNNING)
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id, *is_mine))
            return found.one_or_none() is not None

    async def take_over(self, run: Run, now: datetime) -> Run:
        """Takes a running run from an owner that is gone, to settle it. Raises `StaleFence` if somebody was first."""
        async with self._database.write() as connection:
            return await keep(connection, run.id, held=run.fence, now=now, values={"fence": run.fence + 1})

    async def request_cancel(self, run_id: RunId, request: CancelRequest) -> Run:
        """Records that a cancel was asked for; the run as it is then. A stronger mode replaces `after_step`."""
        values = {
            "cancel_requested_at": request.requested_at,
            "cancel_actor": request.actor,
            "cancel_reason": request.reason,
            "cancel_mode": request.mode,
        }
        is_new = runs.c.cancel_requested_at.is_(None)
        if request.mode is not CancelMode.AFTER_STEP:
            is_new = is_new | (runs.c.cancel_mode == CancelMode.AFTER_STEP)
        async with self._database.write(DurableWrite.CANCEL) as connection:
            await connection.execute(
                sa.update(runs).where(runs.c.id == run_id, runs.c.status.in_(ACTIVE), is_new).values(values)
            )
            return await get_run(connection, run_id)

    async def cancels_among(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelMode]:
        """Those of these runs for which a cancel is recorded, with its mode."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(runs.c.id, runs.c.cancel_mode).where(
                    runs.c.id.in_(run_ids), runs.c.cancel_requested_at.is_not(None)
                )
            )
            return {RunId(row.id): CancelMode(row.cancel_mode) for row in found}

    async def acknowledge_cancel(self, run_id: RunId, fence: Fence, now: datetime) -> None:
        """Records when the run's owner began to stop it. Raises `StaleFence`."""
        async with self._database.write() as connection:
            await keep(connection, run_id, held=fence, now=now, values={"cancel_acknowledged_at": now})

    async def ring_again(self, run: Run) -> Ring | None:
        """Gives a run a new ring, so that older ones can no longer claim it. None if somebody else did meanwhile."""
        async with self._database.write(DurableWrite.RING_AGAIN) as connection:
            return await renew_ring(connection, run)


async def _run_of_keys(connection: AsyncConnection, thread_id: ThreadId, keys: Sequence[str]) -> Run | None:
    if not keys:
        return None
    found = await connection.execute(
        sa.select(runs)
        .join(submission_keys, submission_keys.c.run_id == runs.c.id)
        .where(submission_keys.c.thread_id == thread_id, submission_keys.c.key.in_(keys))
        .order_by(runs.c.number)
        .limit(1)
    )
    row = found.mappings().one_or_none()
    return None if row is None else run_of(row)
