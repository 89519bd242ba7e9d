"""The connections to Redis, and the one place that turns errors of Redis into domain errors.

`connect` and `embedded.connect_embedded` give the same client, so no other module knows whether Redis is embedded.
Clients are lazy: the first command connects. Close one with `await client.aclose(close_connection_pool=True)`.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import structlog
from arq.connections import ArqRedis
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.concurrency import AnswerTimeout, background
from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import CancelMode, InvalidRequest, Unavailable, Unusable
from shared.domain.ids import RunId
from shared.redis import keys

Redis = ArqRedis
"""The client that the rest of the product uses. Only this module knows its library."""

MAX_CONNECTIONS = 64
"""Commands that one process may have in progress. Further ones wait for a free connection."""

ANSWER_S = 5.0
"""Seconds without an answer after which Redis counts as gone."""


class Connection(Protocol):
    """One connection of its own, outside the pool, as pub/sub needs it."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    @property
    def is_connected(self) -> bool: ...

    async def send_command(self, *command: str) -> None: ...

    async def send_packed_command(self, command: bytes) -> None: ...

    async def read_response(self, disable_decoding: bool = False) -> Any: ...


def connect(url: str, *, setting: str = "HOLDFAST_REDIS_URL") -> Redis:
    """A client of the Redis server at `url`. Raises `InvalidRequest`, which names the setting, if the URL is not an
    address of Redis."""
    pool = _pool(
        url,
        setting,
        max_connections=MAX_CONNECTIONS,
        timeout=ANSWER_S,
        socket_connect_timeout=1.0,
        # Waiting is bounded by `redis_answers` instead: a socket timeout costs redis-py a task per command.
        socket_timeout=None,
        socket_keepalive=True,
        socket_keepalive_options=_keepalive_options(),
        protocol=2,
        # redis-py raises a bare OSError when the server's port is closed, which it does not retry by default.
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), retries=2),
        retry_on_error=[RedisConnectionError, RedisTimeoutError, OSError],
    )
    return Redis(pool)


def _pool(url: str, setting: str, **settings: Any) -> ConnectionPool:
    try:
        # redis-py ignores a database that is not a number, and would use another one.
        int(urlsplit(url).path.strip("/") or 0)
        pool = cast("Any", BlockingConnectionPool).from_url(url, **settings)
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError):
        # A TypeError means an unknown parameter after `?`. The URL's text may contain a password anywhere, and so may
        # the error's.
        raise InvalidRequest(
            f"{setting} is not the address of a Redis: use redis://:password@host:6379/0, or rediss:// for TLS"
        ) from None
    return pool


@asynccontextmanager
async def own_client(redis: Redis) -> AsyncGenerator[Redis]:
    """Another client of the same server, for the block: an event loop needs a client of its own."""
    pool = cast("Any", redis.connection_pool)
    settings: dict[str, Any] = {**pool.connection_kwargs, "connection_class": pool.connection_class}
    client = Redis(cast("Any", BlockingConnectionPool)(max_connections=2, timeout=ANSWER_S, **settings))
    try:
        yield client
    finally:
        await client.aclose(close_connection_pool=True)


def dedicated_connection(redis: Redis) -> Connection:
    """A connection to the server of `redis`, not yet open. It never reconnects by itself, because its owner must notice
    a break."""
    pool = cast("Any", redis.connection_pool)
    settings: dict[str, Any] = {**pool.connection_kwargs, "socket_timeout": None, "retry": None, "retry_on_error": []}
    return cast("Connection", pool.connection_class(**settings))


@asynccontextmanager
async def redis_answers(within: float = ANSWER_S) -> AsyncGenerator[None]:
    """Turns every failure of Redis, and silence for `within` seconds, into `Unavailable`."""
    try:
        async with AnswerTimeout(within):
            yield
    except (RedisError, OSError) as error:
        raise as_unavailable(error) from error


def as_unavailable(error: RedisError | OSError) -> Unavailable:
    """Returns the `Unavailable` for a failure of Redis."""
    match error:
        case AuthenticationError() | NoPermissionError() | InvalidResponse():
            return Unusable(f"Redis refuses this process: {error}")
        case ResponseError() if str(error).startswith("DB index"):
            return Unusable(f"Redis does not answer: {error}")
        case ResponseError():
            # Temporary: the server is full, loads its data, or became a replica.
            return Unavailable(f"Redis refuses a command: {error}")
        case _:
            return Unavailable(f"Redis does not answer: {str(error) or type(error).__name__}")


def _keepalive_options() -> dict[int, int]:
    """Socket options that let a process notice within half a minute that the other machine is gone, also on a
    connection that only listens."""
    if sys.platform != "linux":
        return {}
    return {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


async def greet(redis: Redis) -> None:
    """Returns when Redis has answered. Raises `Unavailable`."""
    async with redis_answers():
        await cast("Any", redis).ping()


async def try_writing(redis: Redis) -> None:
    """Returns when Redis has accepted a write and a message. Raises `Unavailable`, also if it refuses them."""
    async with redis_answers():
        await cast("Any", redis).set(keys.TRIAL, b"", px=1000)
        await cast("Any", redis).publish(keys.TRIAL, b"")


async def is_reachable(redis: Redis, trial: Callable[[Redis], Awaitable[None]] = greet) -> bool:
    """Whether Redis answers, or passes another trial."""
    try:
        await trial(redis)
    except Unavailable:
        return False
    return True


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def netloc_of(redis: Redis) -> str:
    """Returns the server's host and port, or the path of its socket; without credentials."""
    settings: dict[str, Any] = cast("Any", redis.connection_pool).connection_kwargs
    if "path" in settings:
        return str(settings["path"])
    return Address(settings.get("host", "localhost"), settings.get("port", 6379)).netloc


@cache
def text_of_script(name: str) -> str:
    """A Lua script of this package."""
    return files("shared.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")


class Script(Protocol):
    """A callable script. Raises `Unavailable`."""

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any: ...


class LuaScript:
    """A Lua script of this package. Each `.lua` file begins with its keys, its arguments and its answer. A script may
    use functions of other files, which are named first.

    The client sends the script's hash, and its text only to a server that does not know it yet.
    """

    def __init__(self, redis: Redis, *names: str) -> None:
        self._script = redis.register_script("\n".join(map(text_of_script, names)))

    @property
    def text(self) -> str:
        return cast("str", self._script.script)

    @property
    def digest(self) -> str:
        """The hash that calls the script on a server that has loaded it."""
        return cast("str", self._script.sha)

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int], on: Redis | None = None) -> Any:
        """Returns the script's answer; `on` is a server to call instead of the script's own."""
        return cast("Any", await self._script(keys=keys, args=args, client=on))

    async def answered(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        """Like a call, but raises `Unavailable`."""
        async with redis_answers():
            return await self(keys=keys, args=args)


# One pub/sub connection that stays subscribed.
#
# Pub/sub forgets: messages that are published while the connection is away never arrive. So the listener reports each
# subscription, the first one and those after reconnects, and its user then reads the durable state. The feed of events,
# the cancels and the workers' wake channel use it.


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
