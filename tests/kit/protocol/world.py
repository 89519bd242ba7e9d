"""The lease, the fence and the log with all their users: workers, sweeper, API, readers, and a Redis that forgets.
`check` has the conditions after every step, `come_to_rest` those that must be reachable in the end."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from shared.concurrency import PATIENCE_S, Patience
from shared.domain.approvals import DENIED_BY_CANCEL
from shared.domain.errors import CancelMode, HoldfastError
from shared.domain.events import is_end
from shared.domain.ids import IdMaker, RunId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import unbroken
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.queue import RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from tests.kit.protocol.owner import LOG_TTL_S, Owner, Surroundings
from tests.kit.protocol.round_trips import Party, Passing
from tests.kit.protocol.witness import KnownRun
from tests.kit.protocol.worker import LEASE_MS, ProtocolWorker
from tests.kit.runs.stored_runs import CANCEL, some_run
from tests.kit.services.redis_losses import Replica, fail_over, lose_end_of_stream, replicate
from worker.maintenance import Sweeper
from worker.run.execute_run import NEIGHBOURS_S

WORKERS = 3
RUNS = 3
THREADS = 2
ZOMBIES = 3
"""This many earlier processes of each worker go on; older ones die."""
NEIGHBOURS_MS = round(NEIGHBOURS_S * 1000)
SWEEPS_AFTER_LOSS = 2
"""When Redis has lost data, a sweep may leave a run to a job of a dispatch that is the newest no more, which then is
claimed in vain; the next sweep finds the run."""


class ProtocolWorld:
    """One example: from its first run to the moment when every run has ended."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.trips = around.trips
        self._names = count(1)
        self._threads = [ThreadId(f"thread-{next(around.numbers):09}") for _ in range(THREADS)]
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.strangers = [Party("the API"), Party("another API"), Party("the sweeper")]
        """Processes without leases."""
        self._queue = RunQueue(around.redis)
        self._log = EventLog(around.redis, ttl_s=LOG_TTL_S)
        self._replica: Replica | None = None
        self._replica_losses = 0
        """How often Redis had lost data when the replica was up to date."""
        self._forgotten_is_back = False
        """A replica that had what Redis then lost has taken its place."""
        self._resting = False

    @property
    def active(self) -> list[KnownRun]:
        return [known for known in self.around.runs if known.ended is None]

    @property
    def owners(self) -> list[Owner]:
        """Owners that have a run and are idle; an owner that has lost it meanwhile does not know."""
        return [owner for worker in self.workers for owner in [*worker.jobs.values()] if owner.is_idle]

    async def submit(self, thread: int, *, dispatch: bool) -> None:
        run = some_run(
            id=RunId(f"run-{next(self.around.numbers):09}"),
            thread_id=self._threads[thread % THREADS],
            callback_url="http://127.0.0.1/called",
        )
        try:
            await self.around.stores.runs.submit(run, [])
        except HoldfastError:
            return  # the thread waits for a person
        self.around.runs.append(KnownRun(run.id))
        if dispatch:
            await self._queue.dispatch(Dispatch(run.id, run.dispatch))

    async def dispatch(self, known: KnownRun) -> None:
        """The newest dispatch, perhaps once more."""
        await self._queue.dispatch(Dispatch(known.run_id, self.around.witness.trace(known.run_id).dispatch))

    def sweep(self) -> None:
        """The sweeper begins a round, in which it waits for workers that may take their leases again."""
        around, party = self.around, self.strangers[2]
        sweeper = Sweeper(
            listing=self.trips.to(around.stores.listing, party),
            runs=self.trips.to(around.stores.runs, party),
            queue=self.trips.to(self._queue, party),
            orphans=self._orphans(party),
            clock=around.clock,
            quiet_s=0,
            patience_s=LEASE_MS / 2000,
        )

        async def sweep() -> None:
            await sweeper.sweep()

        around.start(sweep(), name="sweep")

    async def request_cancel(self, known: KnownRun) -> None:
        runs = self.around.stores.runs
        await runs.request_cancel(await runs.look_up(known.run_id), CANCEL)

    def take_orphaned(self, known: KnownRun, party: Party) -> None:
        """The API begins to end a run that no worker holds."""
        self.around.start(self._take_orphaned(known, party), name=f"{party.name} cancels {known.run_id}")

    async def _take_orphaned(self, known: KnownRun, party: Party) -> None:
        run = await self.trips.to(self.around.stores.runs, party).look_up(known.run_id)
        if run.status is RunStatus.RUNNING and await self.trips.to(self._queue, party).is_leased(run.id, run.dispatch):
            return
        await self._orphans(party).cancel(run, cause="user", mode=CancelMode.INTERRUPT, denial_reason=DENIED_BY_CANCEL)

    def _orphans(self, party: Party) -> OrphanedRuns:
        stores, far, patience = self.around.stores, self.trips.to, Patience(PATIENCE_S, self.around.clock)
        return OrphanedRuns(
            runs=patience.applied_to(far(stores.runs, party), RunStore.take_over),
            agents=far(stores.agents, party),
            messages=far(stores.messages, party),
            checkpoints=far(stores.checkpoints, party),
            settlements=patience.applied_to(far(stores.settlements, party), SettlementStore.settle),
            events=far(stores.events, party),
            event_log=far(EventLog(self.around.redis, ttl_s=LOG_TTL_S, owner=party.name), party),
            queue=far(self._queue, party),
            clock=self.around.clock,
            ids=IdMaker(),
        )

    async def live(self, ms: int) -> None:
        """Time passes, and all live parties do their due work, one after another."""
        while ms >= 0:
            pause = min(ms, LEASE_MS // 3)
            await self.pass_time(pause)
            for worker in [worker for worker in self.workers if worker.party.goes_on]:
                worker.begin("renew")
                await self.trips.let_all_pass(worker.party)
                worker.begin("retake", RUNS)
                if not worker.jobs:
                    worker.begin("claim")
                for owner in worker.jobs.values():
                    owner.emit()
                await self.trips.let_all_pass(worker.party)
                await self.check()
            ms -= max(1, pause)

    async def let_pass(self, number: int, passing: Passing, more: int) -> None:
        """One round trip is made, and some that follow on it."""
        waiting = self.trips.waiting()
        if waiting:
            trip = waiting[number % len(waiting)]
            await self.trips.let_pass(trip, passing)
            await self.trips.let_all_pass(trip.party, more)

    async def act(self, party: Party, begin: Callable[[], object], passing: Passing, more: int) -> None:
        """A party begins an operation, and makes some round trips for it, ahead of others."""
        before = self.trips.waiting(party)
        begin()
        await self.trips.until_quiet()
        for trip in self.trips.waiting(party):
            if more and trip not in before and trip in self.trips.waiting(party):
                await self.trips.let_pass(trip, passing)
        await self.trips.let_all_pass(party, more)

    async def kill(self, worker: ProtocolWorker, *, late: int = 0) -> None:
        """The process dies, and another one replaces it. Its sent requests may still arrive."""
        for trip in self.trips.waiting(worker.party)[:late]:
            await self.trips.let_pass(trip, "answer late")
        worker.party.is_dead = True
        self.workers[self.workers.index(worker)] = self._worker()

    async def flush(self) -> None:
        await cast("Any", self.around.redis).flushdb()
        self._note_loss()

    async def lose_queue(self, known: KnownRun) -> None:
        """Redis loses the waiting jobs, and a process dispatches them once more; the leases remain."""
        dispatch = self.around.witness.trace(known.run_id).dispatch
        await cast("Any", self.around.redis).delete(keys.QUEUE, keys.job(keys.job_id(known.run_id, dispatch)))
        await self._queue.dispatch(Dispatch(known.run_id, dispatch))

    async def replicate(self) -> None:
        self._replica = await replicate(self.around.redis)
        self._replica_losses = self.around.losses

    async def fail_over(self) -> None:
        """Redis returns to its state at the last replication."""
        if self._replica is not None:
            self._forgotten_is_back = self._forgotten_is_back or self._replica_losses < self.around.losses
            await fail_over(self.around.redis, self._replica, now_ms=self.around.clock.ms)
            self._note_loss()

    async def lose_part_of_log(self, known: KnownRun, number: int) -> None:
        """All of a stream, as when Redis needs room; one entry, with others behind it; or its end, as after a failover.
        Redis still knows whose it was."""
        key, redis = keys.events(known.run_id), cast("Any", self.around.redis)
        unsaved = await self._log.read(known.run_id, known.stored_to)
        if number == 1 and len(unsaved) > 1:
            await redis.xdel(key, f"{unsaved[len(unsaved) // 2 - 1][0]}-0")
            known.redis_has_hole = True
        elif number == 2:
            await redis.delete(key)
        elif number > 2:
            await lose_end_of_stream(self.around.redis, key, number - 2)
        known.redis_lost_data = True

    def _note_loss(self) -> None:
        self.around.losses += 1
        self.around.lost_at_ms = self.around.clock.ms
        for known in self.around.runs:
            known.redis_lost_data = True

    def _worker(self) -> ProtocolWorker:
        return ProtocolWorker(self.around, f"worker-{next(self._names)}")

    async def pass_time(self, ms: int) -> None:
        self.around.clock.advance(ms)
        for worker in self.workers:
            worker.look_at_time()
            for zombie in worker.zombies[:-ZOMBIES]:
                zombie.party.is_dead = True
            del worker.zombies[:-ZOMBIES]
        await self.trips.until_quiet()

    async def check(self) -> None:
        """After every step."""
        await self.pass_time(0)
        active = self.active
        for known in self.around.runs:
            self.around.witness.check(known)
        for known in active:
            known.see_log(await self._log.read(known.run_id, Seq(0)))
        self._check_beliefs()
        await self._check_leases()
        if not self.active and not self._resting:
            await self.submit(0, dispatch=True)

    def _check_beliefs(self) -> None:
        """One believer per run, but for the time that it takes to notice that Redis has lost data. Of those that Redis
        has confirmed since then, there is never more than one; but Redis may have forgotten a lease, and have it again
        by a failover before its worker has noticed. Then there may be one for each dispatch, until the older one
        writes."""
        since_ms = self.around.clock.ms - self.around.lost_at_ms
        may_be_more = self.around.losses and since_ms <= LEASE_MS
        believers: dict[str, list[str]] = {}
        for worker in self.workers:
            for job_id in worker.sure() if may_be_more else worker.believed():
                if worker.jobs[job_id].handle is not None:
                    held = job_id if self._forgotten_is_back else keys.parse_job_id(job_id)[0]
                    believers.setdefault(held, []).append(f"{worker.party.name} {job_id}")
        for names in believers.values():
            assert len(names) < 2, f"{names} hold one run; {self.around.losses} losses, {since_ms} ms ago"

    async def _check_leases(self) -> None:
        """A worker's belief matches Redis, unless Redis lost data since the worker's last request."""
        sure = [(worker.party.name, job_id) for worker in self.workers for job_id in worker.sure()]
        if not sure:
            return
        holders = await cast("Any", self.around.redis).mget([keys.lease(job_id) for _, job_id in sure])
        for (name, job_id), holder in zip(sure, holders, strict=True):
            assert holder == name.encode(), f"{name} believes to hold {job_id}, Redis says {holder}"

    async def read(self, known: KnownRun, cursor: int, limit: int) -> None:
        """A reader follows the log from a shown number: first in Redis, and in SQL for entries that Redis lacks."""
        shown = [Seq(1), *sorted(known.events)]
        await self._follow(known, shown[cursor % len(shown)], limit)

    async def _follow(self, known: KnownRun, last: Seq, limit: int) -> Seq:
        events = self.around.stores.events
        while True:
            live, stored = await self._log.read(known.run_id, last, limit), await events.read(known.run_id, last, limit)
            if not (live or stored):
                break
            entries = unbroken(last, live) or unbroken(last, stored)
            if not entries:
                # The reader gets a gap.
                first = (stored or live)[0][0]
                assert known.redis_has_hole, f"nobody has what comes between {last} and {first}"
                last = Seq(first - 1)
                continue
            for seq, entry in entries:
                known.see(seq, entry, place="a reader's hands")
            last = entries[-1][0]
        return last

    async def come_to_rest(self) -> None:
        """All processes are gone. A lease and some sweeps later, every run can be claimed and ended, and read to its
        end; then the next one of its thread is dispatched by itself."""
        self._resting = True
        for party in [*self.strangers, *(worker.party for worker in self.workers)]:
            party.is_dead = True
        self.strangers = [Party("a new API"), Party("another new API"), Party("a new sweeper")]
        self.workers = [self._worker()]
        await self.pass_time(LEASE_MS + 2)
        await self._sweep_until_nothing_changes()
        while self.active:
            await self._end_some()
        for known in self.around.runs:
            await self._check_end(known)

    async def _sweep_until_nothing_changes(self) -> None:
        """The remaining workers claim the runs that each sweep has dispatched."""
        most = SWEEPS_AFTER_LOSS if self.around.losses else 1
        for number in count(1):
            before = await self._runs_and_jobs()
            self.sweep()
            await self._wait_and_renew(LEASE_MS)
            swept = await self._runs_and_jobs()
            assert swept == before or number <= most, f"sweep {number} found something to do: {before}, then {swept}"
            await self._claim_all()
            if await self._runs_and_jobs() == before:
                return

    async def _runs_and_jobs(self) -> list[object]:
        jobs: list[bytes] = await cast("Any", self.around.redis).zrange(keys.QUEUE, 0, -1)
        return [*sorted(jobs), *(self.around.witness.trace(known.run_id) for known in self.around.runs)]

    async def _claim_all(self) -> None:
        """Until there is nothing that the worker could claim. A run that it executes alone sends its neighbours away,
        and begins when they are gone."""
        before: list[object] | None = None
        while before != (now := await self._runs_and_jobs()):
            before = now
            self.workers[0].begin("claim", 1000)
            await self._wait_and_renew(NEIGHBOURS_MS)

    async def _wait_and_renew(self, ms: int) -> None:
        await self.trips.let_all_pass()
        for _ in range(0, ms, LEASE_MS // 2):
            await self.pass_time(LEASE_MS // 2 + 1)
            self.workers[0].begin("renew")
            await self.trips.let_all_pass()

    async def _end_some(self) -> None:
        """Ends the run at the head of each thread."""
        before = len(self.active)
        for known in self.active:
            if self.around.witness.trace(known.run_id).status == RunStatus.AWAITING_APPROVAL:
                self.take_orphaned(known, self.strangers[0])
        await self._claim_all()
        for owner in self.owners:
            owner.tell("settle")
        await self.trips.let_all_pass()
        await self.check()
        left = [self.around.witness.trace(known.run_id) for known in self.active]
        assert len(left) < before, f"nobody can claim and end {left}"

    async def bury(self) -> None:
        """Removes all parties before the next example."""
        for worker in self.workers:
            worker.party.is_dead = True
        while tasks := [task for task in self.around.tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            self.around.clock.advance(LEASE_MS)
            await asyncio.wait(tasks, timeout=0)

    async def _check_end(self, known: KnownRun) -> None:
        stored = await self.around.stores.events.read(known.run_id, Seq(1), limit=10_000)
        assert unbroken(Seq(1), stored) == stored, "the stored log has a hole"
        ends = [seq for seq, entry in stored if is_end(entry)]
        assert ends == [known.stored_to], f"the log ends at {ends}"
        assert await self._follow(known, Seq(1), 3) == known.stored_to, "a reader does not come to the end"
