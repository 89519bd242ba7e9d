"""The feed of live events: one connection per process and server of logs, however many readers. It is quick but
forgets; the log is complete. A `Subscription` joins the two.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shared.concurrency import MovingTimer
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import of_bytes
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.log_servers import LogServers

MAX_ENTRIES = 1000
MAX_BYTES = 1 << 17
"""What a reader that is slower than its run may leave in this process before it has to read the log."""

PAGE = 500
"""Entries that a reader which is behind gets from the log at once, of `MAX_BYTES` at most. It keeps them for as long as
its client takes none."""


class Subscription:
    """One reader's view of a run's live events.

    While it has seen everything, it delivers what was published. It is `behind` when something may be missing: at the
    start, after a lost connection, when the reader was too slow for its buffer, or when a number is missing. Then the
    reader continues from the log at its own pace. So a reader gets every event once, in order, with bounded memory:

        async with feed.subscribe(run_id) as subscription:
            while ...:
                entries = await subscription.read(log, last)
                if entries and entries[0] does not follow `last`: Redis lost the log's beginning; get it from SQL
                deliver; advance `last`
                if not entries and not await subscription.wait(20): nothing for 20 s
    """

    def __init__(self, run_id: RunId, *, max_entries: int, max_bytes: int) -> None:
        self.run_id = run_id
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._batches: list[tuple[Seq, list[bytes]]] = []
        self._entries = 0
        self._bytes = 0
        self._behind = True
        self._has_news = True
        self._waiting: asyncio.Future[None] | None = None
        self._until = 0.0
        """When the reader has waited long enough, by the event loop's clock."""
        self._timer = MovingTimer()

    @property
    def behind(self) -> bool:
        """Whether the next events may have to come from the log."""
        return self._behind

    @property
    def is_waiting(self) -> bool:
        """Whether the reader has taken all that is known, and waits for more."""
        return self._waiting is not None

    async def read(self, log: EventLog, after: Seq, limit: int = PAGE) -> list[tuple[Seq, bytes]]:
        """What follows `after`, as far as it is known: from the log when behind, else from the feed.

        Raises `Unavailable` when the log cannot be read; the subscription is then still behind.
        """
        if not self._behind:
            entries = self._take(after)
            if entries or not self._behind:
                return entries
        self._catch_up()
        complete = False
        try:
            found = await log.read(self.run_id, after, limit)
            entries = of_bytes(found, self._max_bytes)
            complete = len(found) < limit and len(entries) == len(found)
            return entries
        finally:
            if not complete:
                self.fall_behind()

    async def wait(self, within: float) -> bool:
        """Waits until there is something to read. False when there is nothing for `within` seconds."""
        if self._has_news:
            return True
        loop = asyncio.get_running_loop()
        self._until = loop.time() + within
        self._timer.look_at(self._until, self._look)
        # For each token of each reader: an event and a timeout around it cost several times as much.
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
        return self._has_news

    def _look(self) -> None:
        if self._waiting is not None and asyncio.get_running_loop().time() < self._until:
            self._timer.look_at(self._until, self._look)
        else:
            self._wake()

    def stop_waiting(self) -> None:
        """Nobody waits here any more. The feed calls it."""
        self._timer.stop()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _take(self, after: Seq) -> list[tuple[Seq, bytes]]:
        """The live events that directly follow `after`. When one is missing, the subscription falls behind."""
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

    def _catch_up(self) -> None:
        """Collects live events again. To be called before the log is read: called afterwards, it would miss what is
        published in between."""
        self._behind = False
        self._forget()

    def fall_behind(self) -> None:
        """Notes that something may be missing: drops the collected events, so that the reader looks into the log."""
        self._forget()
        self._behind = True
        self._tell()

    def offer(self, first: Seq, entries: list[bytes], size: int) -> None:
        """Collects published events for the reader, or falls behind when there are too many. The feed calls it."""
        if self._behind:
            return
        if self._entries + len(entries) > self._max_entries or self._bytes + size > self._max_bytes:
            self.fall_behind()
            return
        self._batches.append((first, entries))
        self._entries += len(entries)
        self._bytes += size
        self._tell()

    def _forget(self) -> None:
        self._batches.clear()
        self._entries = 0
        self._bytes = 0
        self._has_news = False

    def _tell(self) -> None:
        self._has_news = True
        self._wake()


class EventFeed:
    """Delivers what is published on the channels of runs to the readers of this process.

    `max_entries` and `max_bytes` limit what waits for one reader; beyond that, the reader continues from the log.
    """

    def __init__(self, servers: LogServers, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._listener = servers.listener(name="event feed", on_message=self._deliver, on_subscribed=self._look_again)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Listens while the body runs. Without it, subscriptions are behind once and then silent."""
        return self._listener.running()

    @asynccontextmanager
    async def subscribe(self, run_id: RunId) -> AsyncGenerator[Subscription]:
        """A subscription for the body, behind at first. The reader can read it at once; it does not wait for Redis
        here."""
        channel = keys.feed(run_id)
        subscription = Subscription(run_id, max_entries=self._max_entries, max_bytes=self._max_bytes)
        readers = self._subscriptions.setdefault(channel.encode(), [])
        readers.append(subscription)
        self._listener.add(channel)
        try:
            yield subscription
        finally:
            subscription.stop_waiting()
            readers.remove(subscription)
            if not readers:
                del self._subscriptions[channel.encode()]
                self._listener.remove(channel)

    def _deliver(self, channel: bytes, payload: bytes) -> None:
        first, _, body = payload.partition(b" ")
        if not first.isdigit():
            # Another release published this, in another form. The log has it.
            self._look_again(channel)
            return
        entries = body.split(b"\n")
        for subscription in self._subscriptions.get(channel, ()):
            subscription.offer(Seq(int(first)), entries, len(body))

    def _look_again(self, channel: bytes) -> None:
        for subscription in self._subscriptions.get(channel, ()):
            subscription.fall_behind()
