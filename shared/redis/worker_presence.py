"""Whether any worker lives: what the API's readiness asks before it says that runs will be executed."""

from typing import Any, cast

from arq.connections import ArqRedis

from shared.domain.errors import Unavailable
from shared.redis import keys
from shared.redis.connection import redis_answers


class WorkerPresence:
    """One key that every living worker refreshes, and that is gone a lease after the last one has died."""

    def __init__(self, redis: ArqRedis) -> None:
        self._redis = redis

    async def show(self, worker: str, *, for_s: float) -> None:
        """Says that `worker` lives, for the next `for_s` seconds. Raises `Unavailable` when Redis does not answer."""
        async with redis_answers():
            await cast("Any", self._redis).set(keys.WORKER_ALIVE, worker, px=round(for_s * 1000))

    async def is_any_alive(self) -> bool:
        """Whether some worker has shown itself of late. False as well when Redis does not answer."""
        try:
            async with redis_answers():
                return bool(await self._redis.exists(keys.WORKER_ALIVE))
        except Unavailable:
            return False
