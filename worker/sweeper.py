"""The sweeper finds orphaned runs and dispatches them again: lost dispatches, lost workers, and unsettled cancels."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import structlog

from shared.concurrency import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import LifecycleError, Unavailable
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.redis.queue import RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.sql.runs.listing import QUIET_PAGE, QuietRun, RunListing
from shared.sql.runs.run_store import RunStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Reason = Literal["worker_lost", "not_dispatched", "waited"]
"""Why a run is dispatched again: its worker is gone; its dispatch was lost; or it has waited until its time, which is
normal."""


@dataclass(frozen=True, kw_only=True)
class Sweeper:
    """Dispatches orphaned runs again. One process of the fleet sweeps per interval; two at once do no harm."""

    listing: RunListing
    runs: RunStore
    queue: RunQueue
    orphans: OrphanedRuns
    clock: Clock
    quiet_s: float
    """Seconds without a write of a run to SQL after which the sweeper checks it."""
    patience_s: float
    """Seconds that a run's worker may take to notice that Redis has forgotten its lease."""

    async def sweep(self) -> Counter[Reason]:
        """Sweeps once. Returns how many runs it has dispatched again, and why. Raises `Unavailable`."""
        await self._finish_cancels()
        await self.queue.recount()
        now = self.clock.now()
        since = now - timedelta(seconds=self.quiet_s)
        dispatched, last = Counter[Reason](), None
        while True:
            quiet = await self.listing.quiet(since, now, last)
            dispatched += await self._dispatch_unqueued(quiet)
            if len(quiet) < QUIET_PAGE:
                return dispatched
            last = quiet[-1]

    async def restart(self) -> Counter[Reason]:
        """Dispatches all runs in flight when an embedded product starts: no worker can own one then."""
        now = self.clock.now()
        dispatched, last = Counter[Reason](), None
        while True:
            quiet = await self.listing.quiet(now + timedelta(days=1), now, last)
            dispatched += await self._dispatch_again(quiet)
            if len(quiet) < QUIET_PAGE:
                return dispatched
            last = quiet[-1]

    async def _dispatch_unqueued(self, quiet: Sequence[QuietRun]) -> Counter[Reason]:
        unqueued = await self._not_in_queue(quiet)
        # No worker holds a run that waits.
        begun = [run for run in unqueued if run.status is RunStatus.RUNNING and not run.waits]
        dispatched = await self._dispatch_again([run for run in unqueued if run not in begun])
        if begun:
            # Redis may have lost the job of a live worker, which restores it as soon as it notices.
            await asyncio.sleep(self.patience_s)
            dispatched += await self._dispatch_again(await self._not_in_queue(begun))
        return dispatched

    async def _not_in_queue(self, found: Sequence[QuietRun]) -> list[QuietRun]:
        in_queue = await self.queue.queued_among([job for run in found for job in _jobs_of(run)])
        return [run for run in found if in_queue.isdisjoint(_jobs_of(run))]

    async def _dispatch_again(self, unqueued: Sequence[QuietRun]) -> Counter[Reason]:
        """Stores the runs' next dispatch in SQL, and queues it, unless a worker has taken its lease again meanwhile. If
        such a worker dies, another worker claims its job in vain and removes it, and the next sweep finds that the run
        has no job."""
        if not unqueued:
            return Counter()
        dispatches = await self.runs.dispatch_again(unqueued)
        # No worker can own a run that has not begun: a job of it that came meanwhile is of the previous dispatch.
        begun = [run for run in unqueued if run.status is RunStatus.RUNNING]
        kept = {run.run_id for run in begun}.difference(run.run_id for run in await self._not_in_queue(begun))
        waiting = [dispatch for dispatch in dispatches if dispatch.run_id not in kept]
        if waiting:
            await self.queue.dispatch(*waiting)
        log.info(
            "runs_dispatched_again", runs=[dispatch.run_id for dispatch in waiting], kept=len(dispatches) - len(waiting)
        )
        found = {dispatch.run_id for dispatch in waiting}
        return Counter(_reason_of(run) for run in unqueued if run.run_id in found)

    async def _finish_cancels(self) -> None:
        """Settles cancels that an API process recorded for an orphaned run before it died."""
        for run in await self.listing.cancelled_but_unclaimed():
            try:
                mode = run.cancel.mode if run.cancel else None
                if mode is not None:
                    await self.orphans.cancel(run, cause="user", mode=mode, denial_reason=DENIED_BY_CANCEL)
            except (LifecycleError, Unavailable) as error:
                log.info("cancel_left_for_later", run_id=run.id, reason=str(error))


def _reason_of(run: QuietRun) -> Reason:
    if run.waits:
        return "waited"
    return "worker_lost" if run.status is RunStatus.RUNNING else "not_dispatched"


def _jobs_of(run: QuietRun) -> list[tuple[RunId, int]]:
    """Returns the jobs under which a worker may own the run. It continues under the dispatch before the newest if it
    took its lease again while the sweeper stored the newest."""
    is_begun = run.status is RunStatus.RUNNING
    return [(run.run_id, run.dispatch - earlier) for earlier in range(1 + is_begun)]
