"""The log of a run's events in Redis: numbered, fenced, and a cache of what SQL will hold.

Whoever claims a run opens its log first, which shuts out all owners before it, and then appends. Readers need no
permission. Redis may lose all of this at any moment: the owner is told so by `LogBehind`, and a reader sees that the
first entry which it gets does not follow the last one that it had.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from arq.connections import ArqRedis

from shared.crash_points import DurableWrite, durable
from shared.domain.errors import HoldfastError, LeaseLost
from shared.domain.ids import Fence, RunId, Seq
from shared.redis import keys
from shared.redis.connection import redis_answers
from shared.redis.lua_script import LuaScript


class LogBehind(HoldfastError):
    """Redis has lost a part of the log: append again what SQL does not hold yet, with `restoring`."""

    def __init__(self, last: Seq) -> None:
        super().__init__(f"the log in Redis ends at {last}")
        self.last = last


class OwnedLog:
    """One run's log in the hands of one fence. `EventLog.open` gives it."""

    def __init__(self, run_id: RunId, append: LuaScript, *, holder: str, log_id: str, live_ms: int, last: Seq) -> None:
        self.last = last
        """The last seq in it when it was opened, 0 when Redis had none."""
        self.log_id = log_id
        """Made up when a log begins; who restored it, as "<fence> <owner>", when somebody had to."""
        self._run_id = run_id
        self._append = append
        self._holder = holder
        self._live_ms = live_ms

    @property
    def reserved_as(self) -> str:
        """What to note with numbers that are reserved for this owner: see `has_kept`."""
        return f"{self.log_id}|{self._holder}"

    def has_kept(self, reserved_as: str | None) -> bool:
        """Whether Redis has had this log ever since somebody noted that, or was given it again by that very owner: what
        an older one restores lacks what came after it."""
        return reserved_as is not None and self.log_id in reserved_as.split("|")

    async def append(
        self, first: Seq, entries: Sequence[bytes], *, restoring: bool = False, before_is_stored: bool = True
    ) -> None:
        """Appends `entries` (each without a line break) as `first`, `first` + 1, … and publishes them.

        `before_is_stored`: SQL has everything before `first`, so a log without entries may begin with it. Entries that
        are there already are left alone, so a repetition is harmless. Raises `LeaseLost` when a newer owner has the
        log, and `LogBehind` when the log ends before `first` - 1 or is not the one that was opened. The answer to
        `LogBehind` is to append everything since the last checkpoint with `restoring`, which accepts both.
        """
        how = "restore" if restoring else "begin" if before_is_stored else "go on"
        run_id = self._run_id
        async with redis_answers():
            with durable(DurableWrite.APPEND):
                outcome, last = await self._append(
                    keys=[keys.events(run_id), keys.fence(run_id)],
                    args=[self._holder, self.log_id, first, self._live_ms, keys.feed(run_id), how, *entries],
                )
        if outcome == b"lost":
            raise LeaseLost
        if outcome == b"behind":
            raise LogBehind(Seq(last))


class EventLog:
    """The logs of all runs.

    `ttl_s` is how long a log stays after its end. `owner` names this process among those that might hold the same
    fence after a database was set back; by default it is made up.

    Every method, those of `OwnedLog` too, raises `Unavailable` when Redis does not answer. An append that ended like
    that may have been written: repeat it as it was.
    """

    def __init__(self, redis: ArqRedis, *, ttl_s: int, owner: str | None = None) -> None:
        self._redis = redis
        self._ended_ms = ttl_s * 1000
        self._live_ms = max(ttl_s, keys.LIVE_LOG_TTL_S) * 1000
        self._owner = owner or uuid4().hex
        self._open = LuaScript(redis, "open")
        self._append = LuaScript(redis, "append")

    async def open(self, run_id: RunId, fence: Fence) -> OwnedLog:
        """Takes the log for `fence`. Raises `LeaseLost` when a newer owner has it."""
        holder = f"{fence} {self._owner}"
        async with redis_answers():
            with durable(DurableWrite.OPEN_LOG):
                last, log_id = await self._open(
                    keys=[keys.fence(run_id), keys.events(run_id)], args=[holder, self._live_ms, uuid4().hex]
                )
        if last < 0:
            raise LeaseLost
        return OwnedLog(
            run_id, self._append, holder=holder, log_id=log_id.decode(), live_ms=self._live_ms, last=Seq(last)
        )

    async def read(self, run_id: RunId, after: Seq, limit: int = 1000) -> list[tuple[Seq, bytes]]:
        """The first `limit` entries after `after`. They need not begin at `after` + 1: Redis may have lost some."""
        async with redis_answers():
            # "0-1" is the log's mark and no event; no event's id ends like that.
            found: Any = await self._redis.xrange(keys.events(run_id), min=f"({after}-1", count=limit)
        return [(Seq(int(entry_id[:-2])), fields[b"e"]) for entry_id, fields in found]

    async def expire(self, run_id: RunId) -> None:
        """Lets the log go, `ttl_s` from now. Call it after the end was appended."""
        async with redis_answers(), self._redis.pipeline(transaction=False) as pipe:
            pipe.pexpire(keys.events(run_id), self._ended_ms)
            pipe.pexpire(keys.fence(run_id), self._ended_ms)
            await pipe.execute()
