"""A worker as the lease protocol sees it: jobs that it believes to hold, until a moment by its own clock."""

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from arq.connections import ArqRedis

from shared.domain.lifecycle import RunStatus
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.queue import JobLeases, Renewal
from tests.kit.clocks import FrozenClock
from tests.kit.protocol_owner import Owner
from tests.kit.protocol_witness import KnownRun, Witness
from tests.kit.runs.stored_runs import Stores

LEASE_MS = 6000
LOG_TTL_S = 3600

Late = Literal["renew", "retake", "write", "give back", "finish"]


@dataclass
class Surroundings:
    """What all the actors of one example share."""

    redis: ArqRedis
    stores: Stores
    witness: Witness
    clock: FrozenClock
    numbers: Iterator[int]
    """For the names of runs: the queue orders by name what was dispatched at one moment, so each example needs its own,
    and all of them in one order."""
    runs: list[KnownRun] = field(default_factory=list[KnownRun])
    zombies: list[Owner] = field(default_factory=list[Owner])
    """Those who may be nobody's worker any more, and go on writing."""
    losses: int = 0
    """How often Redis has lost leases."""
    lost_at_ms: int = 0

    def run_of_job(self, job_id: str) -> KnownRun:
        run_id, _ = keys.parse_job_id(job_id)
        return next(known for known in self.runs if known.run_id == run_id)


@dataclass
class Job:
    """A job whose lease a worker was given."""

    job_id: str
    valid_until_ms: int
    losses_before: int
    owner: Owner | None = None
    unsure: bool = False
    """Redis knew of no lease, and it is not settled whose the job is."""
    still_ours: bool = False
    """SQL has said since that the run is ours."""
    taken_again: tuple[int, int] | None = None
    """Redis has given the lease anew: when it was asked, and its losses before."""


