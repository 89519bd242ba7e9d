"""Connections to model servers, their requests and responses: protocols of the event loop that a reader uses directly.

A model's tokens arrive one by one, so the cost of each matters. An HTTP client's own connections, pool and parser (h11)
are layers of coroutines around every read and took up to a third of a token's cost. httptools, in C, parses here.
"""

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_OVERHEAD = 100 * 1024
"""The most bytes of a response in a row that contain no part of its body: its head, and the framing of the body."""


class OutgoingRequest:
    """The bytes of a request. Raises httpx2's errors if it cannot be sent."""

    def __init__(self, request: httpx2.Request) -> None:
        self.is_last = False
        """The request announces that it is the last on this connection."""
        self.has_answer_body = request.method != "HEAD"
        self._is_chunked = False
        self._missing = 0
        """Announced bytes of the body that are still missing."""
        if request.method == "CONNECT":
            raise httpx2.UnsupportedProtocol("a tunnel cannot be asked for here")
        lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
        for name, value in request.headers.raw:
            lines.append(b"%b: %b" % (name, value))
            self._heed(name.lower(), value)
        self.head = b"\r\n".join((*lines, b"", b""))
        ends = len(lines) + 1
        if self.head.count(b"\n") != ends or self.head.count(b"\r") != ends or b"\0" in self.head:
            raise httpx2.LocalProtocolError("a header of the request has a line break or a zero in it")

    def framed(self, data: bytes) -> bytes:
        """The encoded form of a piece of the body."""
        if self._is_chunked:
            # An empty chunk would end the body.
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        self._missing -= len(data)
        if self._missing < 0:
            raise httpx2.LocalProtocolError("the request's body is longer than was announced")
        return data

    def end(self) -> bytes:
        """Returns the bytes after the body."""
        if self._missing:
            raise httpx2.LocalProtocolError("the request's body is shorter than was announced")
        return b"0\r\n\r\n" if self._is_chunked else b""

    def _heed(self, name: bytes, value: bytes) -> None:
        match name:
            case b"content-length":
                self._missing = int(value)
            case b"transfer-encoding":
                self._is_chunked = True
            case b"connection":
                self.is_last = value.lower() == b"close"
            case b"upgrade":
                raise httpx2.UnsupportedProtocol("another protocol cannot be asked for here")
            case _:
                pass


class IncomingResponse:
    """The received part of a response."""

    def __init__(self, *, has_body: bool) -> None:
        self.status_code = 0
        self.reason = b""
        self.version = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_whole = False
        self.keeps_alive = False
        """Whether the connection may be used for another request when this response is whole."""
        self.failure: httpx2.TransportError | None = None
        """Why the response will never be complete."""
        self.unread = 0
        """Bytes of the body that the reader has not read yet."""
        self._body: list[bytes] = []
        self._has_body = has_body
        self._ends_with_connection = True
        self._overhead = 0
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        # Some servers send these, and clients accept them: a length besides chunks, lines that end in LF alone, and
        # spaces after the size of a chunk.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    @property
    def is_over(self) -> bool:
        return self.is_whole or self.failure is not None

    def feed(self, data: bytes) -> None:
        """Reads bytes from the server."""
        if self._parser is None:
            self.keeps_alive = False  # the server sends more than the response, or bytes that cannot be parsed
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.keeps_alive = False
            self.fail(httpx2.RemoteProtocolError(f"the response cannot be read: {error}"))
        if self._overhead > MOST_OVERHEAD:
            self.fail(httpx2.RemoteProtocolError(f"the response has more than {MOST_OVERHEAD} bytes beside its body"))
        if self.is_over:
            # The parser refers to this object, so only the garbage collector would delete the two.
            self._parser = None

    def end(self) -> None:
        """The server has closed the connection."""
        if not self.has_head:
            self.fail(httpx2.RemoteProtocolError("Server disconnected without sending a response."))
        elif self._ends_with_connection:
            self._complete(keeps_alive=False)
        else:
            self.fail(httpx2.RemoteProtocolError("the server hung up in the middle of its response"))
        self.keeps_alive = False

    def fail(self, error: httpx2.TransportError) -> None:
        """Ends the response with an error."""
        if not self.is_over:
            self.failure = error

    def take(self) -> bytes:
        """Returns the bytes of the body since the last call."""
        pieces, self._body, self.unread = self._body, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_message_begin(self) -> None:
        if self.is_whole:
            self.keeps_alive = False

    def on_status(self, reason: bytes) -> None:
        if not self.has_head:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self.has_head or self._parser is None:
            return
        self.status_code = self._parser.get_status_code()
        if self.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.fail(httpx2.RemoteProtocolError("the server changes to another protocol, which nobody asked for"))
        elif self.status_code < HTTPStatus.OK:
            # "Continue", or a hint: the response itself follows.
            self.headers, self.reason = [], b""
        else:
            self.version = b"HTTP/" + self._parser.get_http_version().encode("ascii")
            self._heed_framing()

    def on_body(self, piece: bytes) -> None:
        if not self.is_whole:
            self._body.append(piece)
            self.unread += len(piece)
            self._overhead = 0

    def on_message_complete(self) -> None:
        if self.has_head and self._parser is not None and not self.is_whole:
            self._complete(keeps_alive=self._parser.should_keep_alive())

    def _heed_framing(self) -> None:
        for name, value in self.headers:
            lower = name.lower()
            if lower == b"transfer-encoding" and value.lower() != b"chunked":
                coding = value.decode("ascii", "replace")
                self.fail(httpx2.RemoteProtocolError(f"the response has a transfer encoding {coding!r}"))
                return
            if lower in (b"content-length", b"transfer-encoding"):
                self._ends_with_connection = False
        self.has_head = True
        if not self._has_body:
            # The parser does not know the request's method, and waits for a body.
            self._complete(keeps_alive=False)

    def _complete(self, *, keeps_alive: bool) -> None:
        if not self.is_over:
            self.is_whole, self.keeps_alive = True, keeps_alive


