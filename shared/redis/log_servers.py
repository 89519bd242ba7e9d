"""The servers that keep the logs of runs: one Redis server, or the nodes of a Redis Cluster.

Only logs and their feeds may be spread over servers, because a run's log is independent of all others. The queue is one
set for all runs; it stays, with leases and signals, on the server that every process shares.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import Any, NamedTuple, Protocol, cast

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from shared.concurrency import AnswerTimeout, background
from shared.domain.errors import Unavailable
from shared.redis.cluster import Cluster, ClusterListener, ForEachNode, is_cluster
from shared.redis.connection import (
    ANSWER_S,
    ChannelListener,
    LuaScript,
    Redis,
    Script,
    as_unavailable,
    connect,
    dedicated_connection,
    is_reachable,
    netloc_of,
)

# One connection to Redis for the appends of all runs of this process.
#
# Sending and receiving costs a process more than the rest of an append. So the appends of one turn of the event loop
# are sent in one batch, and their answers are read together. Meanwhile, further appends wait for the next batch.
# Batches grow with the load by themselves. There is no timer: a single append is sent at once.
#
# For Redis, a batch is one script after another, with other work in between.


PIECE_BYTES = 1 << 18
"""The most bytes in one batch, unless it is a single append. So a long answer that is sent again does not block the
other appends until all of it is sent."""


class _Append(NamedTuple):
    """An encoded command, and the future for its answer."""

    command: bytes
    answer: "asyncio.Future[Any]"


class AppendPipeline:
    """Sends the appends of all runs of this process to Redis over one connection.

    Call it like the script, while `running`. If Redis refuses an append, only that append fails. If the connection
    breaks or Redis does not answer, all appends in progress fail with `Unavailable`: repeat them unchanged.

    On a Redis Cluster the logs of two runs may be on two nodes. There each node has a pipeline, and the key of a run's
    log determines the node.
    """

    def __init__(self, redis: Redis, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._script = LuaScript(redis, "append")
        self._connection = dedicated_connection(redis)
        self._piece_bytes = piece_bytes
        self._waiting: deque[_Append] = deque()
        self._awake = asyncio.Event()
        self._is_running = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["AppendPipeline"]:
        """Sends appends while the block lasts."""
        try:
            async with background(self._carry(), name="append pipeline"):
                self._is_running = True
                yield self
        finally:
            self._is_running = False
            _fail(self._waiting, _closed())
            await self._connection.disconnect()

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        """Returns the script's answer. Raises `Unavailable`."""
        if not self._is_running:
            raise _closed()
        command = _packed("EVALSHA", self._script.digest, len(keys), *keys, *args)
        append = _Append(command, asyncio.get_running_loop().create_future())
        self._waiting.append(append)
        self._awake.set()
        return await append.answer

    async def _carry(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                await self._carry_piece(self._next_piece())

    def _next_piece(self) -> list[_Append]:
        piece = [self._waiting.popleft()]
        size = len(piece[0].command)
        while self._waiting and (size := size + len(self._waiting[0].command)) <= self._piece_bytes:
            piece.append(self._waiting.popleft())
        return piece

    async def _carry_piece(self, piece: list[_Append]) -> None:
        failure: Unavailable | None = None
        try:
            # Like `redis_answers`, which would create a generator for each token.
            async with AnswerTimeout(ANSWER_S):
                await self._exchange(piece)
        except (RedisError, OSError) as error:
            failure = as_unavailable(error)
        finally:
            if unanswered := [append for append in piece if not append.answer.done()]:
                _fail(unanswered, failure or _closed())

    async def _exchange(self, piece: list[_Append]) -> None:
        """Sends a batch, and sends unanswered appends again over a new connection, because a server closes connections
        that were idle for long."""
        is_new = not self._connection.is_connected
        try:
            await self._send(piece)
        except (RedisConnectionError, OSError):
            if is_new:
                raise
            await self._send([append for append in piece if not append.answer.done()])

    async def _send(self, piece: list[_Append]) -> None:
        """Sends a batch, and sends appends again if a new server had not loaded the script for them."""
        unknown = await self._answered(piece)
        while unknown:
            await self._connection.send_packed_command(_packed("SCRIPT", "LOAD", self._script.text))
            await self._connection.read_response()
            unknown = await self._answered(unknown)

    async def _answered(self, piece: list[_Append]) -> list[_Append]:
        """Sends a batch and reads the answers. Returns the appends for which the server lacks the script."""
        connection, unknown = self._connection, list[_Append]()
        await connection.send_packed_command(b"".join([append.command for append in piece]))
        for append in piece:
            try:
                answer = await connection.read_response()
            except NoScriptError:
                unknown.append(append)
            except ResponseError as error:
                _fail([append], as_unavailable(error))
            else:
                if not append.answer.done():
                    append.answer.set_result(answer)
        return unknown


def _fail(appends: Iterable[_Append], error: Unavailable) -> None:
    """Each waiting caller gets its own error object: one object raised in several places would collect the tracebacks
    of all."""
    for append in appends:
        if not append.answer.done():
            append.answer.set_exception(copy(error))


def _packed(*parts: str | bytes | int) -> bytes:
    # hiredis is ten times as fast as redis-py. Its type stubs declare a function of one argument.
    packed: bytes = cast("Any", hiredis).pack_command(parts)
    return packed


def _closed() -> Unavailable:
    return Unavailable("This process sends no events any more")


Heard = Callable[[bytes, bytes], None]
"""The callback for a message's channel and payload."""


class Listener(Protocol):
    """See `ChannelListener`."""

    def running(self) -> AbstractAsyncContextManager[None]: ...

    def add(self, channel: str) -> None: ...

    def remove(self, channel: str) -> None: ...


class LogServers(Protocol):
    """The servers that keep logs."""

    publish: str
    """The command by which a script publishes on the channel of a log."""

    def server_of(self, key: str) -> Redis:
        """A client of the server that has the log with this key. Raises `Unavailable` if the server is unknown now."""
        ...

    def by_netloc(self) -> Mapping[str, Redis]:
        """Returns a client of each known server, by its address (`netloc_of`)."""
        ...

    def doubt(self) -> None:
        """Reports that a server failed a request."""
        ...

    async def are_reachable(self) -> bool:
        """Whether all servers answer."""
        ...

    def listener(self, *, name: str, on_message: Heard, on_subscribed: Callable[[bytes], None]) -> Listener:
        """Returns a listener to the channels of logs."""
        ...

    def appending(self) -> AbstractAsyncContextManager[Script]:
        """Sends the appends of all runs of this process, those for one server together."""
        ...


class OneLogServer:
    """All logs are on one server."""

    publish = "PUBLISH"

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def server_of(self, key: str) -> Redis:
        del key
        return self._redis

    def by_netloc(self) -> Mapping[str, Redis]:
        return {netloc_of(self._redis): self._redis}

    def doubt(self) -> None:
        """Does nothing, because there is no other server."""

    async def are_reachable(self) -> bool:
        return await is_reachable(self._redis)

    def listener(self, *, name: str, on_message: Heard, on_subscribed: Callable[[bytes], None]) -> Listener:
        return ChannelListener(self._redis, name=name, on_message=on_message, on_subscribed=on_subscribed)

    def appending(self) -> AbstractAsyncContextManager[Script]:
        return AppendPipeline(self._redis).running()


class ClusterLogServers:
    """Each log is on the node of a cluster that has its slot. Use it while the cluster is `running`."""

    publish = "SPUBLISH"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def server_of(self, key: str) -> Redis:
        return self._cluster.client_of(key)

    def by_netloc(self) -> Mapping[str, Redis]:
        return {address.netloc: node for address, node in sorted(self._cluster.nodes.items())}

    def doubt(self) -> None:
        self._cluster.doubt()

    async def are_reachable(self) -> bool:
        nodes = self._cluster.nodes.values()
        return bool(nodes) and all(await asyncio.gather(*map(is_reachable, nodes)))

    def listener(self, *, name: str, on_message: Heard, on_subscribed: Callable[[bytes], None]) -> Listener:
        return ClusterListener(self._cluster, name=name, on_message=on_message, on_subscribed=on_subscribed)

    @asynccontextmanager
    async def appending(self) -> AsyncGenerator[Script]:
        pipelines = ForEachNode(self._cluster, lambda node: AppendPipeline(node).running(), name="append pipelines")
        async with pipelines.running():
            yield _ClusterAppends(self._cluster, pipelines)


@asynccontextmanager
async def log_servers(url: str, redis: Redis) -> AsyncGenerator[LogServers]:
    """The servers that `url` names, for the block; without a URL, `redis` keeps the logs. Raises `InvalidRequest` if
    the URL is not an address."""
    if not url:
        yield OneLogServer(redis)
    elif is_cluster(url):
        async with Cluster(url).running() as cluster:
            yield ClusterLogServers(cluster)
    else:
        server = connect(url, setting="HOLDFAST_EVENT_LOG_URL")
        try:
            yield OneLogServer(server)
        finally:
            await server.aclose(close_connection_pool=True)


class _ClusterAppends:
    """Sends each append through the pipeline of its log's node."""

    def __init__(self, cluster: Cluster, pipelines: ForEachNode[AppendPipeline]) -> None:
        self._cluster = cluster
        self._pipelines = pipelines

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        try:
            return await self._pipeline_of(keys[0])(keys=keys, args=args)
        except Unavailable:
            self._cluster.doubt()
            raise

    def _pipeline_of(self, key: str) -> AppendPipeline:
        address = self._cluster.address_of(key)
        pipeline = None if address is None else self._pipelines.made.get(address)
        if pipeline is None:
            raise Unavailable("It is not known which node of the Redis Cluster has this log")
        return pipeline
