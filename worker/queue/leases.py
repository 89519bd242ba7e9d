"""Renews the leases of the jobs of this process, and tracks which are valid, in doubt or lost.

A separate thread renews all leases of the process in one call, three times per lease. So a run that blocks the
process's event loop does not cost other runs their leases. The thread only renews and reports; on the process's loop,
`Leases` decides what happens to a lease. It is a table without I/O, clock or thread:

    HELD ──renewed──> HELD                        Redis confirms that it is ours
    HELD ──forgotten──> UNSURE                    Redis has no lease: it lost data, or we were late
    UNSURE ──retaken──> HELD                      SQL confirms that the run is still ours, and Redis has the lease again
    HELD, UNSURE ──taken, refused, overdue──> LOST    another worker has the job, or may have it soon
    HELD, UNSURE ──release──> RELEASING           the job's code has returned; its lease is being released

A lost job is interrupted once. Its writes until then do no harm: SQL and the log refuse an old fence.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import structlog

from shared.concurrency import background, on_own_thread
from shared.domain.errors import Unavailable
from shared.redis.connection import Redis, own_client
from shared.redis.queue import JobLeases, Renewal, WorkerPresence

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

STANDSTILL_LEASES = 10
"""Leases' lengths. If the loop is blocked for longer, the thread stops renewing, and other workers get the jobs."""


class LeaseState(Enum):
    """The state of a lease in the table above."""

    HELD = "held"
    UNSURE = "unsure"
    LOST = "lost"
    RELEASING = "releasing"


class Report(NamedTuple):
    """Redis' answers to a renewal that was sent at `asked_at`; empty if it did not answer."""

    answers: Mapping[str, Renewal]
    asked_at: float


@dataclass(slots=True)
class _Lease:
    valid_until: float
    """Never later than in Redis, because it is measured from before the request."""
    state: LeaseState = LeaseState.HELD


_LIVING = (LeaseState.HELD, LeaseState.UNSURE)


class Leases:
    """The table of leases. Times are seconds of a monotonic clock; `lease_s` is the length of a lease. A job must stop
    a sixth of a lease before its lease expires."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._margin_s = lease_s / 6
        self._leases: dict[str, _Lease] = {}

    def hold(self, job_id: str, *, asked_at: float) -> None:
        """Adds a claimed job, whose claim was sent at `asked_at`."""
        self._leases.setdefault(job_id, _Lease(asked_at)).valid_until = asked_at + self._lease_s

    def state(self, job_id: str) -> LeaseState | None:
        """Returns the state of a job's lease; None if the job is not in the table."""
        return self._leases[job_id].state if job_id in self._leases else None

    def to_renew(self) -> dict[str, float]:
        """Returns the jobs whose leases must be renewed, and when each must stop if its lease is not renewed."""
        living = ((job_id, lease) for job_id, lease in self._leases.items() if lease.state in _LIVING)
        return {job_id: lease.valid_until - self._margin_s for job_id, lease in living}

    def unsure(self) -> list[str]:
        """Returns the jobs whose leases Redis has forgotten."""
        return [job_id for job_id, lease in self._leases.items() if lease.state is LeaseState.UNSURE]

    def catch_up(self, reports: Iterable[Report], *, now: float) -> dict[str, str]:
        """Applies all reports, oldest first, and then checks for overdue leases: after the loop was blocked, only the
        last report shows which leases are valid. Returns the jobs that must stop, and why."""
        lost: dict[str, str] = {}
        for report in reports:
            lost |= dict.fromkeys(self.renewed(report.answers, asked_at=report.asked_at), "another worker has it")
        return lost | dict.fromkeys(self.overdue(now), "it could not be renewed in time")

    def renewed(self, answers: Mapping[str, Renewal], *, asked_at: float) -> list[str]:
        """Applies Redis' answers to a renewal that was sent at `asked_at`. Returns the jobs that must stop."""
        taken: list[str] = []
        for job_id, answer in answers.items():
            lease = self._living(job_id)
            if lease is None:
                continue
            if answer is Renewal.TAKEN:
                lease.state = LeaseState.LOST
                taken.append(job_id)
            elif answer is Renewal.FORGOTTEN:
                lease.state = LeaseState.UNSURE
            elif lease.state is LeaseState.HELD:
                lease.valid_until = max(lease.valid_until, asked_at + self._lease_s)
        return taken

    def overdue(self, now: float) -> list[str]:
        """Marks leases as lost that expire before they can be renewed. Returns the jobs that must stop."""
        late = [job_id for job_id, stop_at in self.to_renew().items() if stop_at <= now]
        for job_id in late:
            self._leases[job_id].state = LeaseState.LOST
        return late

    def retaken(self, job_id: str, *, asked_at: float) -> bool:
        """Records that a forgotten lease was taken again. False if its job has ended, so that it must be released."""
        lease = self._living(job_id)
        if lease is None:
            return False
        lease.state, lease.valid_until = LeaseState.HELD, asked_at + self._lease_s
        return True

    def refused(self, job_id: str) -> bool:
        """Records that a forgotten lease could not be taken again. False if the job was stopped before."""
        lease = self._living(job_id)
        if lease is None:
            return False
        lease.state = LeaseState.LOST
        return True

    def release(self, job_id: str) -> bool:
        """Records that the job has ended, so that its lease is not taken again. False if it has no lease to release."""
        lease = self._leases.get(job_id)
        if lease is None or lease.state is LeaseState.LOST:
            return False
        lease.state = LeaseState.RELEASING
        return True

    def forget(self, job_id: str) -> None:
        """Removes the job."""
        self._leases.pop(job_id, None)

    def _living(self, job_id: str) -> _Lease | None:
        lease = self._leases.get(job_id)
        return lease if lease is not None and lease.state in _LIVING else None


