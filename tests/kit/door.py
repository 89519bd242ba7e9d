"""The way from the product to a service, which a test can shut: a relay of TCP connections.

A service may be shared with others or be hard to break by itself; the way to it is ours. A door can cut what is open,
refuse what comes, or let everybody wait without an answer.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast


class Door:
    """Relays connections of a port of loopback to the port of a service, at most so many at once: others wait."""

    def __init__(self, service_port: int, most: int = 10_000) -> None:
        self._places = asyncio.Semaphore(most)
        self.port = 0
        self.is_stalled = False
        self._service_port = service_port
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def standing(self) -> AsyncGenerator["Door"]:
        """Open for the block; everything is cut at its end."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self.open()
            try:
                yield self
            finally:
                self.is_stalled = False
                self.shut()

    async def open(self) -> None:
        """Takes connections, always on the same port."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _End(self), "127.0.0.1", self.port)
            self.port = int(self._server.sockets[0].getsockname()[1])

    def shut(self) -> None:
        """Cuts every connection and refuses new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Ends every connection at once, as a network does."""
        for end in list(self._ends):
            end.abort()

    def stall(self, stalled: bool) -> None:
        """Whether connections, and those to come, are held without a byte passing."""
        self.is_stalled = stalled
        for end in list(self._ends):
            end.read_or_wait()

    def entered(self, end: "_End") -> None:
        """A client is there: its other half is opened."""
        self._ends.add(end)
        if self._group is None or self._server is None:
            end.abort()
            return
        self._group.create_task(self._connect(end), name="connect to the service")

    def joined(self, end: "_End") -> None:
        self._ends.add(end)

    def left(self, end: "_End") -> None:
        self._ends.discard(end)
        if end.is_of_service:
            self._places.release()

    async def _connect(self, client: "_End") -> None:
        await self._places.acquire()
        if client.is_gone:
            self._places.release()
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _End(self, client), "127.0.0.1", self._service_port)
        except OSError:
            self._places.release()
            client.abort()


class _End(asyncio.Protocol):
    """One of the two connections that are relayed. It is read only while the other one takes what comes."""

    def __init__(self, door: Door, other: "_End | None" = None) -> None:
        self.is_of_service = other is not None
        self._door = door
        self._other = other
        self.transport: asyncio.Transport | None = None
        self.other_is_full = False
        self._early = bytearray()
        """What came before there was anybody to give it to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        asyncio.get_running_loop().call_soon(self.read_or_wait)  # uvloop begins to read after this method only
        if self._other is None:
            self._door.entered(self)
            return
        self._door.joined(self)
        if self._other.is_gone:
            self.abort()
            return
        self._other.join(self)

    @property
    def is_gone(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def join(self, other: "_End") -> None:
        """The connection to the service is there."""
        self._other = other
        if self._early and other.transport is not None:
            other.transport.write(bytes(self._early))
            self._early.clear()

    def read_or_wait(self) -> None:
        """Reads, unless the door is stalled or the other end is full."""
        if self.transport is None or self.transport.is_closing():
            return
        may_read = not self.other_is_full and not self._door.is_stalled
        if may_read and not self.transport.is_reading():
            self.transport.resume_reading()
        elif not may_read and self.transport.is_reading():
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early += data
        elif self._other.transport is not None:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        self._tell_other(full=True)

    def resume_writing(self) -> None:
        self._tell_other(full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.left(self)
        self.transport = None
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _tell_other(self, *, full: bool) -> None:
        if self._other is not None:
            self._other.other_is_full = full
            self._other.read_or_wait()