# Connects a socket to a host some of whose addresses may be unreachable, after RFC 8305 ("Happy Eyeballs").


NEXT_AFTER_S = 0.25
"""Seconds after which the next address is tried in parallel, as the RFC recommends."""


class _Address(NamedTuple):
    family: int
    place: Any
    """The address for `connect`, whose form depends on the family."""


async def connected_socket(host: str, port: int) -> socket.socket:
    """A socket at the first address that answers. Raises `OSError` if none does."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first: asyncio.Future[socket.socket] = loop.create_future()
    failures: list[OSError] = []
    try:
        async with asyncio.TaskGroup() as group:
            await _race(group, _alternating([_Address(each[0], each[4]) for each in found]), first, failures)
    except BaseException:
        if first.done():
            first.result().close()
        raise
    if first.done():
        return first.result()
    raise OSError("; ".join(map(str, failures)) or f"{host} has no address")


async def _race(
    group: asyncio.TaskGroup,
    addresses: Sequence[_Address],
    first: "asyncio.Future[socket.socket]",
    failures: list[OSError],
) -> None:
    """Waits until one address has answered, or all have failed."""
    attempts: list[asyncio.Task[None]] = []
    for address in addresses:
        attempts.append(group.create_task(_attempt(address, first, failures), name="connect to a server"))
        await asyncio.wait([first, attempts[-1]], timeout=NEXT_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            break
    while not first.done() and (trying := [attempt for attempt in attempts if not attempt.done()]):
        await asyncio.wait([first, *trying], return_when=asyncio.FIRST_COMPLETED)
    for attempt in attempts:
        attempt.cancel()


async def _attempt(address: _Address, first: "asyncio.Future[socket.socket]", failures: list[OSError]) -> None:
    trying = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        trying.setblocking(False)
        await asyncio.get_running_loop().sock_connect(trying, address.place)
        if not first.done():
            first.set_result(trying)
            return
    except OSError as error:
        failures.append(error)
    except BaseException:
        trying.close()
        raise
    trying.close()


def _alternating(addresses: Sequence[_Address]) -> list[_Address]:
    """The addresses, alternating between both families: if addresses fail, it is mostly a whole family."""
    families = {
        address.family: [other for other in addresses if other.family == address.family] for address in addresses
    }
    turns = zip_longest(*families.values())
    return [address for turn in turns for address in turn if address is not None]


MOST_UNREAD = 1 << 18
"""Unread bytes after which reading from the socket pauses."""

Timeouts = Mapping[str, float | None]
"""Seconds for `connect`, `pool`, `read` and `write`, as in the extensions of httpx2's requests."""


class Origin(NamedTuple):
    """The server of a request."""

    is_private: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: httpx2.URL) -> "Origin":
        """Returns the origin of a URL. Raises `UnsupportedProtocol` if it is not HTTP."""
        scheme = url.scheme
        if scheme not in ("http", "https"):
            said = f"an unsupported protocol '{scheme}://'" if scheme else "no 'http://' or 'https://'"
            raise httpx2.UnsupportedProtocol(f"Request URL has {said}.")
        is_private = scheme == "https"
        return cls(is_private, url.raw_host.decode("ascii"), url.port or (443 if is_private else 80))


