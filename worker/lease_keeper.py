"""Keeps the leases of the jobs that run here, and says when one is lost.

All leases of the process are renewed in one call, three times per lease, on an event loop of the keeper's own: a run
that keeps the process's loop busy does not cost everybody their leases. Three things can go wrong.

* Redis may not answer: then every job is stopped shortly before its lease ends, because another worker will claim it.
* The process's loop may stand still for ever. Whoever holds jobs there does nothing for them: after `STANDSTILL_LEASES`
  leases without a sign of life they are given up to other workers.
* The whole process may be suspended for longer than a lease. The first thing that happens afterwards is to ask Redis.

What a job writes before it hears of that is not trusted to the lease anyway: SQL and the event log refuse an old fence.

A lease that Redis merely forgot is not lost: `still_ours` asks SQL, and the job goes on.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shared.domain.errors import Unavailable
from shared.redis.job_leases import JobLeases, Renewal
from shared.redis.worker_presence import WorkerPresence

logger = logging.getLogger(__name__)

STANDSTILL_LEASES = 10
"""A loop that has been busy for so many leases is taken for dead."""


@dataclass(slots=True)
class _HeldJob:
    job_id: str
    valid_until: float
    """On the monotonic clock; never later than what Redis thinks, as it counts from before the request."""
    lost: bool = False
    ending: bool = False
    """The job's code has returned; its lease is being given up."""
    unsure: bool = False
    """Redis had forgotten the lease, and it is not yet settled whose the job is."""

    @property
    def kept(self) -> bool:
        return not self.lost and not self.ending


class LeaseKeeper:
    """Holds the leases of one worker.

    `keep` runs on the keeper's loop, everything else is called from the process's. `on_lost(job_id)` is called once for
    a job that must stop at once. `still_ours(job_id)` tells whether SQL says that no other worker has claimed the job's
    run, nor may; it may raise `Unavailable`. Neither may raise anything else. Both are called on the keeper's loop.
    """

    def __init__(
        self,
        *,
        worker: str,
        lease_s: float,
        now: Callable[[], float],
        on_lost: Callable[[str], None],
        still_ours: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._worker = worker
        self._lease_s = lease_s
        self._margin_s = lease_s / 6
        self._on_lost = on_lost
        self._still_ours = still_ours
        self._held: dict[str, _HeldJob] = {}
        self._now = now
        self._seen_alive = now()

    def hold(self, job_id: str, *, asked_at: float) -> None:
        """From now on the job's lease is renewed. `asked_at` is when its claim was sent."""
        held = self._held.setdefault(job_id, _HeldJob(job_id, 0.0))
        held.valid_until = asked_at + self._lease_s

    def is_lost(self, job_id: str) -> bool:
        """Whether the job was told to stop because its lease is gone."""
        return job_id in self._held and self._held[job_id].lost

    def ending(self, job_id: str) -> None:
        """The job is over: its lease is about to be given up and must not be taken again."""
        if job_id in self._held:
            self._held[job_id].ending = True

    def let_go(self, job_id: str) -> None:
        """The job is gone."""
        self._held.pop(job_id, None)

    def show_life(self) -> None:
        """The process's loop works. To be called more often than once in `STANDSTILL_LEASES` leases."""
        self._seen_alive = self._now()

    async def keep(self, leases: JobLeases, presence: WorkerPresence) -> None:
        """Renews for ever, and says that this worker lives."""
        while True:
            silent_s = self._now() - self._seen_alive
            if silent_s > self._lease_s:
                logger.warning("this process's event loop has been standing still for %.1f s", silent_s)
            if silent_s > STANDSTILL_LEASES * self._lease_s:
                self._lose_all("nothing has moved here for too long")
                settled = True
            else:
                settled = await self._renew(leases, presence)
            await asyncio.sleep(min(self._lease_s / (3 if settled else 20), self._time_left()))

    async def _renew(self, leases: JobLeases, presence: WorkerPresence) -> bool:
        """Renews what is held; false when that has to be tried again soon. Stops the jobs whose time is over."""
        kept = self._kept()
        asked_at = self._now()
        valid_until = min((held.valid_until for held in kept), default=asked_at + self._lease_s)
        answer_in = max(valid_until - self._margin_s - asked_at, self._margin_s)
        settled = False
        try:
            async with asyncio.timeout(answer_in):
                renewals = await leases.renew([held.job_id for held in kept]) if kept else {}
                forgotten = [held for held in kept if not self._settle(held, renewals[held.job_id], asked_at)]
                for held in forgotten:
                    await self._retake(leases, held)
                await presence.show(self._worker, for_s=self._lease_s)
                settled = True
        except (Unavailable, TimeoutError) as error:
            logger.warning("leases could not be renewed: %s", error or "no answer in time")
        for held in kept:
            if held.kept and held.valid_until - self._margin_s <= self._now():
                self._lose(held, "it could not be renewed in time")
        return settled

    def _kept(self) -> list[_HeldJob]:
        # A copy first: the process's thread may add to the dictionary while this one goes through it.
        return [held for held in list(self._held.values()) if held.kept]

    def _time_left(self) -> float:
        """Seconds until the first job would have to be stopped."""
        first = min((held.valid_until for held in self._kept()), default=math.inf)
        return max(0.0, first - self._margin_s - self._now())

    def _settle(self, held: _HeldJob, renewal: Renewal, asked_at: float) -> bool:
        """Takes note of a renewal. False when it is still open what becomes of the lease."""
        if renewal is Renewal.TAKEN:
            self._lose(held, "another worker has it")
        elif renewal is Renewal.FORGOTTEN:
            held.unsure = True
        elif not held.unsure:
            held.valid_until = asked_at + self._lease_s
        return not held.unsure

    async def _retake(self, leases: JobLeases, held: _HeldJob) -> None:
        """Asks SQL before and after: the sweeper, which takes a forgotten job for a lost one, first renews the ring in
        SQL and then looks whether the lease is there again. So one of the two sees the other."""
        if not held.kept:
            return
        if not await self._still_ours(held.job_id):
            self._lose(held, "the run was claimed or rung again")
            return
        asked_at = self._now()
        if not held.kept:
            return
        if not await leases.retake(held.job_id):
            self._lose(held, "another worker was quicker to take it again")
            return
        if not await self._still_ours(held.job_id):
            self._lose(held, "the run was rung again")
        if held.kept:
            held.unsure = False
            held.valid_until = asked_at + self._lease_s
            logger.warning("Redis had forgotten the lease of job %s: taken again", held.job_id)
        else:
            await leases.release(held.job_id)  # lost, or the job ended while we asked for its lease

    def _lose_all(self, reason: str) -> None:
        for held in self._kept():
            self._lose(held, reason)

    def _lose(self, held: _HeldJob, reason: str) -> None:
        if not held.kept:
            return
        held.lost = True
        logger.warning("lost the lease of job %s: %s", held.job_id, reason)
        self._on_lost(held.job_id)
