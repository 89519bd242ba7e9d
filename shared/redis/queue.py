"""The queue through which workers find runs: a sorted set of jobs, each of which one worker leases for a while.

A job is one dispatch of a run. It holds the run's id and the number of the dispatch, because everything else that a
worker needs is in SQL. A job that Redis has lost does no harm: the sweeper dispatches unowned runs again.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import msgspec
import structlog
from arq.jobs import serialize_job
from arq.utils import timestamp_ms

from shared.concurrency import repeating
from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

EXECUTE_RUN = "execute_run"
"""The name of the one function that workers offer to arq."""


def encode_job(job: dict[str, Any]) -> bytes:
    """arq's job as JSON. Never pickle: a process that can write to Redis must not be able to run code in a worker."""
    return msgspec.json.encode(job, enc_hook=repr)


def decode_job(data: bytes) -> dict[str, Any]:
    """The job that `encode_job` wrote."""
    return msgspec.json.decode(data, type=dict[str, Any])


class RunQueue:
    """Dispatches runs to the workers. Raises `Unavailable` when Redis does not answer: the run may or may not have been
    dispatched then."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._dispatch = LuaScript(redis, "dispatch")

    async def dispatch(self, *dispatches: tuple[RunId, int]) -> None:
        """Puts runs into the queue, each with the number of its dispatch, and wakes the workers. A number that is in
        the queue already, or at work, is left as it is."""
        jobs = [keys.job_id(run_id, number) for run_id, number in dispatches]
        described = [part for job_id in jobs for part in (job_id, _described(job_id))]
        async with redis_answers():
            with crash_point(CrashPoint.DISPATCH):
                await self._dispatch(
                    keys=[keys.QUEUE],
                    args=[keys.JOB_PREFIX, keys.JOB_TTL_S * 1000, keys.WAKE_CHANNEL, *described],
                )

    async def dispatch_stored(self, run: Run) -> None:
        """Dispatches a run that was stored, unless a worker has it or it has ended. When Redis does not answer, the
        sweeper dispatches it later: the API promised that the run is stored, not that it has begun."""
        if run.status is not RunStatus.CREATED:
            return
        try:
            await self.dispatch((run.id, run.dispatch))
        except Unavailable as error:
            log.warning("dispatch_left_to_sweeper", run_id=run.id, reason=str(error))

    async def queued_among(self, dispatches: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        """Those of `dispatches` that are still in the queue, waiting or at work."""
        if not dispatches:
            return set()
        async with redis_answers():
            scores: Any = await cast("Any", self._redis).zmscore(
                keys.QUEUE, [keys.job_id(run_id, number) for run_id, number in dispatches]
            )
        return {one for one, score in zip(dispatches, scores, strict=True) if score is not None}

    async def is_leased(self, run_id: RunId, number: int) -> bool:
        """Whether a worker has a lease on this dispatch of the run."""
        async with redis_answers():
            return bool(await self._redis.exists(keys.lease(keys.job_id(run_id, number))))


def _described(job_id: str) -> bytes:
    """arq's description of the job."""
    return serialize_job(EXECUTE_RUN, keys.parse_job_id(job_id), {}, None, timestamp_ms(), serializer=encode_job)


class Renewal(Enum):
    """What became of a lease that was to be renewed."""

    RENEWED = 1
    TAKEN = 0
    """Another worker has the job."""
    FORGOTTEN = -1
    """No worker has it: the lease ended unnoticed, or Redis lost it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim."""

    job_ids: list[str]
    next_in_s: float | None
    """Seconds until the next lease in the queue ends; 0 when more jobs wait; None when the queue is empty."""


