"""Leases on the jobs of the queue: for a while, one worker alone is to run a job.

A lease is a key that names its worker and expires; the job's score in the queue says when that will be. All times are
Redis' own, so that no two machines have to agree. The lease decides who *should* run a job. Whose writes count is
decided by the fence in SQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from arq.connections import ArqRedis
from arq.jobs import serialize_job
from arq.utils import timestamp_ms

from shared.crash_points import DurableWrite, durable
from shared.redis import keys
from shared.redis.connection import encode_job, redis_answers
from shared.redis.lua_script import LuaScript
from shared.redis.run_queue import EXECUTE_RUN


class Renewal(Enum):
    """What became of a lease that was to be renewed."""

    RENEWED = 1
    TAKEN = 0
    """Another worker has the job."""
    FORGOTTEN = -1
    """Nobody has it: the lease ended unnoticed, or Redis lost it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The outcome of a claim."""

    job_ids: list[str]
    next_in_s: float | None
    """Seconds until the next lease in the queue ends; 0 when more jobs wait; None when the queue is empty."""


class JobLeases:
    """The leases of one worker. Every method raises `Unavailable` when Redis does not answer."""

    def __init__(self, redis: ArqRedis, *, worker: str, lease_s: float) -> None:
        self._worker = worker
        self._lease_ms = round(lease_s * 1000)
        self._claim = LuaScript(redis, "claim")
        self._renew = LuaScript(redis, "renew")
        self._retake = LuaScript(redis, "retake")
        self._release = LuaScript(redis, "release")
        self._finish = LuaScript(redis, "finish")

    async def claim(self, most: int) -> Claimed:
        """Leases up to `most` jobs that wait."""
        async with redis_answers():
            wait_ms, *job_ids = await self._claim(
                keys=[keys.QUEUE],
                args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, most, keys.SCORE_SLACK_MS],
            )
        return Claimed([job_id.decode() for job_id in job_ids], wait_ms / 1000 if wait_ms >= 0 else None)

    async def renew(self, job_ids: Sequence[str]) -> dict[str, Renewal]:
        """Lets the leases begin anew, as far as they still are this worker's."""
        async with redis_answers():
            states = await self._renew(
                keys=[keys.QUEUE],
                args=[keys.LEASE_PREFIX, self._worker, self._lease_ms, keys.SCORE_SLACK_MS, *job_ids],
            )
        return {job_id: Renewal(state) for job_id, state in zip(job_ids, states, strict=True)}

    async def retake(self, job_id: str) -> bool:
        """Takes a forgotten lease again; False when another worker was quicker."""
        job = serialize_job(EXECUTE_RUN, keys.parse_job_id(job_id), {}, None, timestamp_ms(), serializer=encode_job)
        async with redis_answers():
            taken = await self._retake(
                keys=[keys.QUEUE, keys.lease(job_id), keys.job(job_id)],
                args=[job_id, self._worker, self._lease_ms, keys.SCORE_SLACK_MS, job, keys.JOB_TTL_S * 1000],
            )
        return bool(taken)

    async def release(self, job_id: str) -> bool:
        """Gives the job back and wakes the workers; False when it was no longer this worker's."""
        async with redis_answers():
            released = await self._release(
                keys=[keys.QUEUE, keys.lease(job_id)], args=[job_id, self._worker, keys.WAKE_CHANNEL]
            )
        return bool(released)

    async def finish(self, job_id: str) -> bool:
        """Removes the job that is done; False when another worker has it by now."""
        async with redis_answers():
            with durable(DurableWrite.FINISH_JOB):
                finished = await self._finish(
                    keys=[keys.QUEUE, keys.lease(job_id), keys.job(job_id), keys.attempts(job_id)],
                    args=[job_id, self._worker],
                )
        return bool(finished)
