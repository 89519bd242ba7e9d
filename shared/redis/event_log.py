"""The log of a run's events in Redis: numbered, fenced, and a cache of what SQL will hold.

The owner of a run opens the log first, which shuts out all owners before it, and then appends. An entry's id in the
stream is its number, so Redis itself refuses what an old owner would append behind a newer one's first entry. Readers
need no permission. Redis may lose all of this at any time: the owner learns it from `RedisLostData`, and a reader from
a first entry that does not continue its last one.
"""

from typing import Any
from uuid import uuid4

from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import HoldfastError, LeaseLost
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import Entries, LogTail
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, redis_answers


class RedisLostData(HoldfastError):
    """Redis has lost a part of the log: its owner opens it again, and appends again what SQL lacks."""

    def __init__(self, last: Seq) -> None:
        super().__init__(f"the log in Redis ends at {last}")
        self.last = last


class EventLog:
    """The logs of all runs.

    `ttl_s` is how long a log stays after its end. `owner` names this process among those that may have the same fence
    after a database was set back; by default a new name is made up.

    Every method raises `Unavailable` when Redis does not answer. Such an append may have been written: repeat it as it
    was.
    """

    def __init__(self, redis: Redis, *, ttl_s: int, owner: str | None = None) -> None:
        self._redis = redis
        self._ended_ms = ttl_s * 1000
        self._live_ms = max(ttl_s, keys.LIVE_LOG_TTL_S) * 1000
        self._owner = owner or uuid4().hex
        self._open = LuaScript(redis, "open")
        self._append = LuaScript(redis, "append")

    async def open(self, run_id: RunId, fence: Fence) -> Seq:
        """Takes the log for `fence`; gives the last number in it, 0 when Redis has none. Raises `LeaseLost` when a
        newer owner has it."""
        async with redis_answers():
            with crash_point(CrashPoint.OPEN_LOG):
                last = await self._open(
                    keys=[keys.fence(run_id), keys.events(run_id)], args=[self._holder(fence), self._live_ms]
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
        async with redis_answers():
            with crash_point(CrashPoint.APPEND):
                outcome, last = await self._append(
                    keys=[keys.events(run_id), keys.fence(run_id)],
                    args=[self._holder(fence), tail.first, needs, self._live_ms, keys.feed(run_id), *tail.entries],
                )
        if outcome == b"taken":
            raise LeaseLost
        if outcome == b"lost":
            raise RedisLostData(Seq(last))

    async def read(self, run_id: RunId, after: Seq, limit: int | None = 1000) -> Entries:
        """The first `limit` entries after `after` (None: all). They may not continue it, because Redis may have lost
        some."""
        async with redis_answers():
            found: Any = await self._redis.xrange(keys.events(run_id), min=f"({after}-0", count=limit)
        return [(Seq(int(entry_id.partition(b"-")[0])), fields[b"e"]) for entry_id, fields in found]

    async def trim(self, run_id: RunId, stored: Seq) -> None:
        """Drops the entries before `stored`: SQL has them, and readers get them there. The entry `stored` itself stays,
        so that the stream still says how far it reaches."""
        async with redis_answers():
            await self._redis.xtrim(keys.events(run_id), minid=f"{stored}-0", approximate=False)

    async def drop(self, run_id: RunId) -> None:
        """Drops a stream that does not continue what SQL has. For the log's owner."""
        async with redis_answers():
            await self._redis.delete(keys.events(run_id))

    async def expire(self, run_id: RunId) -> None:
        """Lets the log expire, `ttl_s` from now, and takes the run's cancel flag down. To be called after the end was
        appended."""
        async with redis_answers(), self._redis.pipeline(transaction=False) as pipe:
            pipe.pexpire(keys.events(run_id), self._ended_ms)
            pipe.pexpire(keys.fence(run_id), self._ended_ms)
            pipe.delete(keys.cancel_flag(run_id))
            await pipe.execute()

    def _holder(self, fence: Fence) -> str:
        return f"{fence} {self._owner}"
