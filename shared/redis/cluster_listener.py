"""Sharded pub/sub: each channel is heard at the node that has its slot.

It is used as a `ChannelListener` is. When a slot moves, or its node is replaced, the channel is subscribed at the new
one, and `on_subscribed` says that something may have been missed.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from shared.redis.channel_listener import ChannelListener
from shared.redis.cluster import Cluster, ForEachNode
from shared.redis.connection import Address, Redis


class ClusterListener:
    """A `ChannelListener` for each node."""

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
        """Each channel, and where it is heard."""
        self._listeners = ForEachNode(cluster, self._listen, name=name)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Listens while the body runs."""
        return self._listeners.running(self._place_all)

    def add(self, channel: str) -> None:
        """Wants the channel. `on_subscribed` follows, unless it was wanted already."""
        if channel not in self._wanted:
            self._wanted[channel] = None
            self._place(channel)

    def remove(self, channel: str) -> None:
        """No longer wants the channel. A message that is on its way may still arrive."""
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
        """Hears the channel where its slot is now, if there is a listener."""
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
