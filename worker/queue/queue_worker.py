"""The worker's side of the queue: claims jobs, runs them, and releases them when the worker ends.

A wake channel and one claim in Redis find jobs; a lease, which is renewed while the job runs, keeps other workers from
it. The loop survives an outage of Redis, and no job can end it. arq describes the jobs, and starts and ends them.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from arq.utils import timestamp_ms
from arq.worker import RetryJob, Worker, func
from redis.exceptions import RedisError

from shared.domain.errors import LeaseLost, MoreInput, ShutdownRequested, Unavailable
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import ChannelListener, Redis
from shared.redis.queue import EXECUTE_RUN, NO_AGENTS, NO_LIMITS, InFlightLimits, JobLeases, decode_job, encode_job
from worker.queue.leases import LeaseRenewer, LeaseState

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Execute = Callable[[RunId, int], Awaitable[None]]

IDLE_S = 1.0
"""Seconds after which the worker polls the queue if nothing wakes it."""

RETRY_S = 0.2
"""Seconds before a retry of a claim that Redis did not answer."""

AGAIN_S = 1.0
"""Seconds before a run that lacks a service returns to the queue."""

UNWIND_S = 1.0
"""Seconds for a job to unwind after its cancellation at the end of a drain."""


class QueueWorker:
    """Runs `execute(run_id, dispatch)` for the jobs of the queue, up to `max_runs` at once, plus up to `spare_runs`
    of projects that have none in flight. It claims no more while `takes_more()` is false, and runs of an operator's own
    code only if their agent is one of `code_agents`.

    The end of `execute` decides what happens to the job:

    - it returns, or raises anything else: the job is done and removed;
    - `ShutdownRequested`, `MoreInput` or a `CancelledError`: the job is released, and claimed within milliseconds;
    - `Unavailable`: the same, after a pause;
    - `LeaseLost`: another worker already has the job, so nothing changes.

    `on_lease_lost(job_id)` must interrupt that run with `LeaseLost`. `on_drain()` must end all runs with
    `ShutdownRequested` after their steps; `on_shutdown()` must interrupt them with it. Both also apply to a run that
    has only just begun. `still_ours(job_id)` asks SQL whether the run still has the fence that this worker claimed; it
    may raise `Unavailable`. Other callbacks must not raise. `keys.parse_job_id` turns a job id into run id and
    dispatch. Create it on the running event loop.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        is_embedded: bool,
        name: str,
        execute: Execute,
        max_runs: int,
        spare_runs: int = 0,
        in_flight: InFlightLimits = NO_LIMITS,
        takes_more: Callable[[], bool] = lambda: True,
        lease_s: float,
        on_lease_lost: Callable[[str], None],
        still_ours: Callable[[str], Awaitable[bool]],
        on_drain: Callable[[], None] = lambda: None,
        on_shutdown: Callable[[], None],
        code_agents: Mapping[str, str] = NO_AGENTS,
    ) -> None:
        self._execute = execute
        self._end_after_steps = on_drain
        self._interrupt_all = on_shutdown
        self._max_runs = max_runs
        self._spare_runs = spare_runs
        self._takes_more = takes_more
        self._job_leases = JobLeases(redis, worker=name, lease_s=lease_s, in_flight=in_flight, code_agents=code_agents)
        self._jobs = ArqJobs(redis, execute=self._execute_job, finish=self._finish_job)
        self._renewer = LeaseRenewer(
            redis,
            worker=name,
            lease_s=lease_s,
            is_embedded=is_embedded,
            now=time.monotonic,
            on_lost=on_lease_lost,
            still_ours=still_ours,
        )
        self._listener = ChannelListener(
            redis, name="wake listener", on_message=self._wake_up, on_subscribed=self._wake_up
        )
        self._listener.add(keys.WAKE_CHANNEL)
        self._wake = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._draining = False
        self._looked_at = -math.inf
        self._is_cut_off = False

    @property
    def is_draining(self) -> bool:
        """Whether the worker is ending and claims nothing more."""
        return self._draining

    @property
    def run_count(self) -> int:
        """The number of runs that it executes now."""
        return len(self._running)

    def looked_s_ago(self) -> float:
        """Returns the seconds since Redis last answered a claim, or all places were last taken. Infinite before
        that."""
        return time.monotonic() - self._looked_at

    async def serve(self) -> None:
        """Claims and runs jobs until `stop` or `drain`; returns when the last job has ended."""
        async with self._listener.running(), self._renewer.renewing(), asyncio.TaskGroup() as group:
            while not self._stopping:
                self._wake.clear()
                pause = await self._claim_free(group)
                await self._sleep(pause)

    def stop(self) -> None:
        """Stops claiming; running jobs continue to their end."""
        self._stopping = True
        self._wake.set()

    async def drain(self, finish_s: float, *, hand_over_s: float) -> None:
        """Stops claiming. For `finish_s` seconds, runs may finish their steps and are then handed over. After that they
        are handed over in the middle of a step, and after `hand_over_s` more the remaining tasks are cancelled."""
        self._draining = True
        self.stop()
        if self._running and finish_s:
            log.info("runs_may_finish_steps", runs=len(self._running), within_s=finish_s)
            self._end_after_steps()
            await asyncio.wait(self._running.values(), timeout=finish_s)
        self._interrupt_all()
        if not self._running:
            return
        _, pending = await asyncio.wait(self._running.values(), timeout=hand_over_s)
        for task in pending:
            log.warning("run_did_not_stop", task=task.get_name(), within_s=hand_over_s)
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=UNWIND_S)

    async def _claim_free(self, group: asyncio.TaskGroup) -> float:
        """Claims jobs for the free places and starts them. Returns the seconds until the next claim."""
        free = max(0, self._max_runs - len(self._running))
        spare = min(self._spare_runs, self._max_runs + self._spare_runs - len(self._running))
        if free + spare <= 0 or not self._takes_more():
            self._looked_at = time.monotonic()
            return IDLE_S
        asked_at = time.monotonic()
        try:
            claimed = await self._job_leases.claim(free, spare=spare)
            for job_id in claimed.job_ids:
                if self._stopping:
                    await self._job_leases.release(job_id)
                else:
                    self._start(group, job_id, asked_at)
        except Unavailable as error:
            if not self._is_cut_off:
                log.warning("queue_unreachable", reason=str(error))
            self._is_cut_off = True
            return RETRY_S
        self._is_cut_off = False
        self._looked_at = time.monotonic()
        if claimed.job_ids:
            log.debug("jobs_claimed", jobs=len(claimed.job_ids), free=free, spare=spare)
        if claimed.next_in_s is None:
            return IDLE_S
        return min(IDLE_S, claimed.next_in_s + 0.002)  # a key lives to the end of its last millisecond

    def _start(self, group: asyncio.TaskGroup, job_id: str, asked_at: float) -> None:
        if self._is_lost(job_id):
            return  # it still unwinds here; another claim finds the job when this new lease expires
        self._renewer.hold(job_id, asked_at=asked_at)
        if job_id not in self._running:
            self._running[job_id] = group.create_task(self._run(job_id), name=f"job {job_id}")

    async def _run(self, job_id: str) -> None:
        try:
            await self._jobs.run(job_id)
        except (RedisError, OSError, Unavailable) as error:
            log.warning("lease_ends_by_itself", job_id=job_id, reason=str(error))
        finally:
            self._renewer.forget(job_id)
            del self._running[job_id]
            self._wake.set()

    async def _execute_job(self, job_id: str, run_id: RunId, dispatch: int) -> None:
        if self._draining or self._is_lost(job_id):
            raise RetryJob  # too late to begin
        try:
            await self._execute(run_id, dispatch)
        except (ShutdownRequested, LeaseLost, MoreInput) as interruption:
            raise RetryJob from interruption
        except Unavailable as error:
            log.warning("run_released", run_id=run_id, reason=str(error))
            await asyncio.sleep(AGAIN_S)
            raise RetryJob from error

    async def _finish_job(self, job_id: str, is_done: bool) -> None:
        if not self._renewer.release(job_id):
            return
        if is_done:
            await self._job_leases.finish(job_id)
        else:
            await self._job_leases.release(job_id)

    def _is_lost(self, job_id: str) -> bool:
        return self._renewer.leases.state(job_id) is LeaseState.LOST

    async def _sleep(self, pause: float) -> None:
        with suppress(TimeoutError):  # nothing woke the worker: it polls anyway
            async with asyncio.timeout(pause):
                await self._wake.wait()

    def _wake_up(self, *_: bytes) -> None:
        log.debug("worker_woken")
        self._wake.set()


