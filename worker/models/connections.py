"""The one HTTP client of the process, its transport, and the streams that each model call has open on it.

A client takes 20 ms of CPU (its TLS context), and its pool makes the second call fast, so all protocols share one. Some
SDKs leave a response open when their iterator is abandoned. Here every stream of a call is closed when the call ends,
however it ends, so that the provider stops generating at once.

A header on a call's requests identifies the call. It never leaves the process.
"""

import asyncio
import itertools
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple, cast

import httpx2

from shared.network.checked_http import CallersHttp, NetworkRules
from worker.models.event_streams import SdkEvents, StreamEnd
from worker.models.provider import COUNTS_WITHIN_S
from worker.models.server_connections import (
    IncomingResponse,
    Origin,
    OutgoingRequest,
    ServerConnection,
    Timeouts,
    connection_to,
    until,
    within,
)

CALL_HEADER = "x-holdfast-call"

_TIMEOUT = httpx2.Timeout(None, connect=10.0, pool=30.0)
"""`SilenceLimit` limits all reads and writes. A timer for each read would be one for each token."""


class OpenCall:
    """The open streams of one model call, and their contents."""

    def __init__(self, number: str, on_bytes: Callable[[], None]) -> None:
        self.header = {CALL_HEADER: number}
        self.events: SdkEvents | None = None
        """The events of the answer, once it has begun."""
        self.on_bytes = on_bytes
        self._streams: list[httpx2.AsyncByteStream] = []

    @property
    def end(self) -> StreamEnd:
        """The stream's information about the answer's end."""
        return StreamEnd() if self.events is None else self.events.ended_as

    def watch(self, response: httpx2.Response) -> None:
        """Watches this response until the call ends."""
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return
        if response.is_success:
            self.events = SdkEvents(str(response.headers.get("content-type", "")))
            response.stream = _WatchedStream(_unpacked(response), self, self.events)
        self._streams.append(response.stream)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            for stream in self._streams:
                closing.push_async_callback(_close, stream)


class Connections:
    """Owns the shared client and the client for callers' addresses. Its creator closes it once."""

    def __init__(self, network: NetworkRules) -> None:
        self.images = CallersHttp(network)
        """For images at an address in a message, which a caller chose."""
        self._numbers = itertools.count(1)
        self._calls: dict[str, OpenCall] = {}
        self.client = httpx2.AsyncClient(
            timeout=_TIMEOUT,
            transport=_WatchingTransport(self._calls, network.tls()),
            # Servers send events one by one, and compressing each takes longer.
            headers={"accept-encoding": "identity"},
        )

    @asynccontextmanager
    async def call(self, on_bytes: Callable[[], None]) -> AsyncGenerator[OpenCall]:
        """A call, whose streams are closed at the end of the block. `on_bytes` is called for each piece that
        arrives."""
        number = str(next(self._numbers))
        call = self._calls[number] = OpenCall(number, on_bytes)
        try:
            yield call
        finally:
            del self._calls[number]
            await call.close()

    async def aclose(self) -> None:
        await self.client.aclose()
        await self.images.aclose()


class _WatchingTransport(httpx2.AsyncBaseTransport):
    """Removes the call's header from a request and passes the response to the call."""

    def __init__(self, calls: dict[str, OpenCall], tls: ssl.SSLContext) -> None:
        self._calls = calls
        self._transport = ServerTransport(tls, PoolLimits())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._calls.get(request.headers.pop(CALL_HEADER, ""))
        response = await self._transport.handle_async_request(request)
        if call is not None:
            call.watch(response)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _WatchedStream(httpx2.AsyncByteStream):
    """A response's bytes, in the form that the SDKs read; notifies the call of them."""

    def __init__(self, stream: httpx2.AsyncByteStream, call: OpenCall, events: SdkEvents) -> None:
        self._stream = stream
        self._call = call
        self._events = events
        self._said = 0
        self._ends_by: float | None = None
        """The event loop's time until which the server may send counts, once the answer has ended."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        try:
            while (chunk := await self._next_of(chunks)) is not None:
                self._call.on_bytes()
                if readable := self._events.feed(chunk):
                    yield readable
                if self._events.failure is not None:
                    raise self._events.failure
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            rest = self._events.cut()
            if not self._events.ended_as.has_reason:
                raise
        else:
            rest = self._events.end()
        if rest:
            yield rest
        if self._events.failure is not None:
            raise self._events.failure

    async def _next_of(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """The next chunk; None at the end. A complete answer is not lost with its connection."""
        if not self._events.ended_as.has_reason:
            return await anext(chunks, None)
        if self._ends_by is None or self._events.said_behind_end != self._said:
            self._said = self._events.said_behind_end
            self._ends_by = asyncio.get_running_loop().time() + COUNTS_WITHIN_S
        with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError, OSError):
            async with asyncio.timeout_at(self._ends_by):
                return await anext(chunks, None)
        return None

    async def aclose(self) -> None:
        await self._stream.aclose()


class _UnpackedStream(httpx2.AsyncByteStream):
    """The bytes of a response that its server has compressed."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.aiter_bytes()

    async def aclose(self) -> None:
        await self._response.aclose()


def _unpacked(response: httpx2.Response) -> httpx2.AsyncByteStream:
    """Decompresses the answer. Afterwards the response looks as if it had never been compressed: some servers compress
    unasked, and deviations in an answer must be corrected before the SDK reads it."""
    stream = cast("httpx2.AsyncByteStream", response.stream)
    if "content-encoding" not in response.headers:
        return stream
    packed = httpx2.Response(response.status_code, headers=response.headers, stream=stream)
    for name in ("content-encoding", "content-length"):
        response.headers.pop(name, None)
    return _UnpackedStream(packed)


async def _close(stream: httpx2.AsyncByteStream) -> None:
    with suppress(httpx2.HTTPError, OSError):
        await stream.aclose()


# HTTP/1.1 to model servers for the HTTP client: a pool of connections, and responses that are read over them.
#
# There is no HTTP/2 here. httpx2 does everything above it: addresses, headers, cookies, redirects, decoding.


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
