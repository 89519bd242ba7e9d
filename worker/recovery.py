"""Finding the runs that somebody should be working on and nobody is: lost rings, lost workers, cancels left behind."""

from dataclasses import dataclass
from datetime import timedelta

import structlog

from shared.clock import Clock
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import LifecycleError, Unavailable
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

    async def sweep(self) -> int:
        """One look; how many runs were rung again. Raises `Unavailable` when Redis is away."""
        await self._finish_cancels()
        now = self.clock.now()
        quiet = await self.listing.unfinished(now - timedelta(seconds=self.quiet_s), now)
        in_queue = await self.queue.is_rung([(run.id, run.ring) for run in quiet])
        stranded = [run for run in quiet if (run.id, run.ring) not in in_queue]
        rung = [await self._ring_again(run) for run in stranded]
        return sum(rung)

    async def restart(self) -> int:
        """At the start of an embedded product: nothing that is in flight can be in anybody's hands."""
        now = self.clock.now()
        runs = await self.listing.unfinished(now + timedelta(days=1), now)
        return sum([await self._ring_again(run) for run in runs])

    async def _ring_again(self, run: Run) -> bool:
        ring = await self.runs.ring_again(run)
        if ring is None:
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