class LeaseRenewer:
    """Renews the leases of the table and updates it.

    `on_lost(job_id)` is called once for a job that must stop at once. `still_ours(job_id)` asks SQL whether this worker
    owns the job's run and no newer dispatch exists; it may raise `Unavailable`. Everything but `_renew_for_ever` runs
    on the process's loop.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        worker: str,
        lease_s: float,
        is_embedded: bool,
        now: Callable[[], float],
        on_lost: Callable[[str], None],
        still_ours: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.leases = Leases(lease_s)
        self._redis, self._worker, self._lease_s = redis, worker, lease_s
        self._is_embedded = is_embedded
        self._now = now
        self._on_lost = on_lost
        self._still_ours = still_ours
        self._job_leases = JobLeases(redis, worker=worker, lease_s=lease_s)
        self._loop = asyncio.get_running_loop()
        self._retaking = asyncio.Event()
        # The thread reads it; the process's loop replaces it as a whole.
        self._to_renew: dict[str, float] = {}
        self._hurries = False
        self._alive_at = now()
        # The thread writes it.
        self._reports: deque[Report] = deque()

    @asynccontextmanager
    async def renewing(self) -> AsyncGenerator[None]:
        """Renews leases within the block. An embedded Redis runs on the process's loop and has no other client, so no
        other worker can take a lease meanwhile, and no thread is needed."""
        renewing = (
            self._renew_for_ever(self._redis) if self._is_embedded else on_own_thread(self._renew_there, name="leases")
        )
        async with (
            background(renewing, name="renew leases"),
            background(self._show_life(), name="signs of life"),
            background(self._retake_forgotten(), name="take forgotten leases again"),
        ):
            yield

    def hold(self, job_id: str, *, asked_at: float) -> None:
        """Begins to renew the lease of a job whose claim was sent at `asked_at`."""
        self.leases.hold(job_id, asked_at=asked_at)
        self._to_renew = self.leases.to_renew()

    def release(self, job_id: str) -> bool:
        """Records that the job has ended. False if it has no lease to release."""
        is_ours = self.leases.release(job_id)
        self._to_renew = self.leases.to_renew()
        return is_ours

    def forget(self, job_id: str) -> None:
        """Removes the job."""
        self.leases.forget(job_id)
        self._to_renew = self.leases.to_renew()

    async def _renew_there(self) -> None:
        async with own_client(self._redis) as redis:
            await self._renew_for_ever(redis)

    async def _renew_for_ever(self, redis: Redis) -> None:
        """Renews the leases, shows that this worker is alive, and reports. Runs on the thread."""
        leases = JobLeases(redis, worker=self._worker, lease_s=self._lease_s)
        presence = WorkerPresence(redis)
        renewed_at = self._now()
        while True:
            asked_at = self._now()
            silent_s = asked_at - self._alive_at
            if silent_s > self._lease_s:
                log.warning("event_loop_stood_still", silent_s=round(silent_s, 1))
            jobs = self._to_renew if silent_s <= STANDSTILL_LEASES * self._lease_s else {}
            answers: dict[str, Renewal] | None = None
            # Only a report of this thread stops a job in time, and the job may be newer than the last renewal.
            report_at = max(renewed_at + self._lease_s * 5 / 6, min(jobs.values(), default=0))
            answer_in = max(report_at - asked_at, self._lease_s / 12)
            try:
                async with asyncio.timeout(answer_in):
                    answers = await leases.renew(list(jobs)) if jobs else {}
                    await presence.show(self._worker, for_s=self._lease_s)
                renewed_at = asked_at
                log.debug("leases_renewed", jobs=len(jobs))
            except (Unavailable, TimeoutError) as error:
                log.warning("leases_not_renewed", reason=str(error) or "no answer in time")
            self._reports.append(Report(answers or {}, asked_at))
            self._loop.call_soon_threadsafe(self._read_reports)
            await asyncio.sleep(self._lease_s / (20 if answers is None or self._hurries else 3))

    async def _show_life(self) -> None:
        while True:
            self._alive_at = self._now()
            await asyncio.sleep(self._lease_s / 3)

    def _read_reports(self) -> None:
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        for job_id, reason in self.leases.catch_up(reports, now=self._now()).items():
            self._tell_lost(job_id, reason)
        if self.leases.unsure():
            self._hurries = True
            self._retaking.set()
        self._to_renew = self.leases.to_renew()

    async def _retake_forgotten(self) -> None:
        while True:
            await self._retaking.wait()
            self._retaking.clear()
            for job_id in self.leases.unsure():
                try:
                    await self._retake(job_id)
                except Unavailable as error:
                    log.warning("lease_in_doubt", job_id=job_id, reason=str(error))
            self._hurries = bool(self.leases.unsure())

    async def _retake(self, job_id: str) -> None:
        """Takes a forgotten lease again. It asks SQL before and after: the sweeper, which considers such a job lost,
        first stores a new dispatch in SQL and then checks whether the lease is back. So either this worker sees the
        dispatch or the sweeper sees the lease."""
        if not await self._still_ours(job_id):
            self._refuse(job_id, "the run was claimed or dispatched again")
            return
        asked_at = self._now()
        if self.leases.state(job_id) is not LeaseState.UNSURE:
            return
        if not await self._job_leases.retake(job_id):
            self._refuse(job_id, "another worker was quicker to take it again")
            return
        if not await self._still_ours(job_id):
            self._refuse(job_id, "the run was dispatched again")
        if self.leases.retaken(job_id, asked_at=asked_at):
            log.warning("lease_taken_again", job_id=job_id)
        else:
            await self._job_leases.release(job_id)

    def _refuse(self, job_id: str, reason: str) -> None:
        if self.leases.refused(job_id):
            self._tell_lost(job_id, reason)

    def _tell_lost(self, job_id: str, reason: str) -> None:
        log.warning("lease_lost", job_id=job_id, reason=reason)
        self._on_lost(job_id)
