"""One connection of a call to its proxy: a request, its exchange with the target, and the end of both connections.

The proxy parses, checks and rewrites a request, and never forwards its bytes. So ambiguous input (two lengths, a `Host`
that is not the target's, a second request after the first) does not reach the target.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import NamedTuple

import h11

from shared.concurrency import background
from shared.network.addresses import AddressPolicy, AllowedHosts, plain_host
from shared.network.checked_http import NameLookups

HTTP_PORT = 80
LONGEST_REASON = 300

_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]@/?#\\]*\]|[^\[\]:@/?#\\]+)(:(?P<port>[0-9]{1,5}))?")
_URL = re.compile(r"http://(?P<authority>[^/?#]*)(?P<rest>[/?][^#]*)?", re.IGNORECASE)


class Refused(Exception):
    """The proxy refuses a request, with an HTTP status and a reason for the tool, in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        plain = "".join(character if character.isprintable() else "?" for character in reason)
        self.reason = plain[:LONGEST_REASON].encode("ascii", "replace").decode()


class EgressTarget(NamedTuple):
    """A host in its canonical spelling, and a port. Only a request's target decides them."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of a `Host` header in HTTP without TLS."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTP_PORT else f"{host}:{self.port}"


def of_connect(target: bytes) -> EgressTarget:
    """Parses the target of `CONNECT host:port`. Raises `Refused`."""
    return _destination(target.decode("ascii"), default_port=None)


def of_url(target: bytes) -> tuple[EgressTarget, bytes]:
    """Parses the target of a request such as `GET http://host/path`, and returns the path for the server, too. Raises
    `Refused`."""
    text = target.decode("ascii")
    found = _URL.fullmatch(text)
    if found is None:
        if text.lower().startswith("https://"):
            raise Refused(400, "this proxy takes https only by CONNECT host:port")
        raise Refused(400, "this is a proxy: request http://host/path, or CONNECT host:port")
    rest = found["rest"] or "/"
    path = rest if rest.startswith("/") else f"/{rest}"
    return _destination(found["authority"], default_port=HTTP_PORT), path.encode()


def _destination(authority: str, default_port: int | None) -> EgressTarget:
    found = _AUTHORITY.fullmatch(authority)
    port = default_port if found is None or found["port"] is None else int(found["port"])
    if found is None or port is None or not 0 < port < 65536:
        raise Refused(400, "the destination is not host:port")
    try:
        return EgressTarget(plain_host(found["host"]), port)
    except ValueError as error:
        raise Refused(403, f"the destination is refused: {error}") from error


class Pace:
    """Limits a rate: `per_s` units a second, and up to `burst` at once after a pause. It bounds a tool's share of the
    worker's time."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._rest_s = burst / per_s
        self._due = 0.0

    def delay(self, amount: float, now: float) -> float:
        """Takes `amount`, and returns the seconds to wait before going on."""
        self._due = max(self._due, now - self._rest_s) + amount / self._per_s
        return max(0.0, self._due - now)

    async def take(self, amount: float) -> None:
        """Takes `amount`, and waits as long as the rate requires."""
        delay = self.delay(amount, asyncio.get_running_loop().time())
        if delay:
            await asyncio.sleep(delay)


SETTING = "HOLDFAST_TOOL_NETWORK"
RESOLVE_S = 10.0
CONNECT_S = 10.0
"""Seconds for all addresses of a host together."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host. Raises `OSError` if it has none."""


class EgressDialer:
    """Connects tools to hosts that the operator allows, by a list of names and the usual policy of addresses.

    It resolves a name once and connects to the addresses that it checked, so a name that changes its address gains
    no access.
    """

    def __init__(self, allowed: AllowedHosts, policy: AddressPolicy, resolve: Resolve | None = None) -> None:
        """`resolve` replaces the system's resolver."""
        self._allowed = allowed
        self._policy = policy
        self._resolve = resolve or NameLookups().addresses

    async def connect(self, destination: EgressTarget, *, buffer_bytes: int) -> Streams:
        """Checks, resolves and connects. Raises `Refused`."""
        host, port = destination
        if not self._allowed.allows(host, port):
            raise Refused(403, f"{host} port {port} is not among the hosts that the operator allows ({SETTING})")
        addresses = await self._addresses(destination)
        if not all(map(self._policy.allows, addresses)):
            # The address would reveal something about the operator's network to the tool.
            raise Refused(
                403,
                f"{host} is not at a public address; an operator can allow its network in HOLDFAST_REACHABLE_NETWORKS",
            )
        try:
            async with asyncio.timeout(CONNECT_S):
                return await _connected(addresses, port, buffer_bytes)
        except OSError as error:
            raise Refused(502, f"{host} cannot be reached on port {port}") from error

    async def _addresses(self, destination: EgressTarget) -> Sequence[str]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                addresses = await self._resolve(*destination)
        except (OSError, UnicodeError):  # also of a timeout
            addresses = ()
        if not addresses:
            raise Refused(502, f"the name {destination.host} has no address, or its lookup timed out")
        return addresses


