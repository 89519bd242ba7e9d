"""How much memory the Redis servers of a deployment use: the one that every process shares, and those of the logs.

Each is asked by itself: one that does not answer says nothing, and the others are shown.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from shared.domain.errors import Unavailable
from shared.domain.operations import ServerMemory
from shared.redis.connection import ANSWER_S, Redis, netloc_of, redis_answers
from shared.redis.log_servers import LogServers


async def memory_of(redis: Redis, *, within_s: float = ANSWER_S) -> ServerMemory:
    """The memory of one server. Raises `Unavailable`."""
    async with redis_answers(within_s):
        said: Any = await cast("Any", redis).info("memory")
    return ServerMemory(server=netloc_of(redis), used=said.get("used_memory"), limit=said.get("maxmemory") or None)


@dataclass(frozen=True, kw_only=True)
class RedisServers:
    """The servers of a deployment."""

    shared: Redis
    logs: LogServers
    is_embedded: bool
    """There is only one, in this process, whose memory is the process's."""

    async def memory(self, *, within_s: float = ANSWER_S) -> list[ServerMemory]:
        """Of each server, the shared one first. Two databases of one server are one."""
        if self.is_embedded:
            return []
        servers = {netloc_of(self.shared): self.shared, **self.logs.by_netloc()}
        return await asyncio.gather(*(_memory_or_nothing(server, within_s) for server in servers.values()))


async def _memory_or_nothing(redis: Redis, within_s: float) -> ServerMemory:
    try:
        return await memory_of(redis, within_s=within_s)
    except Unavailable:
        return ServerMemory(server=netloc_of(redis))
