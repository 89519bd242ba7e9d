"""The log of a run's events in Redis: numbered, fenced, a cache of the events that SQL will have.

The owner of a run opens the log first, which shuts out all earlier owners, and then appends. An entry's id in the
stream is its number, so Redis itself refuses an old owner's entries after a newer owner's first one. Readers need no
permission. Redis may lose all of this at any time: `RedisLostData` shows it to the owner, and a first entry that does
not continue the last one shows it to a reader.

The feed of live events complements it: one connection per process and log server, however many readers. The feed is
fast but lossy; the log is complete. A `Subscription` joins the two.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

import structlog

from shared.concurrency import NewsWait, RoughTimers
from shared.crash_points import CrashPoint, crash_point, reach
from shared.domain.approvals import Approval
from shared.domain.errors import HoldfastError, LeaseLost, Unavailable
from shared.domain.events import is_end
from shared.domain.ids import Fence, RunId, Seq
from shared.domain.log_writer import Entries, LogTail, of_bytes, unbroken
from shared.domain.runs import Run
from shared.redis import keys
from shared.redis.connection import LuaScript, Redis, Script, redis_answers
from shared.redis.log_servers import LogServers, OneLogServer

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RedisLostData(HoldfastError):
    """Redis has lost a part of the log. Its owner opens it again, and appends again the entries that SQL lacks."""

    def __init__(self, last: Seq) -> None:
        super().__init__(f"the log in Redis ends at {last}")
        self.last = last


class AdoptedLog(NamedTuple):
    """A log whose remaining events are all in SQL."""

    follows: Seq
    """The number before the new owner's first event. Later events that readers may have seen are void."""
    is_whole: bool
    """Redis still has the log's end, so readers have seen nothing after `follows`."""


StoreShown = Callable[[Run, Entries, datetime], Awaitable[None]]
"""Stores events that an earlier owner of the run has shown (`CheckpointStore.adopt`). Raises `StaleFence` and
`Unavailable`."""


class EventLog:
    """The logs of all runs.

    `ttl_s` is how long a log stays after its end. `owner` distinguishes this process from other processes that may have
    the same fence after a database was restored from a backup; by default it is a new name. `appends` sends appends
    together with those of other runs; without it, each append is sent by itself. `servers` keep the logs, by default
    `redis`, which always has the cancel flags.

    Every method raises `Unavailable` when Redis does not answer. Such an append may have been written: repeat it
    unchanged.
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
        """Takes the log for `fence` and returns its last number, 0 if Redis has no log. Raises `LeaseLost` when a newer
        owner has it."""
        async with self._asking(run_id) as server:
            with crash_point(CrashPoint.OPEN_LOG):
                last = await self._open(
                    keys=[keys.fence(run_id), keys.events(run_id)], args=[self._holder(fence), self._live_ms], on=server
                )
        if last < 0:
            raise LeaseLost
        return Seq(last)

    async def append(self, run_id: RunId, fence: Fence, tail: LogTail, *, needs: Seq) -> None:
        """Appends entries, each without a line break, and publishes them. Entries that the log already has stay
        unchanged, so a repetition does no harm.

        `needs` is the number that the log must reach, or readers would find a hole; 0 if SQL has all earlier entries.
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
        """The first `limit` entries after `after` (None: all). They may not follow `after` directly, because Redis may
        have lost entries."""
        async with self._asking(run_id) as server:
            return _entries(await server.xrange(keys.events(run_id), min=f"({after}-0", count=limit))

    async def newest(self, run_id: RunId) -> tuple[Seq, bytes] | None:
        """Returns the entry that was shown last, if Redis has one."""
        async with self._asking(run_id) as server:
            found = _entries(await server.xrevrange(keys.events(run_id), count=1))
        return found[0] if found else None

    async def trim(self, run_id: RunId, stored: Seq) -> None:
        """Drops the entries before `stored`: SQL has them, and readers get them there. The entry `stored` itself stays,
        so that the stream still shows how far it reaches."""
        async with self._asking(run_id) as server:
            await server.xtrim(keys.events(run_id), minid=f"{stored}-0", approximate=False)

    async def drop(self, run_id: RunId) -> None:
        """Drops a stream that does not continue what SQL has. For the log's owner."""
        async with self._asking(run_id) as server:
            await server.delete(keys.events(run_id))

    async def announce(self, run: Run) -> None:
        """Tells readers of the run's thread, and dashboards, to look at it again. A lost announcement does no harm:
        they look at times without one."""
        await self.announce_other(run.id, run)

    async def announce_other(self, run_id: RunId, beside: Run | Approval) -> None:
        """Announces another run of the same thread."""
        channel, word = keys.thread_changes(beside.project_id), f"{beside.thread_id} {beside.agent_id} {run_id}"
        try:
            async with redis_answers():
                server: Any = self._servers.server_of(channel)
                await server.execute_command(self._servers.publish, channel, word)
        except Unavailable as error:
            self._servers.doubt()
            log.debug("thread_change_not_announced", run_id=run_id, reason=str(error))

    async def expire(self, run_id: RunId) -> None:
        """Lets the log expire, `ttl_s` from now, and deletes the run's cancel flag. Must be called when the run has
        ended, even if its end could not be appended: a full Redis still accepts this."""
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
        """The lifetime of the log with these entries, ms. A late end, sent after `expire`, does not undo that call."""
        return self._ended_ms if tail.entries and is_end(tail.entries[-1]) else self._live_ms

    def _holder(self, fence: Fence) -> str:
        return f"{fence} {self._owner}"


