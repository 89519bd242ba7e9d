"""One pub/sub connection that stays subscribed.

Pub/sub forgets: messages that are published while the connection is away never arrive. So the listener reports each
subscription, the first one and those after reconnects, and its user then reads the durable state. The feed of events,
the cancels and the workers' wake channel use it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from shared.concurrency import background
from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import CancelMode
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import Connection, Redis, dedicated_connection, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 1.0


class ChannelListener:
    """Calls `on_message(channel, payload)` for each message of the wanted channels.

    `on_subscribed(channel)` means that messages arrive from here on and that earlier ones may have been missed. Both
    are called on the event loop, in the order in which Redis sent the messages; they must be quick. If one of them
    fails, the listener logs it and continues with the next message. `on_broken` is called each time that the connection
    broke.

    `is_sharded`: the server is a node of a Redis Cluster, and the channels are those of its slots. A channel whose slot
    moves away counts as a broken connection.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        name: str,
        on_message: Callable[[bytes, bytes], None],
        on_subscribed: Callable[[bytes], None],
        on_broken: Callable[[], None] = lambda: None,
        is_sharded: bool = False,
    ) -> None:
        self._redis = redis
        self._name = name
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._on_broken = on_broken
        self._sharded = "S" if is_sharded else ""
        self._wanted: set[str] = set()
        self._touched: set[str] = set()
        self._changed = asyncio.Event()
        self._retry_s = FIRST_RETRY_S

    def running(self) -> AbstractAsyncContextManager[None]:
        """Listens while the body runs."""
        return background(self._listen(), name=self._name)

    def add(self, channel: str) -> None:
        """Subscribes to the channel. `on_subscribed` follows, unless the channel was added before."""
        self._wanted.add(channel)
        self._touch(channel)

    def remove(self, channel: str) -> None:
        """Unsubscribes from the channel. A message in transit may still arrive."""
        self._wanted.discard(channel)
        self._touch(channel)

    def _touch(self, channel: str) -> None:
        self._touched.add(channel)
        self._changed.set()

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_until_it_breaks()
            except (RedisError, OSError) as error:
                log.warning("listener_disconnected", listener=self._name, retry_s=self._retry_s, reason=str(error))
                self._on_broken()
            await asyncio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)

    async def _listen_until_it_breaks(self) -> None:
        async with self._connected() as connection:
            self._touched = set(self._wanted)
            async with background(self._subscribe(connection), name=f"{self._name} subscriptions"):
                await self._receive(connection)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection]:
        connection = dedicated_connection(self._redis)
        try:
            await connection.connect()
            yield connection
        finally:
            await connection.disconnect(nowait=True)

    async def _subscribe(self, connection: Connection) -> None:
        """Keeps the connection's subscriptions equal to the wanted channels. Concurrent changes are sent together, and
        a channel that was removed and added again meanwhile costs nothing."""
        subscribed: set[str] = set()
        while True:
            self._changed.clear()
            touched, self._touched = self._touched, set()
            joined = (touched & self._wanted) - subscribed
            left = (touched & subscribed) - self._wanted
            subscribed |= joined
            subscribed -= left
            await self._send(connection, "SUBSCRIBE", joined)
            await self._send(connection, "UNSUBSCRIBE", left)
            await self._changed.wait()

    async def _send(self, connection: Connection, command: str, channels: set[str]) -> None:
        # Channels of several slots may not be named in one command.
        for named in [[channel] for channel in channels] if self._sharded else [list(channels)]:
            if named:
                await connection.send_command(self._sharded + command, *named)

    async def _receive(self, connection: Connection) -> None:
        while True:
            reply = await connection.read_response(disable_decoding=True)
            if not reply:
                raise RedisConnectionError("the connection was closed")
            self._retry_s = FIRST_RETRY_S
            kind, channel, payload = reply
            if kind == b"sunsubscribe" and channel.decode() in self._wanted:
                raise RedisConnectionError("a slot has moved to another node")
            self._hand_on(kind, channel, payload)

    def _hand_on(self, kind: bytes, channel: bytes, payload: bytes) -> None:
        try:
            if kind in (b"message", b"smessage"):
                self._on_message(channel, payload)
            elif kind in (b"subscribe", b"ssubscribe"):
                self._on_subscribed(channel)
        except Exception:
            # The background-loop boundary: one message must not end the listener.
            log.exception("listener_message_failed", listener=self._name, channel=channel.decode("utf-8", "replace"))


# Tells the workers that a run is to be cancelled.
#
# SQL has the request already when the API announces it here. The publish makes it fast (a millisecond). The flag makes
# it reliable: a worker reads the flags of its runs whenever it may have missed a publish.


MAX_WAITING = 1000
"""Announcements that may wait for the worker. If there are more, the worker reads the flags instead."""


class Announcements:
    """The announcements that a worker receives, in order: the run and the mode of a cancel, or None if it may have
    missed announcements and must read the flags of all its runs (`raised`). An endless async iterator."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._waiting: asyncio.Queue[tuple[RunId, CancelMode] | None] = asyncio.Queue(max_waiting)

    def __aiter__(self) -> "Announcements":
        return self

    async def __anext__(self) -> tuple[RunId, CancelMode] | None:
        return await self._waiting.get()

    def put(self, announced: tuple[RunId, CancelMode] | None) -> None:
        """Adds an announcement; if too many wait, one None replaces all of them."""
        if self._waiting.full():
            while not self._waiting.empty():
                self._waiting.get_nowait()
            announced = None
        self._waiting.put_nowait(announced)


class CancelSignal:
    """Announces cancels and listens for them. Raises `Unavailable` if Redis does not answer; a listener retries by
    itself."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def announce(self, run_id: RunId, mode: CancelMode) -> None:
        """Raises the run's flag and notifies every worker."""
        async with redis_answers(), cast("Any", self._redis).pipeline(transaction=False) as pipe:
            pipe.set(keys.cancel_flag(run_id), mode.value, ex=keys.CANCEL_FLAG_TTL_S)
            pipe.publish(keys.CANCELS_CHANNEL, f"{run_id} {mode.value}")
            with crash_point(CrashPoint.ANNOUNCE_CANCEL):
                await pipe.execute()

    async def raised(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelMode]:
        """Those of `run_ids` whose flag is raised."""
        if not run_ids:
            return {}
        async with redis_answers():
            flags: Any = await self._redis.mget([keys.cancel_flag(run_id) for run_id in run_ids])
        return {
            run_id: _mode(flag) or CancelMode.INTERRUPT for run_id, flag in zip(run_ids, flags, strict=True) if flag
        }

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Announcements]:
        """Listens while the body runs. The first item is None. So is the item after every reconnect, and the item for a
        newer release's announcement that this release cannot read."""
        heard = Announcements()

        def on_message(_channel: bytes, payload: bytes) -> None:
            run_id, _, word = payload.partition(b" ")
            mode = _mode(word)
            if mode is None:
                log.warning("cancel_announcement_not_understood", payload=payload[:200])
            heard.put(None if mode is None else (RunId(run_id.decode("utf-8", "replace")), mode))

        def on_subscribed(_channel: bytes) -> None:
            heard.put(None)

        listener = ChannelListener(
            self._redis, name="cancel listener", on_message=on_message, on_subscribed=on_subscribed
        )
        listener.add(keys.CANCELS_CHANNEL)
        async with listener.running():
            yield heard


def _mode(word: bytes) -> CancelMode | None:
    """The mode of this name; None for a mode that this release does not know."""
    try:
        return CancelMode(word.decode("utf-8", "replace"))
    except ValueError:
        return None