# Uses arq for the description of a job in Redis, and to look up, start, release or finish it.
#
# `queue_worker` finds and leases the jobs. arq's polling, locks, abort, results, timeouts, tries, cron, health key and
# signals are not used.


NEVER_S = 10 * 365 * 24 * 3600
"""arq requires a timeout for jobs; the run's own timeout is enforced elsewhere."""

UNLIMITED_TRIES = 1_000_000_000


class ArqJobs:
    """Runs jobs: calls `execute(job_id, run_id, dispatch)` for each, and then `finish(job_id, is_done)`. A job is done
    if `execute` returns, or raises anything but `RetryJob`, which releases it. Create it on the running event loop."""

    def __init__(
        self,
        redis: Redis,
        *,
        execute: Callable[[str, RunId, int], Awaitable[None]],
        finish: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        async def execute_job(ctx: dict[Any, Any], run_id: str, dispatch: int) -> None:
            await execute(ctx["job_id"], RunId(run_id), dispatch)

        self._worker = _Worker(
            functions=[func(execute_job, name=EXECUTE_RUN)],
            queue_name=keys.QUEUE,
            redis_pool=redis,
            handle_signals=False,
            job_timeout=NEVER_S,
            max_tries=UNLIMITED_TRIES,
            keep_result=0,
            log_results=False,
            job_serializer=encode_job,
            job_deserializer=decode_job,
        )
        self._worker.finish = finish

    async def run(self, job_id: str) -> None:
        """Runs one job to its end. Raises what Redis raises, and `Unavailable` if it does not answer."""
        await self._worker.run_job(job_id, timestamp_ms())


class _Worker(Worker):
    """arq's worker, whose jobs Holdfast ends."""

    finish: Callable[[str, bool], Awaitable[None]]

    async def finish_job(
        self,
        job_id: str,
        finish: bool,
        result_data: bytes | None = None,
        result_timeout_s: float | None = None,
        keep_result_forever: bool = False,
        incr_score: int | None = None,
        keep_in_progress: float | None = None,
    ) -> None:
        """arq calls this when a job's function has ended; with `finish` false, the job runs again. The other arguments
        concern results, delays and cron, which are not used."""
        await self.finish(job_id, finish)

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """arq calls this for a job that it cannot run, mostly because Redis lost the job's description. The sweeper
        dispatches the run again."""
        await self.finish(job_id, True)
