"""The one HTTP client of the process, and the streams that each model call has open on it.

A client costs 20 ms of CPU (its TLS context) and its pool is what makes the second call fast, so all wires share one.
Some SDKs leave a response open when their iterator is abandoned; here every stream that a call opened is closed when
the call ends, however it ends, so that a provider stops generating the moment nobody listens.

A call is known by a header that it puts on its requests and that never leaves the process.
"""

import asyncio
import itertools
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx2
import msgspec

from shared.network.checked_http import CallersHttp, NetworkRules
from worker.models.provider import COUNTS_WITHIN_S
from worker.models.server_transport import PoolLimits, ServerTransport
from worker.models.sse import BYTE_ORDER_MARK

CALL_HEADER = "x-holdfast-call"

_TIMEOUT = httpx2.Timeout(None, connect=10.0, pool=30.0)
"""`SilenceLimit` stands around all that is read and sent; a timer for each read would be one for each token."""


class OpenCall:
    """What one model call has open, and what went over it."""

    def __init__(self, number: str, on_bytes: Callable[[], None]) -> None:
        self.header = {CALL_HEADER: number}
        self.garbled = False
        """The stream held an event that is not JSON. One SDK skips such events without a word."""
        self.has_ended = False
        """The stream has said why the answer ends."""
        self.on_bytes = on_bytes
        self._streams: list[httpx2.AsyncByteStream] = []

    def watch(self, response: httpx2.Response) -> None:
        """Follow this response until the call ends."""
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _WatchedStream(response.stream, self, _is_plain_event_stream(response))
            self._streams.append(response.stream)

    async def close(self) -> None:
        async with AsyncExitStack() as closing:
            for stream in self._streams:
                closing.push_async_callback(_close, stream)


class Connections:
    """Owner of the shared client, and of that for callers' addresses. Closed once, by whoever made it."""

    def __init__(self, network: NetworkRules) -> None:
        self.images = CallersHttp(network)
        """For images that a message names by their address, which is a caller's."""
        self._numbers = itertools.count(1)
        self._calls: dict[str, OpenCall] = {}
        self.client = httpx2.AsyncClient(
            timeout=_TIMEOUT,
            transport=_WatchingTransport(self._calls, network.tls()),
            # Events come one by one; compressing each is slower, and a compressed stream could not be checked.
            headers={"accept-encoding": "identity"},
        )

    @asynccontextmanager
    async def call(self, on_bytes: Callable[[], None]) -> AsyncGenerator[OpenCall]:
        """A call, whose streams are closed at the end of the block. `on_bytes` hears of everything that arrives."""
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
    """Takes the call's header off a request and hands the response to the call."""

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
    """A response's bytes, unchanged, with the call told of them."""

    def __init__(self, stream: httpx2.AsyncByteStream, call: OpenCall, has_events: bool) -> None:
        self._stream = stream
        self._call = call
        self._has_events = has_events
        self._rest = b""
        self._begins = has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        while (chunk := await self._next_of(chunks)) is not None:
            self._call.on_bytes()
            if self._begins:
                # The SDKs would lose the first event.
                self._begins = False
                chunk = chunk.removeprefix(BYTE_ORDER_MARK)
            if self._has_events and not self._call.garbled:
                self._check(chunk)
            yield chunk

    async def _next_of(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """The next chunk; None at the end. An answer that is whole is not lost with its connection."""
        if not self._call.has_ended:
            return await anext(chunks, None)
        with suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError, OSError):
            async with asyncio.timeout(COUNTS_WITHIN_S):
                return await anext(chunks, None)
        return None

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _check(self, chunk: bytes) -> None:
        """Look for `data:` lines that are not JSON, and for the one that ends the answer."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data and data != b"[DONE]" and not _is_json(data):
                self._call.garbled = True
                return
            self._call.has_ended = self._call.has_ended or _ends_answer(data)


class _Candidate(msgspec.Struct, rename="camel"):
    finish_reason: str | None = None


class _End(msgspec.Struct):
    """What the wires that are asked over SDKs say at the end of an answer."""

    type: str | None = None
    """The Responses wire's."""
    candidates: list[_Candidate] | None = None
    """Gemini's."""


def _is_plain_event_stream(response: httpx2.Response) -> bool:
    kind = str(response.headers.get("content-type", ""))
    return kind.startswith("text/event-stream") and "content-encoding" not in response.headers


def _ends_answer(data: bytes) -> bool:
    """Whether this event says why the answer ends. Most events are not read for it."""
    if b"finishReason" not in data and b"response.completed" not in data and b"response.incomplete" not in data:
        return False
    try:
        event = msgspec.json.decode(data, type=_End)
    except (msgspec.DecodeError, RecursionError):
        return False
    return event.type in ("response.completed", "response.incomplete") or any(
        candidate.finish_reason for candidate in event.candidates or ()
    )


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


async def _close(stream: httpx2.AsyncByteStream) -> None:
    with suppress(httpx2.HTTPError, OSError):
        await stream.aclose()
