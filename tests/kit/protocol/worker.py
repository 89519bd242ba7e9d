"""A process that leases jobs: the product's table of leases and its way to take a forgotten one again. A test chooses
the time of each request."""

import copy
from collections.abc import Callable

from shared.domain.errors import LeaseLost, MoreInput, ShutdownRequested, Unavailable
from shared.redis import keys
from shared.redis.connection import CancelSignal
from shared.redis.queue import JobLeases
from tests.kit.protocol.owner import Owner, Surroundings
from tests.kit.protocol.round_trips import Party
from worker.queue.leases import LeaseRenewer, LeaseState, Report
from worker.run.execute_run import ActiveRuns

LEASE_MS = 6000

HANDED_OVER = (LeaseLost, MoreInput, ShutdownRequested, Unavailable)
"""Exceptions that end a job which another worker continues."""


class ProtocolRenewer(LeaseRenewer):
    """The product's lease table, one step at a time."""

    def __init__(self, around: Surroundings, party: Party, on_lost: Callable[[str], None], active: ActiveRuns) -> None:
        super().__init__(
            around.redis,
            worker=party.name,
            lease_s=LEASE_MS / 1000,
            is_embedded=True,
            now=around.clock.monotonic,
            on_lost=on_lost,
            still_ours=lambda job_id: active.still_owned(*keys.parse_job_id(job_id)),
        )
        self.job_leases: JobLeases = around.trips.to(self._job_leases, party)
        self._job_leases = self.job_leases

    async def renew(self) -> None:
        """Renews the held leases, in one call, and reports like the renewing thread."""
        asked_at = self._now()
        answers = await self.job_leases.renew(list(self.leases.to_renew()))
        self._reports.append(Report(answers, asked_at))
        self._read_reports()

    def look_at_time(self) -> None:
        """Gives up overdue leases."""
        self._read_reports()

    async def retake(self, job_id: str) -> None:
        """Takes a forgotten lease again, or loses it."""
        await self._retake(job_id)


class ProtocolWorker:
    """One process. Its jobs go on until they learn that their lease is lost."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self.party = Party(name)
        self.jobs: dict[str, Owner] = {}
        self.zombies: list[Owner] = []
        """Jobs whose lease is lost, and that may not have learned it."""
        self._around = around
        runs = around.trips.to(around.stores.runs, self.party)
        self._active_runs = ActiveRuns(
            signal=CancelSignal(around.redis), runs=runs, clock=around.clock, look_every_s=1e9
        )
        self._renewer = ProtocolRenewer(around, self.party, self._lose, self._active_runs)
        self._leases = self._renewer.job_leases
        self._asked: dict[str, int] = {}
        """How often Redis had lost data when a job's lease was last asked for."""
        self._retaking: set[str] = set()

    @property
    def unsure(self) -> list[str]:
        """Jobs whose leases Redis has forgotten."""
        return self._renewer.leases.unsure()

    def believed(self) -> list[str]:
        """The jobs whose leases it considers its own at this moment."""
        table = copy.deepcopy(self._renewer.leases)
        table.overdue(self._around.clock.monotonic())
        return list(table.to_renew())

    def sure(self) -> list[str]:
        """Those among them that Redis confirms, unless it lost data since the last request."""
        state, losses = self._renewer.leases.state, self._around.losses
        return [
            job_id
            for job_id in self.believed()
            if state(job_id) is LeaseState.HELD and self._asked.get(job_id) == losses
        ]

    def begin(self, doing: str, most: int = 1) -> None:
        """Begins one of a worker's operations on its leases."""
        match doing:
            case "claim":
                self._around.start(self._claim(most), name=f"{self.party.name} claims")
            case "renew" if self._renewer.leases.to_renew():
                self._around.start(self._renew(), name=f"{self.party.name} renews")
            case "retake":
                # The product requests one after the other, so never the same twice at a time.
                for job_id in [job_id for job_id in self.unsure if job_id not in self._retaking][:most]:
                    self._retaking.add(job_id)
                    self._around.start(self._retake(job_id), name=f"{self.party.name} retakes {job_id}")
            case _:
                pass

    def hear_of_losses(self) -> None:
        """Notifies the jobs whose leases are lost."""
        for zombie in self.zombies:
            self._active_runs.lease_lost(zombie.run_id, zombie.number)

    def look_at_time(self) -> None:
        """Stops the jobs whose time is over, unless the process is paused."""
        if self.party.goes_on:
            self._renewer.look_at_time()

    async def _claim(self, most: int) -> None:
        asked_at, losses = self._around.clock.monotonic(), self._around.losses
        for job_id in (await self._leases.claim(most)).job_ids:
            if self._renewer.leases.state(job_id) is LeaseState.LOST:
                continue
            self._renewer.hold(job_id, asked_at=asked_at)
            self._asked[job_id] = losses
            if job_id not in self.jobs:
                owner = Owner(self._around, self._active_runs, self.party, *keys.parse_job_id(job_id))
                self.jobs[job_id] = owner
                self._around.start(self._run(job_id, owner), name=owner.party.name)

    async def _renew(self) -> None:
        losses, asked_for = self._around.losses, self._renewer.leases.to_renew()
        await self._renewer.renew()
        self._asked |= {job_id: losses for job_id in asked_for if job_id not in self.unsure}

    async def _retake(self, job_id: str) -> None:
        losses = self._around.losses
        try:
            await self._renewer.retake(job_id)
        finally:
            self._retaking.discard(job_id)
        self._asked[job_id] = losses

    async def _run(self, job_id: str, owner: Owner) -> None:
        """The part of `QueueWorker` that handles a job."""
        is_done = True
        try:
            await owner.execute()
        except HANDED_OVER:
            is_done = False
        try:
            if self._renewer.release(job_id):
                await (self._leases.finish(job_id) if is_done else self._leases.release(job_id))
        except Unavailable:
            pass  # the lease ends by itself
        self._renewer.forget(job_id)
        self._asked.pop(job_id, None)
        self.jobs.pop(job_id, None)

    def _lose(self, job_id: str) -> None:
        self.zombies.append(self.jobs[job_id])