async def _connected(addresses: Sequence[str], port: int, buffer_bytes: int) -> Streams:
    """Connects to the first address that answers. Raises `OSError`."""
    failure = OSError("no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port, limit=buffer_bytes)
        except OSError as error:
            failure = error
    raise failure


HEAD_BYTES = 16 << 10
HEAD_S = 15.0
"""Seconds for the whole head of a request."""
IDLE_S = 300.0
"""Seconds without a byte in either direction. Few calls last so long."""
HALF_OPEN_S = 15.0
"""Seconds for one side to end its half after the other has ended its own."""
CLOSE_S = 2.0
BUFFER_BYTES = 64 << 10
LEFT_UNREAD_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_OF_ONE_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)
"""The hop-by-hop headers of RFC 9110, 7.6.1, and those that clients send only to proxies."""

Headers = list[tuple[bytes, bytes]]
OnTarget = Callable[[EgressTarget, Refused | None], None]

KEY_HEADER = b"Idempotency-Key"
_KEYED = frozenset({b"POST", b"PATCH"})
"""The methods that are not idempotent by themselves, as in the IETF's draft of this header."""


class RequestKeys:
    """The idempotency keys of the requests of one call. They are the same if the call is made again, and different for
    each request, because a service treats two requests with one key as one."""

    def __init__(self, key: str) -> None:
        """`key`: the call's key. Empty: its requests get no keys."""
        self._key = key
        self._made: Counter[bytes] = Counter()

    def added(self, request: h11.Request) -> Headers:
        """Returns the header for a request, unless it needs none or the tool has sent its own."""
        has_own = any(name == KEY_HEADER.lower() for name, _ in request.headers)
        if not self._key or request.method not in _KEYED or has_own:
            return []
        asked = bytes(request.method) + b" " + bytes(request.target)
        self._made[asked] += 1
        number = self._made[asked]
        suffix = sha256(asked).hexdigest()[:8] + (f"-{number}" if number > 1 else "")
        return [(KEY_HEADER, f"{self._key}-{suffix}".encode())]


class Exchange:
    """Serves one accepted connection. It calls `on_target` with the target, and with the refusal if there is one."""

    def __init__(
        self, streams: Streams, reach: EgressDialer, bytes_pace: Pace, on_target: OnTarget, keys: RequestKeys
    ) -> None:
        self._reader, self._writer = streams
        self._reach = reach
        self._pace = bytes_pace
        self._on_target = on_target
        self._keys = keys
        self._client = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._has_answered = False

    async def serve(self) -> None:
        """Serves until either side has ended. Raises `OSError` and h11's errors if a side aborts."""
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
            raise Refused(408, "the request's head did not arrive in time") from None
        except h11.RemoteProtocolError as error:
            raise Refused(400, f"the request is not HTTP: {error}") from error
        return event if isinstance(event, h11.Request) else None

    @asynccontextmanager
    async def _connected(self, destination: EgressTarget) -> AsyncGenerator[Streams]:
        try:
            streams = await self._reach.connect(destination, buffer_bytes=BUFFER_BYTES)
        except Refused as refused:
            self._on_target(destination, refused)
            raise
        self._on_target(destination, None)
        try:
            yield streams
            await close(streams[1])
        finally:
            cut(streams[1])

    async def _tunnel(self, request: h11.Request) -> None:
        if any(name in _FRAMING for name, _ in request.headers):
            raise Refused(400, "CONNECT has no body")
        async with self._connected(of_connect(request.target)) as (reader, writer):
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
        destination, path = of_url(request.target)
        async with self._connected(destination) as streams:
            server = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
            headers = [(b"Host", destination.authority.encode()), *_passed_on(request.headers, {b"host"})]
            if any(name == b"transfer-encoding" for name, _ in request.headers):
                headers = [(name, value) for name, value in headers if name != b"content-length"]
                headers.append((b"Transfer-Encoding", b"chunked"))
            headers += [*self._keys.added(request), (b"Connection", b"close")]
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
                    raise ConnectionResetError("the tool aborted its request")

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
                    raise Refused(502, "the server closed the connection without an answer")

    def _answer(self, event: h11.Event) -> None:
        self._has_answered = True
        self._writer.write(self._client.send(event) or b"")

    async def _refuse(self, refused: Refused) -> None:
        """Sends the refusal. Its reason is also in the status line, because clients show only that for CONNECT."""
        body = f"{refused.reason}\n"
        head = (
            f"HTTP/1.1 {refused.status} {refused.reason}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._writer.write((head + body).encode())
        await self._end()

    async def _end(self) -> None:
        """Ends the connection. It first reads the rest of the tool's request, up to a limit, because closing earlier
        would reset the connection, and the tool would lose the answer."""
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
    """Closes the connection after the written data was sent, or after `CLOSE_S`."""
    writer.close()
    has_ended = False
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
        has_ended = True
    except ConnectionError:
        has_ended = True  # the other side has closed it already
    except TimeoutError:
        pass
    finally:
        if not has_ended:
            _drop(writer)


def cut(writer: asyncio.StreamWriter) -> None:
    """Aborts the connection unless `close` has closed it."""
    if not writer.is_closing():
        _drop(writer)


def _drop(writer: asyncio.StreamWriter) -> None:
    """Aborts the connection and discards unsent data, which the kernel would otherwise keep for a peer that does not
    read."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _passed_on(headers: Iterable[tuple[bytes, bytes]], left_out: set[bytes]) -> Headers:
    """Returns the headers for the other side of the proxy. Names are in lower case."""
    every = [(bytes(name), bytes(value)) for name, value in headers]
    named = {part.strip().lower() for name, value in every if name == b"connection" for part in value.split(b",")}
    dropped = _OF_ONE_CONNECTION | left_out | (named - _FRAMING)
    return [(name, value) for name, value in every if name not in dropped]
