"""Connections to models' servers, for the HTTP client: protocols of the event loop, with nothing between.

The client's own ones are anyio's. For each piece that these read they make a cancel scope, and have the socket watched
and no longer watched; TLS is done in Python. A model's tokens come one by one, so that was a sixth of what each cost
the worker.
"""

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpcore2

from worker.models.racing_addresses import connected_socket

MOST_UNREAD = 1 << 18
"""Bytes that wait for who reads before the server has to wait."""


class ServerConnection(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection. It is read by one task at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._is_over = False
        self._error: Exception | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Pending while the socket takes no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread > MOST_UNREAD:
            self._open_transport().pause_reading()
        _wake(self._arrival)

    def eof_received(self) -> bool:
        self._is_over = True
        _wake(self._arrival)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over, self._error = True, exc
        _wake(self._arrival)
        _wake(self._room)

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._room)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        """What has come, `max_bytes` at most; nothing at the end. Raises httpcore's errors."""
        if not self._chunks and not self._is_over:
            self._arrival = asyncio.get_running_loop().create_future()
            if timeout is None:
                await self._arrival
            else:
                async with _within(timeout, httpcore2.ReadTimeout, httpcore2.ReadError):
                    await self._arrival
        if not self._chunks:
            if self._error is not None:
                raise httpcore2.ReadError(str(self._error))
            return b""
        chunk = self._chunks.popleft()
        if len(chunk) > max_bytes:
            self._chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._unread -= len(chunk)
        if self._unread <= MOST_UNREAD < self._unread + len(chunk):
            self._open_transport().resume_reading()
        return chunk

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        """Sends it, at the pace of the server. Raises httpcore's errors."""
        if not buffer:
            return
        if self._error is not None or self._open_transport().is_closing():
            raise httpcore2.WriteError(str(self._error or "the connection is closed"))
        self._open_transport().write(buffer)
        if self._room is not None:
            async with _within(timeout, httpcore2.WriteTimeout, httpcore2.WriteError):
                await self._room

    async def aclose(self) -> None:
        """Lets go at once: neither side has anything more to say."""
        self._open_transport().abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
    ) -> "ServerConnection":
        """The connection, in private. Raises httpcore's errors, and is closed then."""
        loop, plain = asyncio.get_running_loop(), self._open_transport()
        try:
            async with _within(timeout, httpcore2.ConnectTimeout, httpcore2.ConnectError):
                self._transport = await loop.start_tls(plain, self, ssl_context, server_hostname=server_hostname)
        except BaseException:
            plain.abort()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for by these names."""
        transport = self._open_transport()
        match info:
            case "is_readable":
                return self._is_over or bool(self._chunks) or _is_readable(transport)
            case "client_addr":
                return transport.get_extra_info("sockname")
            case "server_addr":
                return transport.get_extra_info("peername")
            case _:
                return transport.get_extra_info(info)

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise AssertionError("asyncio hands out a protocol when it is connected")
        return self._transport


class ServerConnections(httpcore2.AsyncNetworkBackend):
    """Makes connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> ServerConnection:
        """A connection. Raises httpcore's errors."""
        if local_address is not None or socket_options is not None:
            raise AssertionError("nobody asks for these here")
        async with _within(timeout, httpcore2.ConnectTimeout, httpcore2.ConnectError):
            connected = await connected_socket(host, port)
            return await _over(connected)

    async def sleep(self, seconds: float) -> None:
        """For httpcore's own retries."""
        await asyncio.sleep(seconds)


async def _over(connected: socket.socket) -> ServerConnection:
    try:
        _, connection = await asyncio.get_running_loop().create_connection(ServerConnection, sock=connected)
    except BaseException:
        connected.close()
        raise
    return connection


@asynccontextmanager
async def _within(seconds: float | None, too_late: type[Exception], broken: type[Exception]) -> AsyncGenerator[None]:
    """Says errors as httpcore does."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise too_late(str(error)) from error
    except OSError as error:
        raise broken(str(error)) from error


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _is_readable(transport: asyncio.Transport) -> bool:
    """Whether there is something that the event loop has not seen yet. On a connection at rest, that is its end."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
