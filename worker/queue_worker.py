"""The worker's side of the queue: arq's worker, with the parts replaced that agent runs need otherwise.

What stays arq's is the job itself: its wire format, how it is looked up, started, retried or given up (`run_job`).
Replaced are how jobs are found (a wake channel and one claim, instead of polling), how a job is held (a lease that is
renewed, instead of a lock as long as the longest job), and how the worker ends. arq's abort, results, timeouts, tries,
cron, health key and signal handling are not used.

The loop here survives Redis being away, and no job can bring it down.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from arq.connections import ArqRedis
from arq.utils import timestamp_ms
from arq.worker import RetryJob, Worker, func
from redis.exceptions import RedisError

from shared.background import background
from shared.domain.errors import LeaseLost, MoreInput, ShutdownRequested, Unavailable
from shared.domain.ids import RunId
from shared.own_thread import on_own_thread
from shared.redis import keys
from shared.redis.channel_listener import ChannelListener
from shared.redis.connection import decode_job, encode_job, is_embedded, own_client
from shared.redis.job_leases import JobLeases
from shared.redis.run_queue import EXECUTE_RUN
from shared.redis.worker_presence import WorkerPresence
from worker.lease_keeper import LeaseKeeper

logger = logging.getLogger(__name__)

Execute = Callable[[RunId, int], Awaitable[None]]

IDLE_S = 1.0
"""The safety net: a look at the queue when nothing woke us for so long."""

RETRY_S = 0.2
"""Pause after a claim that Redis did not answer."""

AGAIN_S = 1.0
"""Pause before a run goes back into the queue that a service which is away kept from running."""

UNWIND_S = 1.0
"""What a job gets to unwind after it was cancelled at the end of a drain."""

NEVER_S = 10 * 365 * 24 * 3600
"""arq insists on a timeout for jobs; the run's own is not arq's business."""

UNLIMITED_TRIES = 1_000_000_000


class QueueWorker(Worker):
    """Runs `execute(run_id, ring)` for the jobs of the queue, up to `max_runs` at once.

    How `execute` ends decides about the job:
    - it returns, or raises anything else: the job is done and removed;
    - `ShutdownRequested`, `MoreInput` or a `CancelledError`: the job is given back, and claimed within milliseconds;
    - `Unavailable`: the same, after a pause;
    - `LeaseLost`: somebody else has the job already, nothing is touched.

    `on_lease_lost(job_id)` must interrupt that run with `LeaseLost`; `on_shutdown()` must interrupt all runs with
    `ShutdownRequested`, also one that has only just begun. `still_ours(job_id)` asks SQL whether the run's fence is
    still the one that this worker claimed; it may raise `Unavailable`. Beyond that, callbacks must not raise.
    `keys.parse_job_id` turns a job id into run id and ring. To be made on the running event loop.
    """

    def __init__(
        self,
        *,
        redis: ArqRedis,
        execute: Execute,
        max_runs: int,
        lease_s: float,
        on_lease_lost: Callable[[str], None],
        still_ours: Callable[[str], Awaitable[bool]],
        on_shutdown: Callable[[], None],
        name: str | None = None,
    ) -> None:
        super().__init__(
            functions=[func(self._execute_job, name=EXECUTE_RUN)],
            queue_name=keys.QUEUE,
            redis_pool=redis,
            handle_signals=False,
            max_jobs=max_runs,
            job_timeout=NEVER_S,
            max_tries=UNLIMITED_TRIES,
            keep_result=0,
            log_results=False,
            job_serializer=encode_job,
            job_deserializer=decode_job,
        )
        self._execute = execute
        self._interrupt_all = on_shutdown
        self._name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._lease_s = lease_s
        self._leases = JobLeases(redis, worker=self._name, lease_s=lease_s)
        self._on_lease_lost = on_lease_lost
        self._still_ours = still_ours
        self._keeper = LeaseKeeper(
            worker=self._name,
            lease_s=lease_s,
            now=time.monotonic,
            on_lost=self._tell_lost,
            still_ours=self._ask_still_ours,
        )
        self._listener = ChannelListener(
            redis, name="wake listener", on_message=self._wake_up, on_subscribed=self._wake_up
        )
        self._listener.add(keys.WAKE_CHANNEL)
        self._wake = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self._draining = False

    async def serve(self) -> None:
        """Claims and runs jobs until `stop` or `drain`; returns when the last job has ended."""
        async with (
            self._listener.running(),
            background(self._keep_leases(), name="lease renewal"),
            background(self._show_life(), name="signs of life"),
            asyncio.TaskGroup() as group,
        ):
            while not self._stopping:
                self._wake.clear()
                pause = await self._claim_free(group)
                await self._sleep(pause)

    async def main(self) -> None:
        """arq's entry. Its own polls, and asks for INFO, which the embedded Redis does not have."""
        await self.serve()

    def stop(self) -> None:
        """Claims nothing more; what runs may end in peace."""
        self._stopping = True
        self._wake.set()

    async def drain(self, finish_s: float, *, hand_over_s: float) -> None:
        """Claims nothing more. Runs may finish for `finish_s`; then they are interrupted, to be handed over, and those
        that have not ended after `hand_over_s` more are cancelled."""
        self._draining = True
        self.stop()
        if self._running and finish_s:
            logger.info("%d runs have %.0f s to finish", len(self._running), finish_s)
            await asyncio.wait(self._running.values(), timeout=finish_s)
        self._interrupt_all()
        if not self._running:
            return
        _, pending = await asyncio.wait(self._running.values(), timeout=hand_over_s)
        for task in pending:
            logger.warning("%s did not stop within %.1f s: cancelling it", task.get_name(), hand_over_s)
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=UNWIND_S)

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
        """Called by arq when a job's function has ended: for good, or (`finish` false) to be run again. The rest is
        about results, delays and cron, which we do not use."""
        self._keeper.ending(job_id)
        if self._keeper.is_lost(job_id):
            return
        if finish:
            await self._leases.finish(job_id)
        else:
            await self._leases.release(job_id)

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """Called by arq for a job that it cannot run, mostly because Redis forgot what it was. The sweeper rings
        again."""
        await self.finish_job(job_id, True)

    async def _keep_leases(self) -> None:
        """Renews on a loop of its own, so that a busy run does not cost the others their leases. An embedded Redis
        lives on this loop and is nobody else's: there is nobody who could take a lease meanwhile."""
        if is_embedded(self.pool):
            await self._keeper.keep(self._leases, WorkerPresence(self.pool))
        else:
            await on_own_thread(self._keep_leases_there, name="leases")

    async def _keep_leases_there(self) -> None:
        async with own_client(self.pool) as redis:
            leases = JobLeases(redis, worker=self._name, lease_s=self._lease_s)
            await self._keeper.keep(leases, WorkerPresence(redis))

    async def _show_life(self) -> None:
        while True:
            self._keeper.show_life()
            await asyncio.sleep(self._lease_s / 3)

    def _tell_lost(self, job_id: str) -> None:
        """Called by the keeper, from its thread."""
        with contextlib.suppress(RuntimeError):  # this loop is closed: there is nothing left to stop
            self.loop.call_soon_threadsafe(self._on_lease_lost, job_id)

    async def _ask_still_ours(self, job_id: str) -> bool:
        """Called by the keeper, on its loop. The database's connections belong to this one."""

        async def ask() -> bool:
            return await self._still_ours(job_id)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), self.loop))

    async def _claim_free(self, group: asyncio.TaskGroup) -> float:
        """Claims jobs for the free places and starts them. Returns after how many seconds to look again."""
        free = self.max_jobs - len(self._running)
        if free <= 0:
            return IDLE_S
        asked_at = time.monotonic()
        try:
            claimed = await self._leases.claim(free)
            for job_id in claimed.job_ids:
                if self._stopping:
                    await self._leases.release(job_id)
                else:
                    self._start(group, job_id, asked_at)
        except Unavailable as error:
            logger.warning("cannot look for work: %s", error)
            return RETRY_S
        if claimed.next_in_s is None:
            return IDLE_S
        return min(IDLE_S, claimed.next_in_s + 0.002)  # a key lives to the end of its last millisecond

    def _start(self, group: asyncio.TaskGroup, job_id: str, asked_at: float) -> None:
        if self._keeper.is_lost(job_id):
            return  # it still unwinds here; whoever finds it when this new lease ends runs it
        self._keeper.hold(job_id, asked_at=asked_at)
        if job_id not in self._running:
            self._running[job_id] = group.create_task(self._run(job_id), name=f"job {job_id}")

    async def _run(self, job_id: str) -> None:
        try:
            await self.run_job(job_id, timestamp_ms())
        except (RedisError, OSError, Unavailable) as error:
            logger.warning("job %s: Redis did not answer, the job's lease ends by itself: %s", job_id, error)
        finally:
            self._keeper.let_go(job_id)
            del self._running[job_id]
            self._wake.set()

    async def _execute_job(self, ctx: dict[Any, Any], run_id: str, ring: int) -> None:
        if self._draining or self._keeper.is_lost(ctx["job_id"]):
            raise RetryJob  # too late to begin
        try:
            await self._execute(RunId(run_id), ring)
        except (ShutdownRequested, LeaseLost, MoreInput) as interruption:
            raise RetryJob from interruption
        except Unavailable as error:
            logger.warning("run %s is given back: %s", run_id, error)
            await asyncio.sleep(AGAIN_S)
            raise RetryJob from error

    async def _sleep(self, pause: float) -> None:
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            pass  # nobody called: look anyway

    def _wake_up(self, *_: bytes) -> None:
        self._wake.set()
