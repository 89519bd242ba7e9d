"""Where the logs of runs are kept: on one Redis server, or on the nodes of a Redis Cluster.

Only logs and their feeds may be spread over servers, because a run's log has to do with no other. The queue is one set
for all runs, and stays with leases and signals on the server that every process shares.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from shared.domain.errors import Unavailable
from shared.redis.append_pipeline import AppendPipeline
from shared.redis.channel_listener import ChannelListener
from shared.redis.cluster import Cluster, ForEachNode, is_cluster
from shared.redis.cluster_listener import ClusterListener
from shared.redis.connection import Redis, Script, connect, is_reachable, netloc_of

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
