"""The lease, the fence and the log with everybody who uses them: workers, sweeper, API, readers, and a Redis that
forgets. `check` says what must hold after every step, `come_to_rest` what must be possible in the end."""

from itertools import count
from typing import Any, cast

from shared.domain.events import Ended, decode
from shared.domain.ids import Fence, RunId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.queue import RunQueue
from shared.sql.runs.events import LogTail
from tests.kit.protocol_owner import Owner
from tests.kit.protocol_witness import NOBODY, KnownRun, following
from tests.kit.protocol_worker import LEASE_MS, LOG_TTL_S, Job, Late, ProtocolWorker, Surroundings
from tests.kit.runs.stored_runs import CANCEL, ending, some_run
from tests.kit.services.redis_losses import Replica, fail_over, lose_end_of_stream, replicate

WORKERS = 3
RUNS = 2
ZOMBIES = 6
"""The newest of them are kept."""


class ProtocolWorld:
    """One example: from its first run to the moment when every run has ended."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self._names = count(1)
        self.workers = [self._worker() for _ in range(WORKERS)]
        self.takers: list[Owner] = []
        """API processes that took a run which nobody held."""
        self._resting = False
        self._queue = RunQueue(around.redis)
        self._log = EventLog(around.redis, ttl_s=LOG_TTL_S)
        self._stranded: list[Run] = []
        self._to_sound: list[tuple[Run, int]] = []
        self._replica: tuple[Replica, dict[RunId, Fence]] | None = None

    @property
    def active(self) -> list[KnownRun]:
        return [known for known in self.around.runs if known.ended is None]

    def jobs(self) -> list[tuple[ProtocolWorker, Job]]:
        return [(worker, job) for worker in self.workers if not worker.frozen for job in worker.jobs.values()]

    def owners(self) -> list[tuple[ProtocolWorker, Job, Owner]]:
        """The jobs of those who have the run's log, or had it and do not know better."""
        jobs = self.jobs()
        return [(worker, job, job.owner) for worker, job in jobs if job.owner is not None and job.owner.is_open]

    async def submit(self, *, dispatch: bool) -> None:
        name = f"{next(self.around.numbers):09}"
        run = some_run(
            id=RunId(f"run-{name}"), thread_id=ThreadId(name), input=[], callback_url="http://127.0.0.1/called"
        )
        await self.around.stores.runs.submit(run)
        self.around.runs.append(KnownRun(run.id))
        if dispatch:
            await self._queue.dispatch(run.id, run.dispatch)

    async def dispatch(self, known: KnownRun) -> None:
        """The newest dispatch, perhaps once more."""
        await self._queue.dispatch(known.run_id, self.around.witness.trace(known.run_id).dispatch)

    async def sweep(self) -> None:
        """The sweeper looks: whose dispatch is not in the queue."""
        found = [await self.around.stores.runs.look_up(known.run_id) for known in self.active]
        waiting = [run for run in found if run.status in (RunStatus.CREATED, RunStatus.RUNNING)]
        in_queue = await self._queue.queued_among([(run.id, run.dispatch) for run in waiting])
        self._stranded = [run for run in waiting if (run.id, run.dispatch) not in in_queue]

    async def dispatch_unowned(self, *, lose_dispatch: bool = False) -> None:
        """The sweeper gives new dispatches to those that it found a while ago. It may die before the bell sounds."""
        for run in self._stranded:
            dispatch = await self.around.stores.runs.dispatch_again(run)
            if dispatch is not None and not lose_dispatch:
                self._to_sound.append((run, dispatch.number))
        self._stranded = []

    async def deliver_dispatches(self) -> None:
        """The bell sounds, unless the worker of a run has its old lease again."""
        for run, number in self._to_sound:
            is_held = run.status is RunStatus.RUNNING and await self._queue.queued_among([(run.id, run.dispatch)])
            if not is_held:
                await self._queue.dispatch(run.id, number)
        self._to_sound = []

    async def live(self, ms: int) -> None:
        """Time passes, and whoever is well does what there is to do: several round trips of each, one after another."""
        while ms >= 0:
            pause = min(ms, LEASE_MS // 3)
            self.pass_time(pause)
            for worker in self.workers:
                if not worker.frozen:
                    await worker.work()
                    await self.check()
            ms -= max(1, pause)

    async def request_cancel(self, known: KnownRun) -> None:
        await self.around.stores.runs.request_cancel(known.run_id, CANCEL)

    async def take_unowned(self, known: KnownRun, *, also_waiting: bool = True) -> None:
        """Takes a run that nobody holds; one that is not running is settled at once."""
        around = self.around
        run = await around.stores.runs.look_up(known.run_id)
        if run.status is not RunStatus.RUNNING:
            if not also_waiting:
                return
            end = ending(RunTrigger.CANCEL, run, now=around.clock.now())
            settled = await around.stores.settlements.settle(run, end)
            self.takers.append(self._taker(known, settled.run, to_show=settled.tail))
        elif not await self._queue.held(run.id, run.dispatch):
            self.takers.append(self._taker(known, await around.stores.runs.take_over(run, around.clock.now())))

    def _taker(self, known: KnownRun, run: Run, *, to_show: LogTail | None = None) -> Owner:
        around = self.around
        taker = Owner("api", known, run, self._log, around.stores, around.witness, around.clock)
        if to_show is not None:
            taker.over = True
            taker.reserved, taker.unsaved_from = run.last_seq, to_show.last + 1
            taker.outgoing_from, taker.outgoing = to_show.first, list(to_show.entries)
        return taker

    async def go_on_taking(self, taker: Owner) -> None:
        """The API's next round trip: take the log, settle, show the end."""
        if taker.over:
            shown = not taker.outgoing or (await taker.open() and await taker.restore())
            if shown:
                await self._log.expire(taker.run.id)
            goes_on = False
        elif taker.is_open:
            goes_on = await taker.write("settle")
        else:
            goes_on = await taker.open()
        if not goes_on:
            self.takers.remove(taker)
            if taker.run.status is RunStatus.RUNNING:
                self.around.zombies.append(taker)

    async def stand_still(self, worker: ProtocolWorker, job: Job, ms: int, then: Late) -> None:
        """A process stands still in the middle of a job while everybody else goes on, and then does what it was about
        to do, before it looks at the time."""
        worker.frozen = True
        if then == "retake":
            await worker.find_forgotten(job)
        await self.live(ms)
        worker.frozen = False
        if job.job_id in worker.jobs:
            await worker.do_late(job, then)

    async def kill(self, worker: ProtocolWorker) -> None:
        """The process is gone, and another one starts in its place."""
        self.workers[self.workers.index(worker)] = self._worker()

    async def flush(self) -> None:
        await cast("Any", self.around.redis).flushall()
        for known in self.around.runs:
            known.log_owner = NOBODY
        self._note_loss()

    async def lose_queue(self, known: KnownRun) -> None:
        """Redis loses what waits, and somebody dispatches once more; the leases are there."""
        dispatch = self.around.witness.trace(known.run_id).dispatch
        await cast("Any", self.around.redis).delete(keys.QUEUE, keys.job(keys.job_id(known.run_id, dispatch)))
        await self._queue.dispatch(known.run_id, dispatch)

    async def replicate(self) -> None:
        owners = {known.run_id: known.log_owner for known in self.around.runs}
        self._replica = await replicate(self.around.redis), owners

    async def fail_over(self) -> None:
        """Redis is as it was when it was replicated."""
        if self._replica is None:
            return
        replica, owners = self._replica
        await fail_over(self.around.redis, replica, now_ms=self.around.clock.ms)
        for known in self.around.runs:
            known.log_owner = owners.get(known.run_id, NOBODY)
            known.redis_lost_end = True
        self._note_loss()

    async def lose_end_of_log(self, known: KnownRun, number: int) -> None:
        if await lose_end_of_stream(self.around.redis, keys.events(known.run_id), number):
            known.redis_lost_data = known.redis_lost_end = True

    def _note_loss(self) -> None:
        self.around.losses += 1
        self.around.lost_at_ms = self.around.clock.ms
        for known in self.around.runs:
            known.redis_lost_data = True

    def _worker(self) -> ProtocolWorker:
        return ProtocolWorker(self.around, f"worker-{next(self._names)}")

    def pass_time(self, ms: int) -> None:
        self.around.clock.advance(ms)
        for worker in self.workers:
            worker.keep_time()

    async def check(self) -> None:
        """After every step."""
        self.pass_time(0)
        del self.around.zombies[:-ZOMBIES]
        active = self.active
        for known in self.around.runs:
            self.around.witness.check(known)
        for known in active:
            known.see_log(await self._log.read(known.run_id, Seq(0)))
            self._check_beliefs(known)
        await self._check_leases()
        if not self.active and not self._resting:
            await self.submit(dispatch=True)

    def _believers(self, known: KnownRun) -> list[tuple[ProtocolWorker, Job]]:
        """The workers who run this run and take its lease for their own; a frozen one does, too."""
        jobs = [(worker, job) for worker in self.workers for job in worker.jobs.values() if worker.believes(job)]
        return [(worker, job) for worker, job in jobs if job.owner is not None and job.owner.known is known]

    def _check_beliefs(self, known: KnownRun) -> None:
        believers = self._believers(known)
        if len(believers) < 2:
            return
        since_ms = self.around.clock.ms - self.around.lost_at_ms
        assert self.around.losses, f"{believers} hold one run, and Redis had lost nothing"
        assert since_ms <= LEASE_MS, f"{believers} hold one run, {since_ms} ms after Redis lost data"

    async def _check_leases(self) -> None:
        """What a worker believes is what Redis says, unless Redis lost data since the worker asked."""
        sure = [
            (worker.name, job.job_id)
            for worker in self.workers
            for job in worker.jobs.values()
            if worker.believes(job) and job.losses_before == self.around.losses
        ]
        if not sure:
            return
        holders = await cast("Any", self.around.redis).mget([keys.lease(job_id) for _, job_id in sure])
        for (name, job_id), holder in zip(sure, holders, strict=True):
            assert holder == name.encode(), f"{name} believes to hold {job_id}, Redis says {holder}"

    async def read(self, known: KnownRun, after: int, limit: int) -> None:
        """A reader follows the log from a cursor: Redis first, and from SQL what Redis does not have."""
        last = after
        while True:
            entries = following(await self._log.read(known.run_id, Seq(last), limit), last)
            if not entries:
                entries = following(await self.around.stores.events.read(known.run_id, Seq(last), limit), last)
            if not entries:
                break
            for seq, entry in entries:
                known.see(seq, entry, place="a reader's hands")
            last = entries[-1][0]
        beyond = await self._log.read(known.run_id, Seq(last), 1)
        assert not beyond or known.may_have_hole, f"nobody has what Redis once had after {last}"
        assert known.redis_lost_data or last >= known.shown_to, f"a reader does not get further than {last}"

    async def come_to_rest(self) -> None:
        """Everybody is gone. A lease and a sweep later, every run can be claimed and ended, and read to its end."""
        self._resting = True
        self.workers = []
        self.pass_time(LEASE_MS + 2)
        await self.sweep()
        await self.dispatch_unowned()
        await self.deliver_dispatches()
        fresh = self._worker()
        self.workers = [fresh]
        await fresh.claim(1000)
        for known in self.active:
            await self._end(fresh, known)
            await self.check()
        for known in self.around.runs:
            await self._check_end(known)

    async def _end(self, fresh: ProtocolWorker, known: KnownRun) -> None:
        trace = self.around.witness.trace(known.run_id)
        if trace.status == RunStatus.AWAITING_APPROVAL:
            await self.take_unowned(known)
            return
        job = fresh.jobs.get(keys.job_id(known.run_id, trace.dispatch))
        assert job is not None, f"a {trace.status} run in nobody's hands cannot be leased"
        await fresh.begin(job)
        assert job.owner is not None, f"a {trace.status} run in nobody's hands cannot be claimed"
        await fresh.begin(job)
        assert await job.owner.write("settle"), "its new owner could not settle it"
        for _ in range(2):
            assert await job.owner.send(), "its new owner could not show the end"
        await fresh.close(job)

    async def _check_end(self, known: KnownRun) -> None:
        stored = await self.around.stores.events.read(known.run_id, Seq(1), limit=10_000)
        assert following(stored, 1) == stored, "the stored log has a hole"
        ends = [seq for seq, entry in stored if isinstance(decode(entry), Ended)]
        assert ends == [known.stored_to], f"the log ends at {ends}"
        await self.read(known, 1, 3)
