"""A Redis Cluster that keeps the logs of runs: its nodes, their slots, and a client of each node.

The keys of a log share a hash tag, so that one node has all of them (Redis Cluster Specification, "Hash tags"). This
client does not follow redirections. A caller that reaches the wrong node, or gets no answer, calls `doubt`, raises
`Unavailable`, and retries as after any other failure. Meanwhile the slot map is read again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import structlog
from redis.crc import key_slot

from shared.concurrency import background
from shared.domain.errors import InvalidRequest, Unavailable
from shared.redis.connection import Address, ChannelListener, Redis, connect, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""The scheme of a cluster's address, and the scheme for each of its nodes."""

LOOK_AGAIN_S = 0.1
"""Seconds between two reads of the slot map, however often callers doubt it."""

LOOK_EVERY_S = 30.0
"""Seconds after which the slot map is read even if no caller doubts it: a slot that has moved away and back causes no
errors."""


def is_cluster(url: str) -> bool:
    """Whether the URL names a cluster, and not one server."""
    return urlsplit(url).scheme in CLUSTER_SCHEMES


class Cluster:
    """The known nodes of a cluster and their slots; none are known before it is `running`.

    `url` names one or more of the nodes: `redis+cluster://:password@a:6379,b:6379`, or `rediss+cluster://` for TLS.
    """

    def __init__(self, url: str) -> None:
        self._scheme, self._credentials, seeds = _parts_of(url)
        self._seeds = {address: self._connect(address) for address in seeds}
        self._nodes: dict[Address, Redis] = {}
        self._slots: list[tuple[int, int, Address]] = []
        self._doubted = asyncio.Event()
        self._on_change: list[Callable[[], None]] = []

    @property
    def nodes(self) -> Mapping[Address, Redis]:
        """The nodes that have slots, and a client of each."""
        return self._nodes

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after each read of the slot map that found a change."""
        self._on_change.append(callback)

    def address_of(self, key: str) -> Address | None:
        """Returns the address of the node with the key's slot; None if it is unknown."""
        slot = key_slot(key.encode())
        return next((address for first, last, address in self._slots if first <= slot <= last), None)

    def client_of(self, key: str) -> Redis:
        """A client of the node that has the key's slot. Raises `Unavailable` if it is unknown."""
        address = self.address_of(key)
        if address is None:
            self.doubt()
            raise Unavailable("It is not known which node of the Redis Cluster has this log")
        return self._nodes[address]

    def doubt(self) -> None:
        """Reports an error that an outdated slot map would explain."""
        self._doubted.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Cluster"]:
        """Keeps the slot map up to date within the block. If any node answers, the map was read once before the block
        begins."""
        try:
            await self._look()
            async with background(self._keep_looking(), name="cluster map"):
                yield self
        finally:
            for client in [*self._seeds.values(), *self._nodes.values()]:
                await client.aclose(close_connection_pool=True)

    async def _keep_looking(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S if self._slots else LOOK_AGAIN_S):
                    await self._doubted.wait()
            except TimeoutError:
                pass
            self._doubted.clear()
            await self._look()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _look(self) -> None:
        """Asks the nodes one after the other, until one of them returns the map."""
        for address, client in [*self._nodes.items(), *self._seeds.items()]:
            try:
                async with redis_answers():
                    slots: Any = await cast("Any", client).execute_command("CLUSTER SLOTS")
            except Unavailable as error:
                log.warning("cluster_node_does_not_answer", node=address.netloc, reason=str(error))
                continue
            await self._take([(first, last, _address_in(node, address)) for first, last, node, *_ in slots])
            return

    async def _take(self, slots: list[tuple[int, int, Address]]) -> None:
        slots.sort()
        if slots == self._slots:
            return
        named = {address for _, _, address in slots}
        left = [client for address, client in self._nodes.items() if address not in named]
        self._nodes = {address: self._nodes.get(address) or self._connect(address) for address in named}
        self._slots = slots
        log.info("cluster_map_read", nodes=len(named))
        for callback in self._on_change:
            callback()
        for client in left:
            await client.aclose(close_connection_pool=True)

    def _connect(self, address: Address) -> Redis:
        return connect(f"{self._scheme}://{self._credentials}{address.netloc}/0")


Made = TypeVar("Made")