def _entries(found: Any) -> Entries:
    """The entries of a stream as Redis returns them."""
    return [(Seq(int(entry_id.partition(b"-")[0])), fields[b"e"]) for entry_id, fields in found]


async def adopt_log(
    run: Run, event_log: EventLog, store: StoreShown, now: datetime, *, stores_first: bool = False
) -> AdoptedLog:
    """Hands a run's log to its next owner: fences off the earlier ones, and stores the events that they have shown and
    SQL lacks. SQL has the whole log with `stores_first`, because it gets events before readers do, and after an owner
    that handed the run over.

    A repetition does no harm. Raises `LeaseLost` if a newer owner has the log, `StaleFence` if a newer owner has the
    run, and `Unavailable`.
    """
    last = await event_log.open(run.id, run.fence)
    is_stored = stores_first or run.follows_stored_log
    if last <= run.last_seq:
        return AdoptedLog(run.last_seq, is_whole=is_stored or last == run.last_seq)
    entries = await event_log.read(run.id, run.last_seq, limit=None)
    shown = unbroken(run.last_seq, entries)
    if len(shown) < len(entries):
        # Redis has lost a part of the log that SQL never had. Entries after that part would mislead readers.
        await event_log.drop(run.id)
    if shown:
        await store(run, shown, now)
    return AdoptedLog(shown[-1][0] if shown else run.last_seq, is_whole=is_stored or len(shown) == len(entries))


MAX_ENTRIES = 1000
MAX_BYTES = 1 << 17
"""Bytes of events that may wait in this process for a slow reader. Beyond that, the reader reads the log."""

PAGE = 500
"""Entries that a lagging reader gets from the log at once, of at most `MAX_BYTES`. It keeps them until its client reads
them."""


