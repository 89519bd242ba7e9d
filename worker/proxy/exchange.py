"""One connection of a call to its proxy: a request, what it leads to, and the end of both connections.

A request is read, checked and written anew, never passed on as it came. So what two programs could read differently
(two lengths, a `Host` that is not the target's, a second request behind the first) does not reach the other side.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

import h11

from shared.concurrency import background
from worker.proxy import destination as asked
from worker.proxy.destination import Destination, Refused
from worker.proxy.pace import Pace
from worker.proxy.reach import Reach, Streams

HEAD_BYTES = 16 << 10
HEAD_S = 15.0
"""For the whole head of a request."""
IDLE_S = 300.0
"""Without a byte in either direction. A call seldom lives as long."""
HALF_OPEN_S = 15.0
"""For a server to end its half when the tool has ended its own."""
CLOSE_S = 2.0
BUFFER_BYTES = 64 << 10
LEFT_UNREAD_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)
"""RFC 9110, 7.6.1, and what clients send to proxies beside them."""

Headers = list[tuple[bytes, bytes]]
Told = Callable[[Destination, Refused | None], None]


class Exchange:
    """Serves one accepted connection. `told` hears where it leads, or why it leads nowhere."""

    def __init__(self, streams: Streams, reach: Reach, bytes_pace: Pace, told: Told) -> None:
        self._reader, self._writer = streams
        self._reach = reach
        self._pace = bytes_pace
        self._told = told
        self._client = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._has_answered = False

    async def serve(self) -> None:
        """Until either side has ended. Raises `OSError` and h11's errors when a side breaks off."""
        try:
            request = await self._request()
            if request is None:
                return
            if request.method == b"CONNECT":
                await self._tunnel(request)
            else:
                await self._pass_on(request)
        except Refused as refused:
            if not self._has_answered:
                await self._refuse(refused)

    async def _request(self) -> h11.Request | None:
        try:
            async with asyncio.timeout(HEAD_S):
                event = await self._next(self._client, self._reader)
        except TimeoutError:
            raise Refused(408, "the request did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise Refused(400, f"the request is not HTTP: {error}") from error
        return event if isinstance(event, h11.Request) else None

    @asynccontextmanager
    async def _connected(self, destination: Destination) -> AsyncGenerator[Streams]:
        try:
            streams = await self._reach.connect(destination, buffer_bytes=BUFFER_BYTES)
        except Refused as refused:
            self._told(destination, refused)
            raise
        self._told(destination, None)
        try:
            yield streams
            await close(streams[1])
        finally:
            cut(streams[1])

    async def _tunnel(self, request: h11.Request) -> None:
        if any(name in _FRAMING for name, _ in request.headers):
            raise Refused(400, "CONNECT has no body")
        async with self._connected(asked.of_connect(request.target)) as (reader, writer):
            self._answer(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            writer.write(self._client.trailing_data[0])
            async with asyncio.timeout(IDLE_S) as idle:
                async with background(self._copy(self._reader, writer, idle), name="from a tool"):
                    await self._copy(reader, self._writer, idle)
        await close(self._writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(CHUNK_BYTES):
            idle.reschedule(loop.time() + IDLE_S)
            writer.write(data)
            await writer.drain()
            await self._pace.take(len(data))
        if writer.can_write_eof():
            writer.write_eof()
        idle.reschedule(loop.time() + HALF_OPEN_S)

    async def _pass_on(self, request: h11.Request) -> None:
        destination, path = asked.of_url(request.target)
        async with self._connected(destination) as streams:
            server = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
            headers = [(b"Host", destination.authority.encode()), *_passed_on(request.headers, {b"host"})]
            if any(name == b"transfer-encoding" for name, _ in request.headers):
                headers = [(name, value) for name, value in headers if name != b"content-length"]
                headers.append((b"Transfer-Encoding", b"chunked"))
            headers.append((b"Connection", b"close"))
            asks = h11.Request(method=request.method, target=path, headers=headers)
            streams[1].write(server.send(asks) or b"")
            async with asyncio.timeout(IDLE_S) as idle:
                async with background(self._send_body(server, streams[1], idle), name="from a tool"):
                    await self._take_answer(server, streams[0], idle)
        await self._end()

    async def _send_body(self, server: h11.Connection, writer: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
        while True:
            event = await self._next(self._client, self._reader)
            match event:
                case h11.Data(data=data):
                    idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)
                    writer.write(server.send(h11.Data(data=data)) or b"")
                    await writer.drain()
                    await self._pace.take(len(data))
                case h11.EndOfMessage():
                    writer.write(server.send(h11.EndOfMessage()) or b"")
                    return
                case _:
                    raise ConnectionResetError("the tool broke off")

    async def _take_answer(self, server: h11.Connection, reader: asyncio.StreamReader, idle: asyncio.Timeout) -> None:
        while True:
            try:
                event = await self._next(server, reader)
            except h11.RemoteProtocolError as error:
                raise Refused(502, "the server's answer is not HTTP") from error
            idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)
            match event:
                case h11.Response() | h11.InformationalResponse(status_code=100 | 102 | 103):
                    headers = _passed_on(event.headers, set())
                    if isinstance(event, h11.Response):
                        headers.append((b"Connection", b"close"))
                    self._answer(type(event)(status_code=event.status_code, headers=headers, reason=event.reason))
                case h11.Data(data=data):
                    self._answer(h11.Data(data=data))
                    await self._writer.drain()
                    await self._pace.take(len(data))
                case h11.EndOfMessage():
                    self._answer(h11.EndOfMessage())
                    return
                case _:
                    raise Refused(502, "the server gave no answer")

    def _answer(self, event: h11.Event) -> None:
        self._has_answered = True
        self._writer.write(self._client.send(event) or b"")

    async def _refuse(self, refused: Refused) -> None:
        """The reason is in the status line too, because that is what clients show of a refused CONNECT."""
        body = f"{refused.reason}\n"
        head = (
            f"HTTP/1.1 {refused.status} {refused.reason}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._writer.write((head + body).encode())
        await self._end()

    async def _end(self) -> None:
        """Reads what the tool had still to say, up to a limit: to close before would take the answer from it."""
        self._writer.write_eof()
        left = LEFT_UNREAD_BYTES
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                while left > 0 and (data := await self._reader.read(CHUNK_BYTES)):
                    left -= len(data)
        await close(self._writer)

    @staticmethod
    async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK_BYTES))
        return event


async def close(writer: asyncio.StreamWriter) -> None:
    """Gives what was written a moment to leave."""
    writer.close()
    has_ended = False
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
        has_ended = True
    except ConnectionError:
        has_ended = True  # the other side was quicker
    except TimeoutError:
        pass
    finally:
        if not has_ended:
            _drop(writer)


def cut(writer: asyncio.StreamWriter) -> None:
    """Ends a connection now, unless `close` has done so."""
    if not writer.is_closing():
        _drop(writer)


def _drop(writer: asyncio.StreamWriter) -> None:
    """With what has not left yet: the kernel would go on trying to send it to somebody who does not read."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _passed_on(headers: Iterable[tuple[bytes, bytes]], left_out: set[bytes]) -> Headers:
    """What is meant for the other side of the proxy. Names are in lower case."""
    every = [(bytes(name), bytes(value)) for name, value in headers]
    named = {part.strip().lower() for name, value in every if name == b"connection" for part in value.split(b",")}
    dropped = _OF_ONE_CONNECTION | left_out | (named - _FRAMING)
    return [(name, value) for name, value in every if name not in dropped]
