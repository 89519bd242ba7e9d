"""Addresses on loopback that misbehave on a test's request: a TCP proxy before a service, and a black hole.

A service may be shared or hard to break, but the way to it belongs to the test.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import cast

from tests.kit.free_ports import free_port


class TcpProxy:
    """Relays connections of a port of loopback to the port of a service, at most so many at once: others wait.

    It can cut the connections that are open, refuse new ones, or hold all of them without a byte passing.
    """

    def __init__(self, service_port: int, most: int = 10_000) -> None:
        self._places = asyncio.Semaphore(most)
        self.port = free_port()
        self.is_stalled = False
        self._service_port = service_port
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["TcpProxy"]:
        """Relays for the block; everything is cut at its end."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self.accept()
            try:
                yield self
            finally:
                self.is_stalled = False
                self.refuse()

    async def accept(self) -> None:
        """Takes connections, always on the same port."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Cuts every connection and refuses new ones, until `accept`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def lead_to(self, service_port: int) -> None:
        """Another service replaces the one behind it: new connections lead there, and open ones are cut."""
        self._service_port = service_port
        self.cut()

    def cut(self) -> None:
        """Ends every connection at once, as a network does."""
        for connection in list(self._connections):
            connection.abort()

    def stall(self, stalled: bool) -> None:
        """Whether connections, and those to come, are held without a byte passing."""
        self.is_stalled = stalled
        for connection in list(self._connections):
            connection.read_or_wait()

    def client_connected(self, client: "_Connection") -> None:
        """Opens the connection to the service that belongs to a client's."""
        self._connections.add(client)
        if self._group is None or self._server is None:
            client.abort()
            return
        self._group.create_task(self._connect(client), name="connect to the service")

    def service_connected(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def disconnected(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if connection.is_of_service:
            self._places.release()

    async def _connect(self, client: "_Connection") -> None:
        await self._places.acquire()
        if client.is_gone:
            self._places.release()
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Connection(self, client), "127.0.0.1", self._service_port)
        except OSError:
            self._places.release()
            client.abort()


class _Connection(asyncio.Protocol):
    """One of the two connections that are relayed. It is read only while the other one takes what comes."""

    def __init__(self, proxy: TcpProxy, other: "_Connection | None" = None) -> None:
        self.is_of_service = other is not None
        self._proxy = proxy
        self._other = other
        self.transport: asyncio.Transport | None = None
        self.other_is_full = False
        self._early = bytearray()
        """Bytes that arrived before the other connection existed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        asyncio.get_running_loop().call_soon(self.read_or_wait)  # uvloop begins to read after this method only
        if self._other is None:
            self._proxy.client_connected(self)
            return
        self._proxy.service_connected(self)
        if self._other.is_gone:
            self.abort()
            return
        self._other.join(self)

    @property
    def is_gone(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def join(self, other: "_Connection") -> None:
        """The connection to the service is there."""
        self._other = other
        if self._early and other.transport is not None:
            other.transport.write(bytes(self._early))
            self._early.clear()

    def read_or_wait(self) -> None:
        """Reads, unless the proxy is stalled or the other connection is full."""
        if self.transport is None or self.transport.is_closing():
            return
        may_read = not self.other_is_full and not self._proxy.is_stalled
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
        self._proxy.disconnected(self)
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


@contextmanager
def blackhole_address() -> Generator[str]:
    """A URL on loopback where, for the block, no connection is ever made: the listener's queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
