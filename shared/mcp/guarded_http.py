"""HTTP for MCP connections: limits the bytes of answers, sends no message twice, and confines a failure to its request.

The protocol's package closes a whole connection after an error of one request. So the transport reports a failed
request to the package as an error of the server, with one of the codes below. Only the caller of that request gets it.
"""

import json
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import NamedTuple

import httpx2
import msgspec

from shared.network.addresses import ForbiddenAddress
from shared.network.checked_http import Unreachable

NOT_SENT = -39_001
"""The request did not reach the server."""
REFUSED = -39_002
"""The server has refused the request with an HTTP status, and has not acted."""
SESSION_GONE = -39_003
"""The server no longer knows the session, and has not acted."""
LOST = -39_004
"""The request may have reached the server, and there is no readable answer."""

FORBIDDEN = -39_005
"""The network rules forbid the address, so the request was not sent."""

UNAUTHORIZED = -39_006
"""The server does not accept the credentials, and has not acted."""

OWN_ERRORS = frozenset({NOT_SENT, REFUSED, SESSION_GONE, LOST, FORBIDDEN, UNAUTHORIZED})

ANSWER_BYTES = 4_000_000
"""The limit for one answer, with all events of its stream."""
CHANNEL_BYTES = 100_000_000
"""The limit for an older server's only stream of answers, from one request to the next."""
ERROR_BYTES = 64_000
"""The limit for the body of an error status."""
STEP_S = 10.0
"""Seconds to connect, to send, and to answer a message that needs no result."""
CHANNEL_ENDED = "it has ended the stream of its answers"
MOST_RESUMPTIONS = 100
"""The limit for resumptions of the streams of one connection."""

_SESSION = "mcp-session-id"
_RESUMES = "last-event-id"
_EVENTS = "text/event-stream"
_NOT_DONE = frozenset(range(400, 500)) - {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT}
"""Statuses that mean the server has not acted."""
_WORD_FOR: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "it does not accept the credentials: sign in at it, or correct its token or headers",
    HTTPStatus.FORBIDDEN: "the credentials do not allow it: correct the server's token or headers",
    HTTPStatus.NOT_FOUND: "there is nothing at its URL",
    HTTPStatus.METHOD_NOT_ALLOWED: "it is no MCP endpoint, or one of another transport",
    HTTPStatus.TOO_MANY_REQUESTS: "it is asked too often",
}


Broken = Callable[[str, int], None]
"""Called when a connection can no longer be used, with the reason and one of the codes above."""


class _Message(msgspec.Struct):
    """The relevant fields of a message in either direction."""

    id: int | str | None = None
    method: str = ""


class _Error(msgspec.Struct):
    error: msgspec.Raw