class ProtocolWorker:
    """One process. Its clock runs as Redis' own does, and its requests may take their time, there and back."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.name = name
        self.frozen = False
        self.jobs: dict[str, Job] = {}
        self._world = world
        self._leases = JobLeases(world.redis, worker=name, lease_s=LEASE_MS / 1000)
        self._log = EventLog(world.redis, ttl_s=LOG_TTL_S, owner=name)

    def believes(self, job: Job) -> bool:
        """Whether the worker takes the lease for its own at this moment."""
        return job.valid_until_ms > self._world.clock.ms

    async def claim(self, most: int, *, there_ms: int = 0, back_ms: int = 0) -> list[str]:
        """Claims leases."""
        clock, losses = self._world.clock, self._world.losses
        asked_at = clock.ms
        clock.advance(there_ms)
        claimed = await self._leases.claim(most)
        clock.advance(back_ms)
        for job_id in claimed.job_ids:
            job = self.jobs.setdefault(job_id, Job(job_id, 0, 0))
            job.valid_until_ms, job.losses_before = asked_at + LEASE_MS, losses
        return claimed.job_ids

    async def begin(self, job: Job) -> None:
        """The next thing between a lease and the first event: look the job up and claim the run, then take the log."""
        world = self._world
        if job.owner is not None:
            if not job.owner.is_open and not await job.owner.open():
                await self.give_up(job)
            return
        run_id, dispatch = keys.parse_job_id(job.job_id)
        described = await cast("Any", world.redis).exists(keys.job(job.job_id))
        run = await world.stores.runs.claim(run_id, dispatch, world.clock.now()) if described else None
        known = world.run_of_job(job.job_id)
        newest = world.witness.trace(run_id).dispatch
        assert run is None or dispatch == newest, f"dispatch {dispatch} claimed a run whose newest is {newest}"
        if run is None:
            await self._finish(job)
            return
        job.owner = Owner(self.name, known, run, self._log, world.stores, world.witness, world.clock)

    async def renew(self, *, there_ms: int = 0, back_ms: int = 0) -> None:
        """Renews everything in one call."""
        if not self.jobs:
            return
        clock, losses = self._world.clock, self._world.losses
        asked_at = clock.ms
        clock.advance(there_ms)
        renewals = await self._leases.renew(list(self.jobs))
        clock.advance(back_ms)
        for job_id, renewal in renewals.items():
            job = self.jobs[job_id]
            is_forgotten = renewal is Renewal.FORGOTTEN
            job.unsure = job.unsure or is_forgotten
            job.still_ours, job.taken_again = job.still_ours and is_forgotten, None
            if renewal is Renewal.TAKEN:
                self.lose(job)
            elif not job.unsure:
                job.valid_until_ms, job.losses_before = asked_at + LEASE_MS, losses

    async def retake(self, job: Job) -> None:
        """The next thing for a forgotten lease: ask SQL, ask Redis, ask SQL again."""
        if job.taken_again is not None:
            asked_at, losses = job.taken_again
            if await self._is_ours(job):
                job.unsure, job.still_ours, job.taken_again = False, False, None
                job.valid_until_ms, job.losses_before = asked_at + LEASE_MS, losses
            else:
                await self.give_up(job)
        elif job.still_ours:
            asked = self._world.clock.ms, self._world.losses
            if await self._leases.retake(job.job_id):
                job.taken_again = asked
            else:
                self.lose(job)
        else:
            job.still_ours = await self._is_ours(job)
            if not job.still_ours:
                self.lose(job)

    async def _is_ours(self, job: Job) -> bool:
        if job.owner is None:
            return False
        run = job.owner.run
        is_ours = await self._world.stores.runs.owns(run.id, run.fence, run.dispatch)
        trace = self._world.witness.trace(run.id)
        may_run = trace.status == RunStatus.RUNNING and (trace.fence, trace.dispatch) == (run.fence, run.dispatch)
        assert is_ours == may_run, (
            f"{self.name} with {run.fence} and dispatch {run.dispatch} was told {is_ours}: {trace}"
        )
        return is_ours

    async def work(self) -> None:
        """A while in a worker that is well: it renews, takes what waits, and shows an event of each run."""
        await self.renew()
        for job in list(self.jobs.values()):
            while job.unsure and job.job_id in self.jobs:
                await self.retake(job)
        if not self.jobs:
            await self.claim(1)
        for job in list(self.jobs.values()):
            if job.owner is None or not job.owner.is_open:
                await self.begin(job)
            elif job.owner.over:
                await self.close(job)
            else:
                job.owner.emit(1)
                await self.or_give_up(job, job.owner.send())

    async def or_give_up(self, job: Job, write: Awaitable[bool]) -> None:
        """Somebody who refuses a write ends the job."""
        if not await write:
            await self.give_up(job)

    async def close(self, job: Job) -> None:
        """After the run's end: lets the log expire, then removes the job."""
        await self._log.expire(self._world.run_of_job(job.job_id).run_id)
        await self._finish(job)

    async def give_up(self, job: Job) -> None:
        """Somebody refused a write: gives the lease back, if it still has it."""
        await self._leases.release(job.job_id)
        self.lose(job)

    async def hand_over(self, job: Job, *, rounds: int) -> None:
        """What SIGTERM does, for so many round trips until the process is killed."""
        owner = job.owner
        if owner is not None and owner.is_open and not owner.over and rounds > 0:
            await owner.write("leave")
        if rounds > 1:
            await self._leases.release(job.job_id)
        del self.jobs[job.job_id]

    async def wake(self) -> None:
        """The process stood still and goes on: before it looks at the time, it asks for its leases."""
        self.frozen = False
        await self.renew()

    async def find_forgotten(self, job: Job) -> None:
        """Notes that the lease is over and nobody has it yet, and that SQL still says that the run is ours."""
        self._world.clock.advance(LEASE_MS + 2)
        await self.renew()
        if job.job_id in self.jobs and job.unsure:
            await self.retake(job)

    async def do_late(self, job: Job, what: Late) -> None:
        """Does something that was decided on before the process stood still."""
        owner = job.owner if job.owner is not None and job.owner.is_open else None
        match what:
            case "renew":
                await self.renew()
            case "retake" if job.unsure:
                await self.retake(job)
            case "write" if owner is not None:
                await self.or_give_up(job, owner.write("record"))
            case "give back":
                await self.hand_over(job, rounds=2)
            case "finish" if owner is None:
                await self._finish(job)  # a claim that SQL refused ends the job
            case _:
                pass

    def keep_time(self) -> None:
        """Stops the jobs whose time is over, unless the process stands still."""
        if self.frozen:
            return
        for job in list(self.jobs.values()):
            if not self.believes(job):
                self.lose(job)

    def lose(self, job: Job) -> None:
        """The job was stopped, and what it had begun to write may still arrive."""
        del self.jobs[job.job_id]
        if job.owner is not None:
            self._world.zombies.append(job.owner)

    async def _finish(self, job: Job) -> None:
        await self._leases.finish(job.job_id)
        self.lose(job)