class ForEachNode(Generic[Made]):
    """Runs one context per node, for as long as the node has slots.

    `begin` creates the context from the node's client. `made` has the values of the running contexts.
    """

    def __init__(
        self, cluster: Cluster, begin: Callable[[Redis], AbstractAsyncContextManager[Made]], *, name: str
    ) -> None:
        self._cluster = cluster
        self._begin = begin
        self._name = name
        self._changed = asyncio.Event()
        self.made: dict[Address, Made] = {}
        cluster.on_change(self._changed.set)

    @asynccontextmanager
    async def running(self, on_change: Callable[[], None] = lambda: None) -> AsyncGenerator[None]:
        """Runs the contexts within the block. `on_change` is called when a node's context began or ended, and when
        slots have moved."""
        async with background(self._follow(on_change), name=self._name):
            yield

    async def _follow(self, on_change: Callable[[], None]) -> None:
        tasks: dict[Address, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for address in tasks.keys() - self._cluster.nodes.keys():
                    tasks.pop(address).cancel()
                for address in self._cluster.nodes.keys() - tasks.keys():
                    work = self._run(address, self._cluster.nodes[address], on_change)
                    tasks[address] = group.create_task(work, name=f"{self._name} {address.netloc}")
                on_change()
                await self._changed.wait()

    async def _run(self, address: Address, client: Redis, on_change: Callable[[], None]) -> None:
        async with self._begin(client) as made:
            self.made[address] = made
            on_change()
            try:
                await asyncio.Event().wait()
            finally:
                del self.made[address]
                on_change()


def _parts_of(url: str) -> tuple[str, str, list[Address]]:
    """Returns the scheme for nodes, `user:password@` if there is one, and the named nodes."""
    scheme, netloc = urlsplit(url).scheme, urlsplit(url).netloc
    credentials, at, hosts = netloc.rpartition("@")
    try:
        seeds = [urlsplit(f"//{host}") for host in hosts.split(",")]
        addresses = [Address(seed.hostname or "", seed.port or 6379) for seed in seeds]
    except ValueError:
        addresses = []
    if scheme not in CLUSTER_SCHEMES or not addresses or not all(address.host for address in addresses):
        raise InvalidRequest(
            "HOLDFAST_EVENT_LOG_URL is not the address of a Redis Cluster: use "
            "redis+cluster://:password@host:6379,host:6379, or rediss+cluster:// for TLS"
        )
    return CLUSTER_SCHEMES[scheme], credentials + at, addresses


def _address_in(node: list[Any], asked: Address) -> Address:
    """The address of a node in the slot map. An entry without a host means the node that answered."""
    host, port = node[0], int(node[1])
    return Address(host.decode() if host else asked.host, port)


# Sharded pub/sub: each channel is subscribed at the node that has its slot.
#
# It is used like a `ChannelListener`. When a slot moves, or its node is replaced, the channel is subscribed at the new
# node, and `on_subscribed` reports that messages may have been missed.


class ClusterListener:
    """A `ChannelListener` per node."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        on_message: Callable[[bytes, bytes], None],
        on_subscribed: Callable[[bytes], None],
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._wanted: dict[str, Address | None] = {}
        """Each channel, and the node at which it is subscribed."""
        self._listeners = ForEachNode(cluster, self._listen, name=name)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Listens while the body runs."""
        return self._listeners.running(self._place_all)

    def add(self, channel: str) -> None:
        """Subscribes to the channel. `on_subscribed` follows, unless the channel was added before."""
        if channel not in self._wanted:
            self._wanted[channel] = None
            self._place(channel)

    def remove(self, channel: str) -> None:
        """Unsubscribes from the channel. A message in transit may still arrive."""
        self._leave(channel, self._wanted.pop(channel, None))

    @asynccontextmanager
    async def _listen(self, redis: Redis) -> AsyncGenerator[ChannelListener]:
        listener = ChannelListener(
            redis,
            name=self._name,
            on_message=self._on_message,
            on_subscribed=self._on_subscribed,
            on_broken=self._cluster.doubt,
            is_sharded=True,
        )
        async with listener.running():
            yield listener

    def _place_all(self) -> None:
        for channel in list(self._wanted):
            self._place(channel)

    def _place(self, channel: str) -> None:
        """Subscribes to the channel at the node that has its slot now, if there is a listener."""
        address, was = self._cluster.address_of(channel), self._wanted[channel]
        if was is not None and (was != address or was not in self._listeners.made):
            self._leave(channel, was)
            was = self._wanted[channel] = None
        listener = None if address is None else self._listeners.made.get(address)
        if was is None and listener is not None:
            self._wanted[channel] = address
            listener.add(channel)

    def _leave(self, channel: str, address: Address | None) -> None:
        listener = None if address is None else self._listeners.made.get(address)
        if listener is not None:
            listener.remove(channel)
