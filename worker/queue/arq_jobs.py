"""Uses arq for the description of a job in Redis, and to look up, start, release or finish it.

`queue_worker` finds and leases the jobs. arq's polling, locks, abort, results, timeouts, tries, cron, health key and
signals are not used.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from arq.utils import timestamp_ms
from arq.worker import RetryJob, Worker, func

from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import Redis
from shared.redis.queue import EXECUTE_RUN, decode_job, encode_job

NEVER_S = 10 * 365 * 24 * 3600
"""arq requires a timeout for jobs; the run's own timeout is enforced elsewhere."""

UNLIMITED_TRIES = 1_000_000_000


class ReleaseJob(Exception):
    """Asks to release the job: the worker that claims it next runs it again."""


class ArqJobs:
    """Runs jobs: calls `execute(job_id, run_id, dispatch)` for each, and then `finish(job_id, is_done)`. A job is done
    if `execute` returns, or raises anything but `ReleaseJob`. Create it on the running event loop."""

    def __init__(
        self,
        redis: Redis,
        *,
        execute: Callable[[str, RunId, int], Awaitable[None]],
        finish: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        async def execute_job(ctx: dict[Any, Any], run_id: str, dispatch: int) -> None:
            try:
                await execute(ctx["job_id"], RunId(run_id), dispatch)
            except ReleaseJob as reason:
                raise RetryJob from reason

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
