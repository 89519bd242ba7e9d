"""HTTP/1.1 to model servers for the HTTP client: a pool of connections, and responses that are read over them.

There is no HTTP/2 here. httpx2 does everything above it: addresses, headers, cookies, redirects, decoding.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import NamedTuple, cast

import httpx2

from worker.models.http_messages import IncomingResponse, OutgoingRequest
from worker.models.server_connections import Origin, ServerConnection, Timeouts, connection_to, until, within

_BODY = "holdfast_body"
"""The extension of a response that gives access to its body without httpx2's iterators."""


class PoolLimits(NamedTuple):
    """Limits on the number of connections."""

    most: int = 2000
    most_kept: int = 100
    kept_s: float = 5.0
    """Servers close idle connections some time later."""


class ServerTransport(httpx2.AsyncBaseTransport):
    """The transport to all servers. Raises httpx2's errors."""

    def __init__(self, tls: ssl.SSLContext, limits: PoolLimits) -> None:
        self._pool = _Pool(tls, limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        origin, asked = Origin.of(request.url), OutgoingRequest(request)
        body = _content_of(request)
        timeouts = cast("Timeouts", request.extensions.get("timeout", {}))
        connection = await self._pool.take(origin, timeouts)
        try:
            response = await connection.ask(asked, body, timeouts)
        except BaseException:
            self._pool.release(connection)
            raise
        stream = ResponseBody(response, connection, self._pool, timeouts.get("read"))
        extensions = {"http_version": response.version, "reason_phrase": response.reason, _BODY: stream}
        return httpx2.Response(response.status_code, headers=response.headers, stream=stream, extensions=extensions)

    async def aclose(self) -> None:
        self._pool.close()


def body_of(response: httpx2.Response) -> "ResponseBody | None":
    """The body of a response, without httpx2's iterators; None if the response did not use this transport."""
    return cast("ResponseBody | None", response.extensions.get(_BODY))


class ResponseBody(httpx2.AsyncByteStream):
    """A response's body, and its connection, which it holds until it is closed."""

    def __init__(
        self, response: IncomingResponse, connection: ServerConnection, pool: "_Pool", within_s: float | None
    ) -> None:
        self._response = response
        self._connection = connection
        self._pool = pool
        self._within_s = within_s
        self._is_closed = False

    def arrived(self) -> bytes | None:
        """Returns the bytes since the last call; empty if there are none, None if all was read. Raises httpx2's
        errors."""
        response = self._response
        if response.unread:
            data = response.take()
            self._connection.resume()
            return data
        if response.failure is not None:
            raise response.failure
        return None if response.is_whole else b""

    def arrival(self) -> "asyncio.Future[None]":
        """Done when more bytes have arrived, or when none will follow."""
        return self._connection.arrival()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (data := self.arrived()) is not None:
            if data:
                yield data
            else:
                await until(self.arrival(), self._within_s, httpx2.ReadTimeout)

    async def aclose(self) -> None:
        """Hands the connection over to the next request; in the middle of the response, it closes it."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.release(self._connection)


class _Pool:
    """The connections: those in use, and those that are idle for the next request."""

    def __init__(self, tls: ssl.SSLContext, limits: PoolLimits) -> None:
        self._tls = tls
        self._tls.set_alpn_protocols(["http/1.1"])
        self._limits = limits
        self._places = asyncio.Semaphore(limits.most)
        self._taken = 0
        self._used: set[ServerConnection] = set()
        self._kept: list[ServerConnection] = []
        """In the order in which they became idle."""

    async def take(self, origin: Origin, timeouts: Timeouts) -> ServerConnection:
        """A connection for one request; `release` it afterwards. Raises `PoolTimeout`, and the errors of connecting."""
        if self._places.locked():
            async with within(timeouts.get("pool"), httpx2.PoolTimeout):
                await self._places.acquire()
        else:
            await self._places.acquire()
        self._taken += 1
        try:
            connection = self._kept_for(origin)
            if connection is None:
                self._trim()
                connection = await connection_to(origin, self._tls, timeouts.get("connect"))
        except BaseException:
            self._leave()
            raise
        self._used.add(connection)
        return connection

    def release(self, connection: ServerConnection) -> None:
        """Keeps the connection if it can be used again, and otherwise closes it."""
        self._used.discard(connection)
        if connection.can_be_used:
            connection.resume()
            connection.rests_since = asyncio.get_running_loop().time()
            self._kept.append(connection)
        else:
            connection.close()
        self._leave()
        self._trim()

    def close(self) -> None:
        """Closes all connections."""
        for connection in (*self._used, *self._kept):
            connection.close()
        self._kept.clear()

    def _kept_for(self, origin: Origin) -> ServerConnection | None:
        for connection in self._kept[::-1]:
            if connection.origin == origin:
                self._kept.remove(connection)
                if connection.rests_since >= self._expired() and connection.is_at_rest:
                    return connection
                connection.close()
        return None

    def _leave(self) -> None:
        self._taken -= 1
        self._places.release()

    def _expired(self) -> float:
        """Connections that became idle before this time are not used again."""
        return asyncio.get_running_loop().time() - self._limits.kept_s

    def _trim(self) -> None:
        """Closes connections that were idle for too long, and those beyond the limit."""
        most = min(self._limits.most_kept, self._limits.most - self._taken)
        while self._kept and (len(self._kept) > most or self._kept[0].rests_since < self._expired()):
            self._kept.pop(0).close()


def _content_of(request: httpx2.Request) -> bytes | httpx2.AsyncByteStream:
    if isinstance(request.stream, httpx2.ByteStream):
        return request.content
    if not isinstance(request.stream, httpx2.AsyncByteStream):
        raise httpx2.LocalProtocolError("the request's body cannot be read by a coroutine")
    return request.stream
