"""Finding the runs that somebody should be working on and nobody is: lost rings, lost workers, cancels left behind."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from shared.clock import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import LifecycleError, Unavailable
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.redis.run_queue import RunQueue
from shared.sql.run_listing import RunListing
from shared.sql.run_store import RunStore
from shared.unowned_run import UnownedRuns

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Looks for stranded runs. Every worker does; a ring twice does no harm."""

    listing: RunListing
    runs: RunStore
    queue: RunQueue
    unowned: UnownedRuns
    clock: Clock
    quiet_s: float
    """How long SQL must have heard nothing of a run before it is looked at."""
    patience_s: float
    """How long its worker may take to notice that Redis has forgotten it."""

    async def sweep(self) -> int:
        """One look; how many runs were rung again. Raises `Unavailable` when Redis is away."""
        await self._finish_cancels()
        now = self.clock.now()
        stranded = await self._not_in_queue(await self.listing.unfinished(now - timedelta(seconds=self.quiet_s), now))
        begun = [run for run in stranded if run.status is RunStatus.RUNNING]
        rung = [await self._ring_again(run) for run in stranded if run not in begun]
        if begun:
            # Redis may have forgotten what a living worker holds, which puts it back as soon as it notices.
            await asyncio.sleep(self.patience_s)
            rung += [await self._ring_again(run) for run in await self._not_in_queue(begun)]
        return sum(rung)

    async def restart(self) -> int:
        """At the start of an embedded product: nothing that is in flight can be in anybody's hands."""
        now = self.clock.now()
        runs = await self.listing.unfinished(now + timedelta(days=1), now)
        return sum([await self._ring_again(run) for run in runs])

    async def _not_in_queue(self, found: list[Run]) -> list[Run]:
        in_queue = await self.queue.is_rung([(run.id, run.ring) for run in found])
        return [run for run in found if (run.id, run.ring) not in in_queue]

    async def _ring_again(self, run: Run) -> bool:
        ring = await self.runs.ring_again(run)
        if ring is None:
            return False
        if run.status is RunStatus.RUNNING and not await self._not_in_queue([run]):
            # Its worker was quicker and keeps it. Should it die, the next look finds that the new ring is not there.
            log.info("run_is_held_after_all", run_id=run.id)
            return False
        await self.queue.ring(ring.run_id, ring.number)
        log.info("run_rung_again", run_id=run.id, ring=ring.number, status=run.status)
        return True

    async def _finish_cancels(self) -> None:
        """Cancels that were recorded for a run that waits for a person, by an API process that then was lost."""
        for run in await self.listing.cancelled_but_waiting():
            try:
                mode = run.cancel.mode if run.cancel else None
                if mode is not None:
                    await self.unowned.cancel(run, cause="user", mode=mode, denial_reason=DENIED_BY_CANCEL)
            except (LifecycleError, Unavailable) as error:
                log.info("cancel_left_for_later", run_id=run.id, reason=str(error))