class JobLeases:
    """The leases of one worker: while a lease lasts, this worker alone is to run the job.

    A lease is a key that names its worker and expires; the job's score in the queue says when. All times are Redis'
    own, so that no two machines have to agree. The lease decides who *should* run a job; the fence in SQL decides whose
    writes count.

    Every method raises `Unavailable` when Redis does not answer.
    """

    def __init__(self, redis: Redis, *, worker: str, lease_s: float) -> None:
        self._worker = worker
        self._lease_ms = round(lease_s * 1000)
        self._claim = LuaScript(redis, "claim")
        self._renew = LuaScript(redis, "renew")
        self._retake = LuaScript(redis, "retake")
        self._release = LuaScript(redis, "release")
        self._finish = LuaScript(redis, "finish")

    async def claim(self, most: int) -> Claimed:
        """Leases up to `most` jobs that wait. A job whose id is no text is nobody's, and is passed over."""
        async with redis_answers():
            wait_ms, *job_ids = await self._claim(
                keys=[keys.QUEUE],
                args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, most, keys.SCORE_SLACK_MS],
            )
        texts = [_text(job_id) for job_id in job_ids]
        return Claimed([text for text in texts if text], wait_ms / 1000 if wait_ms >= 0 else None)

    async def renew(self, job_ids: Sequence[str]) -> dict[str, Renewal]:
        """Renews the leases that are still this worker's."""
        async with redis_answers():
            states = await self._renew(
                keys=[keys.QUEUE],
                args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, keys.SCORE_SLACK_MS, *job_ids],
            )
        return {job_id: Renewal(state) for job_id, state in zip(job_ids, states, strict=True)}

    async def retake(self, job_id: str) -> bool:
        """Takes a forgotten lease again; False when another worker was quicker."""
        async with redis_answers():
            taken = await self._retake(
                keys=[keys.QUEUE, keys.lease(job_id), keys.job(job_id)],
                args=[
                    job_id,
                    self._worker,
                    self._lease_ms,
                    keys.SCORE_SLACK_MS,
                    _described(job_id),
                    keys.JOB_TTL_S * 1000,
                ],
            )
        return bool(taken)

    async def release(self, job_id: str) -> bool:
        """Releases the job and wakes the workers. False when it was no longer this worker's."""
        async with redis_answers():
            released = await self._release(
                keys=[keys.QUEUE, keys.lease(job_id)], args=[job_id, self._worker, keys.WAKE_CHANNEL]
            )
        return bool(released)

    async def finish(self, job_id: str) -> bool:
        """Removes the job that is done; False when another worker has it by now."""
        async with redis_answers():
            with crash_point(CrashPoint.FINISH_JOB):
                finished = await self._finish(
                    keys=[keys.QUEUE, keys.lease(job_id), keys.job(job_id), keys.attempts(job_id)],
                    args=[job_id, self._worker],
                )
        return bool(finished)


def _text(job_id: bytes) -> str:
    try:
        return job_id.decode()
    except UnicodeDecodeError:
        # Half understood it would be another job: its lease would be missed, taken again, and executed.
        log.warning("job_not_understood", job_id=repr(job_id))
        return ""


class WorkerPresence:
    """Whether any worker lives; readiness asks it before it says that runs will be executed. Every living worker
    refreshes one key, which expires a lease after the last worker has died."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def show(self, worker: str, *, for_s: float) -> None:
        """Says that `worker` lives, for the next `for_s` seconds. Raises `Unavailable` when Redis does not answer."""
        async with redis_answers():
            await cast("Any", self._redis).set(keys.WORKER_ALIVE, worker, px=round(for_s * 1000))

    async def is_any_alive(self) -> bool:
        """Whether some worker has shown itself within a lease. False as well when Redis does not answer."""
        try:
            async with redis_answers():
                return bool(await self._redis.exists(keys.WORKER_ALIVE))
        except Unavailable:
            return False


class IntervalLock:
    """Lets one process of the fleet, the first that comes, do what has to be done once per interval. Two that do it at
    once must do no harm."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def repeating(
        self, work: Callable[[], Awaitable[object]], *, every_s: float, name: str
    ) -> AbstractAsyncContextManager[None]:
        """Repeats the work, as `concurrency.repeating`, in those intervals in which this process comes first."""

        async def work_if_first() -> None:
            if await self._is_first(name, every_s):
                await work()

        return repeating(work_if_first, every_s=every_s, name=name)

    async def _is_first(self, name: str, every_s: float) -> bool:
        # No process releases the lock: it expires a little before its owner comes again.
        lock_ms = round(every_s * 900)
        try:
            async with redis_answers():
                return bool(await cast("Any", self._redis).set(keys.interval(name), b"", nx=True, px=lock_ms))
        except Unavailable:
            return True