class ServerConnection(asyncio.Protocol):
    """One connection. It handles one request at a time, whose response one task reads."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.rests_since = 0.0
        """In seconds of the event loop's clock."""
        self._transport: asyncio.Transport | None = None
        self._response: IncomingResponse | None = None
        self._early: list[bytes] = []
        """Bytes that arrived before the first request. An overloaded server may answer like that."""
        self._is_sent = False
        """The last request was sent completely, so another one may follow."""
        self._is_over = False
        self._error: Exception | None = None
        self._is_paused = False
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Pending while the socket's buffer is full."""

    @property
    def can_be_used(self) -> bool:
        """Whether a request can be sent: the last response is complete, and the server has sent nothing since."""
        response = self._response
        return (
            self._is_sent
            and response is not None
            and response.is_whole
            and response.keeps_alive
            and not self._is_over
            and not self._open_transport().is_closing()
        )

    @property
    def is_at_rest(self) -> bool:
        """`can_be_used`, also after events that the event loop has not seen yet, such as the end of the connection."""
        return self.can_be_used and not _is_readable(self._open_transport())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self._early.append(data)
            return
        response.feed(data)
        if response.unread > MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._open_transport().pause_reading()
        _wake(self._arrival)
        if self._room is not None and response.is_over:
            _wake(self._room)

    def eof_received(self) -> bool:
        self._end(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._room)
        self._room = None

    async def ask(
        self, asked: OutgoingRequest, body: bytes | httpx2.AsyncByteStream, timeouts: Timeouts
    ) -> IncomingResponse:
        """The response, once its head has arrived. Raises httpx2's errors."""
        response = self._response = IncomingResponse(has_body=asked.has_answer_body)
        self._is_sent = False
        for data in self._early:
            response.feed(data)
        self._early.clear()
        if self._is_over:
            self._end(self._error)
        # A server may answer without reading the request, and close the connection. Its answer is more important than
        # the failed write.
        self._is_sent = await self._send(asked, body, timeouts.get("write")) and not asked.is_last
        while not response.has_head:
            if response.failure is not None:
                raise response.failure
            await until(self.arrival(), timeouts.get("read"), httpx2.ReadTimeout)
        return response

    def arrival(self) -> "asyncio.Future[None]":
        """Done when a part of the response has arrived, or when it has ended."""
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    def resume(self) -> None:
        """Called when the reader has read all available bytes."""
        if self._is_paused:
            self._is_paused = False
            if not self._open_transport().is_closing():
                self._open_transport().resume_reading()

    def close(self) -> None:
        """Closes at once: neither side has anything more to send."""
        self._end(ConnectionAbortedError("the connection was closed here"))
        self._open_transport().abort()

    async def _send(self, asked: OutgoingRequest, body: bytes | httpx2.AsyncByteStream, within_s: float | None) -> bool:
        """Sends the request at the pace of the server. Returns whether all of it was sent."""
        if isinstance(body, bytes):
            return await self._write(asked.head + asked.framed(body) + asked.end(), within_s)
        is_sent = await self._write(asked.head, within_s)
        pieces: AsyncIterator[bytes] = aiter(body)
        try:
            while is_sent and (piece := await anext(pieces, None)) is not None:
                is_sent = await self._write(asked.framed(piece), within_s)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        return is_sent and await self._write(asked.end(), within_s)

    async def _write(self, data: bytes, within_s: float | None) -> bool:
        """Returns whether the socket has accepted the bytes. If the server has closed the connection, or has answered
        without reading, nothing more is sent."""
        if self._is_over or self._open_transport().is_closing():
            return False
        if data:
            self._open_transport().write(data)
        if self._room is not None:
            await until(self._room, within_s, httpx2.WriteTimeout)
        return self._room is None

    def _end(self, error: Exception | None) -> None:
        """Ends the connection. The first reason counts."""
        if not self._is_over:
            self._is_over, self._error = True, error
        if self._response is not None and not self._response.is_over:
            if self._error is None:
                self._response.end()
            else:
                self._response.fail(httpx2.ReadError(str(self._error)))
        _wake(self._arrival)
        _wake(self._room)

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise AssertionError("asyncio hands out a protocol when it is connected")
        return self._transport


async def connection_to(origin: Origin, tls: ssl.SSLContext, within_s: float | None) -> ServerConnection:
    """Opens a connection. Raises `ConnectError` and `ConnectTimeout`. The connection and TLS may take this many seconds
    each."""
    try:
        async with within(within_s, httpx2.ConnectTimeout):
            connected = await connected_socket(origin.host, origin.port)
        async with within(within_s, httpx2.ConnectTimeout):
            return await _over(connected, origin, tls)
    except OSError as error:
        raise httpx2.ConnectError(str(error)) from error


async def _over(connected: socket.socket, origin: Origin, tls: ssl.SSLContext) -> ServerConnection:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: ServerConnection(origin),
            sock=connected,
            ssl=tls if origin.is_private else None,
            server_hostname=origin.host if origin.is_private else None,
        )
    except BaseException:
        connected.close()
        raise
    return connection


@asynccontextmanager
async def within(seconds: float | None, too_late: type[httpx2.TimeoutException]) -> AsyncGenerator[None]:
    """Turns a timeout into httpx2's error."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise too_late(str(error) or f"it took more than {seconds} s") from error


async def until(done: "asyncio.Future[None]", seconds: float | None, too_late: type[httpx2.TimeoutException]) -> None:
    """Waits until the future is done."""
    if seconds is None:
        await done
    else:
        async with within(seconds, too_late):
            await done


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _is_readable(transport: asyncio.Transport) -> bool:
    """Whether the socket has data that the event loop has not seen yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
