"""Where the logs of runs are kept: on one Redis server, or on the nodes of a Redis Cluster.

Only logs and their feeds may be spread over servers, because a run's log has to do with no other. The queue is one set
for all runs, and stays with leases and signals on the server that every process shares.
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
from shared.redis.channel_listener import ChannelListener
from shared.redis.cluster import Cluster, ClusterListener, ForEachNode, is_cluster
from shared.redis.connection import (
    ANSWER_S,
    LuaScript,
    Redis,
    Script,
    as_unavailable,
    connect,
    dedicated_connection,
    is_reachable,
    netloc_of,
)

# One way to Redis for the appends of all runs of this process.
#
# To send and to receive costs a process more than all else that an append does. So what the runs have ready in one turn
# of the event loop goes out in one piece, and the answers are read together. While they are under way, what comes waits
# for the next piece. Pieces grow with the load by themselves. There is no timer: an append that is alone goes at once.
#
# For Redis, a piece is one script after another. It does other work in between.


PIECE_BYTES = 1 << 18
"""The most that goes out in one piece, unless it is one append. So a long answer that is sent again does not keep the
others waiting behind all of it."""


class _Append(NamedTuple):
    """A command as it is sent, and who waits for its answer."""

    command: bytes
    answer: "asyncio.Future[Any]"


class AppendPipeline:
    """Carries the appends of all runs of this process to Redis, over one connection.

    It is called as the script is, while `running`. An append that Redis refuses fails by itself. What breaks the
    connection, or is silent, fails everything that is under way with `Unavailable`: repeat it as it was.

    On a Redis Cluster the logs of two runs may be on two nodes. There each node gets a pipeline, and what belongs to a
    run's slot is known from the key of its log.
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
        """Carries appends while the block lasts."""
        try:
            async with background(self._carry(), name="append pipeline"):
                self._is_running = True
                yield self
        finally:
            self._is_running = False
            _fail(self._waiting, _closed())
            await self._connection.disconnect()

    async def __call__(self, *, keys: Sequence[str], args: Iterable[str | bytes | int]) -> Any:
        """What the script answers. Raises `Unavailable`."""
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
            # As `redis_answers`, whose generator would be one for each token.
            async with AnswerTimeout(ANSWER_S):
                await self._exchange(piece)
        except (RedisError, OSError) as error:
            failure = as_unavailable(error)
        finally:
            if unanswered := [append for append in piece if not append.answer.done()]:
                _fail(unanswered, failure or _closed())

    async def _exchange(self, piece: list[_Append]) -> None:
        """Sends a piece, and over a new connection what the present one leaves unanswered: a server closes what was
        idle for long."""
        is_new = not self._connection.is_connected
        try:
            await self._send(piece)
        except (RedisConnectionError, OSError):
            if is_new:
                raise
            await self._send([append for append in piece if not append.answer.done()])

    async def _send(self, piece: list[_Append]) -> None:
        """Sends a piece, and again what a server that is new does not know the script for."""
        unknown = await self._answered(piece)
        while unknown:
            await self._connection.send_packed_command(_packed("SCRIPT", "LOAD", self._script.text))
            await self._connection.read_response()
            unknown = await self._answered(unknown)

    async def _answered(self, piece: list[_Append]) -> list[_Append]:
        """Sends a piece and takes the answers. Those appends for which the server lacks the script."""
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
    """Who still waits for an answer gets an error of his own: one that is raised in several places names them all."""
    for append in appends:
        if not append.answer.done():
            append.answer.set_exception(copy(error))


def _packed(*parts: str | bytes | int) -> bytes:
    # hiredis is ten times as quick as redis-py. Its types take it for a function of one part.
    packed: bytes = cast("Any", hiredis).pack_command(parts)
    return packed


def _closed() -> Unavailable:
    return Unavailable("This process sends no events any more")


Heard = Callable[[bytes, bytes], None]
"""Is called with the channel and the payload of a message."""


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
        """A client of the server that has the log with this key. Raises `Unavailable` when that is not known now."""
        ...

    def by_netloc(self) -> Mapping[str, Redis]:
        """A client of each that is known now, by where it is (`netloc_of`)."""
        ...

    def doubt(self) -> None:
        """A server did not do what it was asked."""
        ...

    async def are_reachable(self) -> bool:
        """Whether each of them answers."""
        ...

    def listener(self, *, name: str, on_message: Heard, on_subscribed: Callable[[bytes], None]) -> Listener:
        """Hears the channels of logs."""
        ...

    def appending(self) -> AbstractAsyncContextManager[Script]:
        """Carries the appends of all runs of this process, those for one server together."""
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
        """There is no other server to look for."""

    async def are_reachable(self) -> bool:
        return await is_reachable(self._redis)

    def listener(self, *, name: str, on_message: Heard, on_subscribed: Callable[[bytes], None]) -> Listener:
        return ChannelListener(self._redis, name=name, on_message=on_message, on_subscribed=on_subscribed)

    def appending(self) -> AbstractAsyncContextManager[Script]:
        return AppendPipeline(self._redis).running()


class ClusterLogServers:
    """Each log is on the node of a cluster that has its slot. To be used while the cluster is `running`."""

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
    """The servers that `url` names, for the block; without one, `redis` keeps the logs. Raises `InvalidRequest` for
    what is no address."""
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
    """Gives each append to the pipeline of its log's node."""

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