class _Refusal(NamedTuple):
    code: int
    text: str


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one connection through `inner`, and closes it.

    `has_event_channel`: the server answers in one long stream beside the requests, as servers of the first version of
    the protocol do. Then `broken` is called when a request or the stream fails.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, broken: Broken, *, has_event_channel: bool) -> None:
        self._inner = inner
        self._broken = broken
        self._has_event_channel = has_event_channel
        self._is_settled = False
        self._moved: dict[str, httpx2.URL] = {}
        self._resumptions = 0
        self._requests = 0

    def settle(self) -> None:
        """Ends the setup of the connection. From now on the client does not repeat a redirected message."""
        self._is_settled = True

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and not self._may_listen(request):
            return httpx2.Response(HTTPStatus.METHOD_NOT_ALLOWED, request=request)
        message = _message_in(request)
        self._requests += 1
        try:
            response = await self._inner.handle_async_request(self._limited(request, message))
            guarded = await self._guarded(request, message, response)
        except (ForbiddenAddress, Unreachable, httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
            guarded = _Refusal(_code_of(error), _reason_of(error))
            if request.method == "GET" and not self._is_settled:
                raise
        if isinstance(guarded, httpx2.Response):
            return guarded
        if self._has_event_channel:
            self._broken(guarded.text, UNAUTHORIZED if guarded.code == UNAUTHORIZED else NOT_SENT)
        return _as_response(guarded)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _may_listen(self, request: httpx2.Request) -> bool:
        """Whether a GET opens the only stream of answers, or resumes the stream of one answer. The client needs no
        other stream, because it reads lists of tools again and ignores unsolicited messages."""
        if self._has_event_channel:
            return True
        self._resumptions += 1
        return _RESUMES in request.headers and self._resumptions <= MOST_RESUMPTIONS

    def _limited(self, request: httpx2.Request, message: _Message | None) -> httpx2.Request:
        has_time = not self._has_event_channel and message is not None and message.id is not None and message.method
        is_listening = request.method == "GET"
        # The caller of a request limits its time, and a stream of answers lasts as long as the connection.
        read_s = None if has_time or is_listening else STEP_S
        timeout = httpx2.Timeout(STEP_S, read=read_s).as_dict()
        return httpx2.Request(
            request.method,
            self._moved.get(str(request.url), request.url),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "timeout": timeout},
        )

    async def _guarded(
        self, request: httpx2.Request, message: _Message | None, response: httpx2.Response
    ) -> httpx2.Response | _Refusal:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            await response.aclose()
            return _Refusal(LOST, "its answer is compressed, which was not asked for")
        if response.has_redirect_location and request.method == "POST":
            return await self._redirected(request, response)
        if self._has_event_channel and response.status_code >= HTTPStatus.BAD_REQUEST:
            await response.aclose()
            return _status_refusal(request, response.status_code)
        # A first-version server answers the message on the single stream. This immediate response is not that answer.
        if self._has_event_channel or message is None or message.id is None:
            return self._counted(request, response)
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return await _refused(request, response)
        if str(response.headers.get("content-type", "")).lower().startswith("application/json"):
            return await _answer(message, response)
        return self._counted(request, response)

    async def _redirected(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response | _Refusal:
        """Returns a redirect that the package may follow: within the server, and only during the setup. Later messages
        go directly to the new URL."""
        try:
            location = request.url.join(response.headers["location"])
        except (httpx2.InvalidURL, UnicodeError):
            location = request.url
        here, there = (request.url.scheme, request.url.port), (location.scheme, location.port)
        is_within = request.url.host == location.host and (here == there or (here, there) == _UPGRADE)
        if is_within and not self._is_settled and response.status_code in (307, 308):
            self._moved[str(request.url)] = location
            return self._counted(request, response)
        await response.aclose()
        place = json.dumps(str(location.copy_with(userinfo=b"", query=None, fragment=None))[:200])
        return _Refusal(REFUSED, f"it redirects to {place}: give that URL if it is right")

    def _counted(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        is_channel = self._has_event_channel and request.method == "GET"
        broken = self._broken if self._has_event_channel else None
        most = CHANNEL_BYTES if is_channel else ANSWER_BYTES
        response.stream = _CountedStream(response, most, broken, (lambda: self._requests) if is_channel else None)
        return response


_UPGRADE = (("http", None), ("https", None))


class _CountedStream(httpx2.AsyncByteStream):
    """Limits the content of an answer. The package passes the text of an `SSEError` on to the caller.

    `requests`: for the single stream of answers, returns how many requests were sent so far. Each request resets the
    count.
    """

    def __init__(
        self, response: httpx2.Response, most_bytes: int, broken: Broken | None, requests: Callable[[], int] | None
    ) -> None:
        self._stream = response.stream
        self._most_bytes = most_bytes
        self._broken = broken
        self._is_channel = requests is not None
        self._requests = requests or (lambda: 0)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        count, requests = 0, self._requests()
        if not isinstance(self._stream, httpx2.AsyncByteStream):
            return
        try:
            async for chunk in self._stream:
                count = len(chunk) + (count if requests == self._requests() else 0)
                requests = self._requests()
                if count > self._most_bytes:
                    raise httpx2.SSEError(f"its answer has more than {self._most_bytes} bytes")
                yield chunk
        except (httpx2.HTTPError, OSError) as error:
            if self._broken is not None:
                self._broken(_reason_of(error), NOT_SENT)
            raise
        # No further answer can come. Without this the package would notice only when the next request fails.
        if self._is_channel and self._broken is not None:
            self._broken(CHANNEL_ENDED, NOT_SENT)

    async def aclose(self) -> None:
        if isinstance(self._stream, httpx2.AsyncByteStream):
            await self._stream.aclose()


async def _answer(message: _Message, response: httpx2.Response) -> httpx2.Response | _Refusal:
    """Returns a JSON answer with its content if it belongs to this message."""
    content = await _read(response, ANSWER_BYTES)
    if content is None:
        return _Refusal(LOST, f"its answer has more than {ANSWER_BYTES} bytes")
    try:
        answered = msgspec.json.decode(content, type=_Message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Refusal(LOST, "its answer is no JSON-RPC")
    if answered.id is not None and str(answered.id) != str(message.id):
        return _Refusal(LOST, "its answer has the id of another request")
    return _with_content(response, content)


async def _refused(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response | _Refusal:
    """Returns the server's JSON-RPC error, or else an error for its status."""
    content = await _read(response, ERROR_BYTES) or b""
    status = response.status_code
    # A server reports a lost session by 404, or by 400 and a sentence.
    if status == HTTPStatus.UNAUTHORIZED or (_SESSION in request.headers and status == HTTPStatus.NOT_FOUND):
        return _status_refusal(request, status)
    if _SESSION in request.headers and status == HTTPStatus.BAD_REQUEST and b"session" in content.lower():
        return _status_refusal(request, HTTPStatus.NOT_FOUND)
    try:
        msgspec.json.decode(content, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _status_refusal(request, status)
    return _with_content(response, content)


def _status_refusal(request: httpx2.Request, status: int) -> _Refusal:
    if status == HTTPStatus.NOT_FOUND and _SESSION in request.headers:
        return _Refusal(SESSION_GONE, "it has forgotten this connection's session")
    said = _WORD_FOR.get(status, "")
    if status == HTTPStatus.UNAUTHORIZED:
        return _Refusal(UNAUTHORIZED, f"it answers with HTTP {status}: {said}")
    return _Refusal(REFUSED if status in _NOT_DONE else LOST, f"it answers with HTTP {status}{said and f': {said}'}")


async def _read(response: httpx2.Response, most: int) -> bytes | None:
    """The content; None if it has more than `most` bytes."""
    content = bytearray()
    try:
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > most:
                return None
    finally:
        await response.aclose()
    return bytes(content)


def _with_content(response: httpx2.Response, content: bytes) -> httpx2.Response:
    headers = {
        name: value
        for name, value in response.headers.items()
        if name.lower() not in ("content-length", "transfer-encoding", "content-encoding")
    }
    return httpx2.Response(response.status_code, headers=headers, content=content)


def _as_response(refusal: _Refusal) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": refusal.code, "message": refusal.text}}
    return httpx2.Response(HTTPStatus.BAD_GATEWAY, json=error)


def _message_in(request: httpx2.Request) -> _Message | None:
    if request.method != "POST":
        return None
    try:
        return msgspec.json.decode(request.content, type=_Message)
    except (msgspec.MsgspecError, httpx2.RequestNotRead):
        return None


_BEFORE_SENDING = (
    *(Unreachable, httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout),
    *(OSError, UnicodeError),
)


def _code_of(error: Exception) -> int:
    if isinstance(error, ForbiddenAddress | httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return FORBIDDEN
    return NOT_SENT if isinstance(error, _BEFORE_SENDING) else LOST


def _reason_of(error: Exception) -> str:
    if isinstance(error, ForbiddenAddress | Unreachable | httpx2.SSEError):
        return str(error)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | OSError):
        return "it cannot be reached"
    if isinstance(error, httpx2.TimeoutException):
        return f"it does not answer within {STEP_S:.0f} s"
    return f"the connection to it broke ({type(error).__name__})"
