"""The bell that tells the workers that a run waits.

A ring carries the run's id and nothing else: everything that a worker needs is in SQL. A lost ring does no harm either,
because the sweeper rings again for runs that wait in nobody's hands.
"""

from collections.abc import Collection
from typing import Any, cast

from arq.connections import ArqRedis

from shared.crash_points import DurableWrite, durable
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import redis_answers

EXECUTE_RUN = "execute_run"
"""The name of the one function that workers offer to arq."""


class RunQueue:
    """Rings for runs. Raises `Unavailable` when Redis does not answer: the ring may or may not have happened."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis = redis

    async def ring(self, run_id: RunId, ring: int) -> None:
        """Puts the run into the queue and wakes the workers. `ring` numbers the rings of the run; repeating a number
        that is still in the queue or at work changes nothing."""
        async with redis_answers():
            with durable(DurableWrite.RING):
                await self._redis.enqueue_job(
                    EXECUTE_RUN,
                    run_id,
                    ring,
                    _job_id=keys.job_id(run_id, ring),
                    _queue_name=keys.QUEUE,
                    _expires=keys.JOB_TTL_S,
                )
            await cast("Any", self._redis).publish(keys.WAKE_CHANNEL, b"")

    async def is_rung(self, rings: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        """Those of `rings` that still are in the queue, waiting or at work."""
        if not rings:
            return set()
        async with redis_answers():
            scores: Any = await self._redis.zmscore(keys.QUEUE, [keys.job_id(run_id, ring) for run_id, ring in rings])
        return {rung for rung, score in zip(rings, scores, strict=True) if score is not None}

    async def held(self, run_id: RunId, ring: int) -> bool:
        """Whether a worker has a lease on this ring of the run."""
        async with redis_answers():
            return bool(await self._redis.exists(keys.lease(keys.job_id(run_id, ring))))