class Subscription(NewsWait):
    """One reader's view of a run's live events.

    While it is up to date, it delivers the published events. It is `behind` if events may be missing: at the start,
    after a lost connection, when the reader was too slow for its buffer, or when a number is missing. Then the reader
    continues from the log at its own pace. So a reader gets every event once, in order, with bounded memory:

        async with feed.subscribe(run_id) as subscription:
            while ...:
                entries = await subscription.read(log, last)
                if entries and entries[0] does not follow `last`: Redis lost the log's beginning; get it from SQL
                deliver; advance `last`
                if not entries and not await subscription.wait(20): nothing for 20 s
    """

    __slots__ = ("_batches", "_behind", "_bytes", "_entries", "_feed", "run_id")

    def __init__(self, feed: "EventFeed", run_id: RunId, timers: RoughTimers) -> None:
        super().__init__(timers, has_news=True)
        self._feed = feed
        self.run_id = run_id
        self._batches: list[tuple[Seq, list[bytes]]] = []
        self._entries = 0
        self._bytes = 0
        self._behind = True

    async def __aenter__(self) -> "Subscription":
        self._feed.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_waiting()
        self._feed.leave(self)

    @property
    def behind(self) -> bool:
        """Whether the next events may have to come from the log."""
        return self._behind

    async def read(self, log: EventLog, after: Seq, limit: int = PAGE) -> list[tuple[Seq, bytes]]:
        """Returns the known events after `after`: from the log if behind, otherwise from the feed.

        Raises `Unavailable` when the log cannot be read; the subscription is then still behind.
        """
        if not self._behind:
            entries = self._take(after)
            if entries or not self._behind:
                return entries
        # Live events are collected again before the log is read: no event that is published in between is missed.
        self._behind = False
        self._forget()
        complete = False
        try:
            found = await log.read(self.run_id, after, limit)
            entries = of_bytes(found, self._feed.max_bytes)
            complete = len(found) < limit and len(entries) == len(found)
            return entries
        finally:
            if not complete:
                self.fall_behind()

    def _take(self, after: Seq) -> list[tuple[Seq, bytes]]:
        """The live events that directly follow `after`. If one of them is missing, the subscription falls behind."""
        taken: list[tuple[Seq, bytes]] = []
        expected = after + 1
        for first, entries in self._batches:
            if first > expected:
                self.fall_behind()
                return taken
            for entry in entries[expected - first :]:
                taken.append((Seq(expected), entry))
                expected += 1
        self._forget()
        return taken

    def fall_behind(self) -> None:
        """Records that events may be missing: drops the collected events, so that the reader reads the log."""
        self._forget()
        self._behind = True
        self.tell()

    def offer(self, first: Seq, entries: list[bytes], size: int) -> None:
        """Collects published events for the reader, or falls behind when there are too many. The feed calls it."""
        if self._behind:
            return
        if self._entries + len(entries) > self._feed.max_entries or self._bytes + size > self._feed.max_bytes:
            self.fall_behind()
            return
        self._batches.append((first, entries))
        self._entries += len(entries)
        self._bytes += size
        self.tell()

    def _forget(self) -> None:
        self._batches.clear()
        self._entries = 0
        self._bytes = 0
        self.forget_news()


OnWord = Callable[[bytes | None], None]
"""The callback for a word on a channel; None: words may have been missed."""


class EventFeed:
    """Delivers the events that are published on the channels of runs to the readers of this process.

    `max_entries` and `max_bytes` limit the events that wait for one reader; beyond that, the reader continues from the
    log.
    """

    def __init__(self, servers: LogServers, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self._timers = RoughTimers()
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._heard: dict[bytes, list[OnWord]] = {}
        self._listener = servers.listener(name="event feed", on_message=self._deliver, on_subscribed=self._look_again)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Listens while the body runs. Without it, subscriptions are behind once and then silent."""
        return self._listener.running()

    def subscribe(self, run_id: RunId) -> Subscription:
        """A subscription for the length of a block, behind at first. The reader can read it at once; it does not wait
        for Redis here."""
        return Subscription(self, run_id, self._timers)

    def enter(self, subscription: Subscription) -> None:
        """Delivers events to the subscription, which calls this when its block begins."""
        channel = keys.feed(subscription.run_id)
        self._subscriptions.setdefault(channel.encode(), []).append(subscription)
        self._listener.add(channel)

    def leave(self, subscription: Subscription) -> None:
        """Ends `enter`."""
        channel = keys.feed(subscription.run_id)
        readers = self._subscriptions[channel.encode()]
        readers.remove(subscription)
        if not readers:
            del self._subscriptions[channel.encode()]
            self._listener.remove(channel)

    def hear(self, channel: str, on_word: OnWord) -> None:
        """Calls `on_word` with each word on a channel that belongs to no run, over the same connection; with None if
        words may have been missed, also before the first word."""
        self._heard.setdefault(channel.encode(), []).append(on_word)
        self._listener.add(channel)

    def stop_hearing(self, channel: str, on_word: OnWord) -> None:
        """Ends `hear`."""
        heard = self._heard[channel.encode()]
        heard.remove(on_word)
        if not heard:
            del self._heard[channel.encode()]
            self._listener.remove(channel)

    def _deliver(self, channel: bytes, payload: bytes) -> None:
        if self._heard and (heard := self._heard.get(channel)) is not None:
            for on_word in heard:
                on_word(payload)
            return
        first, _, body = payload.partition(b" ")
        if not first.isdigit():
            # Another release published the event in another form. The log has it.
            self._look_again(channel)
            return
        entries = body.split(b"\n")
        for subscription in self._subscriptions.get(channel, ()):
            subscription.offer(Seq(int(first)), entries, len(body))

    def _look_again(self, channel: bytes) -> None:
        for on_word in self._heard.get(channel, ()):
            on_word(None)
        for subscription in self._subscriptions.get(channel, ()):
            subscription.fall_behind()
