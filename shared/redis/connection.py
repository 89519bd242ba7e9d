"""The connections to Redis, and the one place that turns errors of Redis into domain errors.

`connect` and `embedded.connect_embedded` give the same client, so no other module knows whether Redis is embedded.
Clients are lazy: the first command connects. Close one with `await client.aclose(close_connection_pool=True)`.
"""

import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from arq.connections import ArqRedis
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.concurrency import AnswerTimeout
from shared.domain.errors import InvalidRequest, Unavailable, Unusable
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
    return client_of(pool)


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
    client = client_of(cast("Any", BlockingConnectionPool)(max_connections=2, timeout=ANSWER_S, **settings))
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


def client_of(pool: ConnectionPool) -> Redis:
    """A client that takes its connections from this pool."""
    return ArqRedis(pool)


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
