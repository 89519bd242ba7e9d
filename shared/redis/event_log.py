"""The log of a run's events in Redis: numbered, fenced, a cache of what SQL will hold.

The owner of a run opens the log first, which shuts out all owners before it, and then appends. An entry's id in the
stream is its number, so Redis itself refuses what an old owner would append behind a newer one's first entry. Readers
need no permission. Redis may lose all of this at any time: the owner learns it from `RedisLostData`, and a reader from
a first entry that does not continue its last one.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from shared.crash_points import CrashPoint, crash_point, reach
from shared.domain.errors import HoldfastError, LeaseLost, Unavailable
from shared.domain.events import is_end
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import Entries, LogTail
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, Script, redis_answers
from shared.redis.log_servers import LogServers, OneLogServer


class RedisLostData(HoldfastError):
    """Redis has lost a part of the log: its owner opens it again, and appends again what SQL lacks."""

    def __init__(self, last: Seq) -> None:
        super().__init__(f"the log in Redis ends at {last}")
        self.last = last


class EventLog:
    """The logs of all runs.

    `ttl_s` is how long a log stays after its end. `owner` names this process among those that may have the same fence
    after a database was set back; by default a new name is made up. `appends` carries appends together with those of
    other runs; without it, each goes by itself. `servers` keep the logs; by default `redis` does, which has the cancel
    flags in any case.

    Every method raises `Unavailable` when Redis does not answer. Such an append may have been written: repeat it as it
    was.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        ttl_s: int,
        owner: str | None = None,
        appends: Script | None = None,
        servers: LogServers | None = None,
    ) -> None:
        self._redis = redis
        self._servers = servers or OneLogServer(redis)
        self._ended_ms = ttl_s * 1000
        self._live_ms = max(ttl_s, keys.LIVE_LOG_TTL_S) * 1000
        self._owner = owner or uuid4().hex
        self._open = LuaScript(redis, "open")
        self._append = LuaScript(redis, "append")
        self._appends = appends

    async def open(self, run_id: RunId, fence: Fence) -> Seq:
        """Takes the log for `fence`; gives the last number in it, 0 when Redis has none. Raises `LeaseLost` when a
        newer owner has it."""
        async with self._asking(run_id) as server:
            with crash_point(CrashPoint.OPEN_LOG):
                last = await self._open(
                    keys=[keys.fence(run_id), keys.events(run_id)], args=[self._holder(fence), self._live_ms], on=server
                )
        if last < 0:
            raise LeaseLost
        return Seq(last)

    async def append(self, run_id: RunId, fence: Fence, tail: LogTail, *, needs: Seq) -> None:
        """Appends entries, each without a line break, and publishes them. Entries that the log has already stay as they
        are, so a repetition does no harm.

        `needs` is the number that the log must reach, or readers would find a hole; 0 when SQL has all that is before.
        Raises `LeaseLost` when a newer owner has the log, and `RedisLostData` when the log ends too early or Redis does
        not know its owner.
        """
        holder, lifetime, publish = self._holder(fence), self._lifetime(tail), self._servers.publish
        log_keys = [keys.events(run_id), keys.fence(run_id)]
        args = [holder, tail.first, needs, lifetime, publish, keys.feed(run_id), *tail.entries]
        # Not `crash_point`: a context manager for each token.
        reach(CrashPoint.APPEND, "before")
        if self._appends is not None:
            outcome, last = await self._appends(keys=log_keys, args=args)
        else:
            async with self._asking(run_id) as server:
                outcome, last = await self._append(keys=log_keys, args=args, on=server)
        reach(CrashPoint.APPEND, "after")
        if outcome == b"taken":
            raise LeaseLost
        if outcome == b"lost":
            raise RedisLostData(Seq(last))

    async def read(self, run_id: RunId, after: Seq, limit: int | None = 1000) -> Entries:
        """The first `limit` entries after `after` (None: all). They may not continue it, because Redis may have lost
        some."""
        async with self._asking(run_id) as server:
            found: Any = await server.xrange(keys.events(run_id), min=f"({after}-0", count=limit)
        return [(Seq(int(entry_id.partition(b"-")[0])), fields[b"e"]) for entry_id, fields in found]

    async def newest(self, run_id: RunId) -> bytes | None:
        """The entry that was shown last, as far as Redis has one."""
        async with self._asking(run_id) as server:
            found: Any = await server.xrevrange(keys.events(run_id), count=1)
        return found[0][1][b"e"] if found else None

    async def trim(self, run_id: RunId, stored: Seq) -> None:
        """Drops the entries before `stored`: SQL has them, and readers get them there. The entry `stored` itself stays,
        so that the stream still says how far it reaches."""
        async with self._asking(run_id) as server:
            await server.xtrim(keys.events(run_id), minid=f"{stored}-0", approximate=False)

    async def drop(self, run_id: RunId) -> None:
        """Drops a stream that does not continue what SQL has. For the log's owner."""
        async with self._asking(run_id) as server:
            await server.delete(keys.events(run_id))

    async def expire(self, run_id: RunId) -> None:
        """Lets the log expire, `ttl_s` from now, and takes the run's cancel flag down. To be called when the run has
        ended, also when its end could not be appended: a Redis that is full still takes this."""
        async with self._asking(run_id) as server, server.pipeline(transaction=False) as pipe:
            pipe.pexpire(keys.events(run_id), self._ended_ms)
            pipe.pexpire(keys.fence(run_id), self._ended_ms)
            if server is self._redis:
                pipe.delete(keys.cancel_flag(run_id))
            await pipe.execute()
        if server is not self._redis:
            async with redis_answers():
                await self._redis.delete(keys.cancel_flag(run_id))

    @asynccontextmanager
    async def _asking(self, run_id: RunId) -> AsyncGenerator[Redis]:
        """The server that has the run's log. Failures become `Unavailable`."""
        try:
            async with redis_answers():
                yield self._servers.server_of(keys.events(run_id))
        except Unavailable:
            self._servers.doubt()
            raise

    def _lifetime(self, tail: LogTail) -> int:
        """Of the log with these entries, ms. An end that is sent late, behind `expire`, takes nothing of that back."""
        return self._ended_ms if tail.entries and is_end(tail.entries[-1]) else self._live_ms

    def _holder(self, fence: Fence) -> str:
        return f"{fence} {self._owner}"
