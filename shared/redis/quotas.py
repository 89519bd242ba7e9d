"""What callers have used of their limits, one answer for all processes: requests in the last moments, open streams."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, redis_answers

ANSWER_S = 0.5
"""A limit is not worth a longer wait: a request that Redis does not answer for is let through."""

READER_S = 60.0
"""For how long a reader is taken for there when its process says no more."""


class Bucket(NamedTuple):
    """Requests of one owner: `per_s` flow in, up to `burst`."""

    owner: str
    per_s: float
    burst: float


class Empty(NamedTuple):
    """A bucket that has not the requests that were asked for, and the seconds until it has them."""

    position: int
    wait_s: float


class Group(NamedTuple):
    """Readers that count together, and how many of them there may be."""

    owner: str
    most: int


class Quotas:
    """Counts. Every method raises `Unavailable` when Redis does not answer soon."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._take = LuaScript(redis, "take")
        self._enter = LuaScript(redis, "enter")
        self._stay = LuaScript(redis, "stay")

    async def take(self, buckets: Sequence[Bucket], count: int = 1) -> Empty | None:
        """Takes requests out of each bucket. When one of them has not so many, that one; then nothing was taken."""
        async with redis_answers(ANSWER_S):
            position, wait_ms = await self._take(
                keys=[keys.bucket(bucket.owner) for bucket in buckets],
                args=[str(part) for part in (count, *(part for one in buckets for part in (one.per_s, one.burst)))],
            )
        return Empty(position - 1, wait_ms / 1000) if position else None

    async def enter(self, reader: str, groups: Sequence[Group]) -> int | None:
        """Counts a reader for the next `READER_S`, or counts it longer. The number of the group that is full, when one
        is; then it counts nowhere."""
        async with redis_answers(ANSWER_S):
            full = await self._enter(
                keys=[keys.readers(group.owner) for group in groups],
                args=[reader, round(READER_S * 1000), *(group.most for group in groups)],
            )
        return full - 1 if full else None

    async def stay(self, owner: str, readers: Sequence[str]) -> None:
        """Counts readers of one group for the next `READER_S`."""
        async with redis_answers(ANSWER_S):
            await self._stay(keys=[keys.readers(owner)], args=[round(READER_S * 1000), *readers])

    async def leave(self, reader: str, groups: Sequence[Group]) -> None:
        """Counts a reader no more."""
        async with redis_answers(ANSWER_S), cast("Any", self._redis).pipeline(transaction=False) as at_once:
            for group in groups:
                at_once.zrem(keys.readers(group.owner), reader)
            await at_once.execute()
