"""One request and its answer: a connection in the form that the application sees (ASGI), and the answer as bytes.

Ten thousand waiting readers have one exchange each, so it keeps as little as possible.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import structlog
from starlette.types import ASGIApp, Message, Scope

from api.connection_rules import WITHOUT_CHUNKS
from api.event_stream import CONNECTION, ENDS_WITH_CLIENT, KEEP_ALIVE_BYTES, OpenStream
from api.request_log import ASKED_METHOD
from shared.concurrency import LeanEvent

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Headers = list[tuple[bytes, bytes]]

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
"""Interim response that clients skip (RFC 9110, 15.2). The server may send it before an answer."""

CONTINUED = b"100-continue"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

WITHOUT_BODY = (204, 304)
"""Statuses whose answers need neither a length nor chunks (RFC 9112, 6.3)."""

MOST_UNREAD_BYTES = 64 * 1024
"""The most bytes of a body that wait for the application. Then the client has to wait."""

_NO_NAME = re.compile(rb"[\x00-\x20\x7f()<>@,;:\\\"\[\]={}]")
"""Characters that would end the name of a header, or make its line another header."""

_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

_FORGOTTEN: Scope = {}

_BROKEN_DOWN = b"Internal Server Error"
_BROKEN_DOWN_HEADERS: Headers = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_BROKEN_DOWN)),
    (b"connection", b"close"),
]


class AnswerFault(Exception):
    """The application sent an invalid answer."""


class Carrier(Protocol):
    """An exchange's connection, as the exchange uses it."""

    transport: asyncio.Transport
    is_write_paused: bool
    server_state: Any
    """The state of uvicorn's server, with the headers that the server puts before those of each answer."""

    async def drain(self) -> None:
        """Waits until the client has read enough of the sent bytes."""

    def resume_reading(self) -> None:
        """Reads on from the client."""

    def answered(self, exchange: "Exchange") -> None:
        """The whole answer was sent."""

    def forget_request(self, exchange: "Exchange") -> None:
        """Releases the data of a request whose answer takes long."""

    def break_off_answer(self, exchange: "Exchange") -> None:
        """Closes the connection without the answer's end, so that the client sees that the answer is incomplete."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request, from its complete head to the end of its answer. For the streams it is their `Connection`."""

    carrier: Carrier
    _scope: Scope
    _: KW_ONLY
    keep_alive: bool
    """The connection stays open after the answer."""
    expectation: bytes
    """The value of the request's `Expect`. Its client sends the body after the application asks for it, or never."""
    has_more_body: bool = True
    """The client has not sent its whole body."""
    has_begun: bool = False
    """The answer's head was sent."""
    is_whole: bool = False
    """The whole answer was sent."""
    is_gone: bool = False
    """The client has left. Further output of the application is discarded."""
    _has_news: LeanEvent = field(default_factory=LeanEvent)
    _body: bytearray | None = None
    _on_left: Callable[[], None] | None = None
    _rest: OpenStream | None = None
    _filler: bytes | None = None
    _is_old: bool = False
    _is_for_head: bool = False
    _is_chunked: bool = False
    _ends_with_connection: bool = False
    _bytes_due: int = 0

    def __post_init__(self) -> None:
        self._is_old = self._scope["http_version"] in WITHOUT_CHUNKS
        self._is_for_head = self._scope["method"] == "HEAD"
        self._scope["state"][CONNECTION] = self
        if self._is_for_head:
            self._scope["method"] = "GET"
            self._scope["state"][ASKED_METHOD] = "HEAD"

    async def run(self, app: ASGIApp) -> None:
        """Has the application answer, and sends the rest of a stream that it handed over."""
        try:
            await app(self._scope, self.receive, self.send)
            rest, self._rest = self._rest, None
            if rest is not None:
                self._forget_request()
                await rest()
        except BaseException as error:
            log.exception("application_failed")
            await self._break_down()
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            if not self.is_left:
                log.error("answer_not_whole", has_begun=self.has_begun)
                await self._break_down()
        finally:
            self._scope = _FORGOTTEN  # it refers to this object

    def _forget_request(self) -> None:
        self._filler = self._scope["state"].get(KEEP_ALIVE_BYTES)
        self._scope.clear()
        self._scope = _FORGOTTEN
        self.carrier.forget_request(self)

    async def _break_down(self) -> None:
        """Answers with an internal error. If the answer has begun, closes the connection without the answer's end."""
        if self.has_begun:
            self.carrier.transport.close()
            return
        await self.send({"type": "http.response.start", "status": 500, "headers": _BROKEN_DOWN_HEADERS})
        await self.send({"type": "http.response.body", "body": _BROKEN_DOWN})

    def add_body(self, piece: bytes) -> bool:
        """Keeps a piece of the request's body for the application. Returns whether the client has to wait, because too
        many bytes wait."""
        if self._body is None:
            self._body = bytearray(piece)
        else:
            self._body += piece
        self._has_news.set()
        return len(self._body) > MOST_UNREAD_BYTES

    def end_body(self) -> None:
        """The client has sent its whole body."""
        self.has_more_body = False
        self._has_news.set()

    def client_leaves(self) -> None:
        """Tells the application that the client has disconnected. Its further output is discarded."""
        self.is_gone = True
        self._has_news.set()
        if self._on_left is not None:
            self._on_left()

    async def receive(self) -> Message:
        """ASGI's: waits for the next part of the request, or for its client's departure."""
        if self.expectation == CONTINUED and not self.carrier.transport.is_closing():
            self.carrier.transport.write(CONTINUE)
        self.expectation = b""
        if not self.is_left:
            self.carrier.resume_reading()
            await self._has_news.wait()
            self._has_news.clear()
        if self.is_left:
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": bytes(body or b""), "more_body": self.has_more_body}

    async def send(self, message: Message) -> None:
        """ASGI's: sends the answer's head, and then its body. Waits while the client does not read."""
        if self.carrier.is_write_paused and not self.is_gone:
            await self.carrier.drain()
        if self.is_gone or (self.is_whole and self._is_for_head):
            return
        kind = message["type"]
        if self.has_begun and not self.is_whole and kind == "http.response.body":
            self._send_body(message.get("body", b""), message.get("more_body", False))
        elif not self.has_begun and kind == "http.response.start":
            headers = [*self.carrier.server_state.default_headers, *message.get("headers", ())]
            self._send_head(message["status"], headers)
        else:
            raise AnswerFault(f"the application sent {kind} out of its turn")

    def _send_head(self, status: int, headers: Headers) -> None:
        # A client that was not asked for its body may send the body now, or omit it (RFC 9110, 10.1.1). If it is
        # omitted, a server that reads on would take the next request for the body.
        self.has_begun, self.keep_alive = True, self.keep_alive and not self.expectation
        _check(headers)
        parts, is_framed, says_close = [_status_line(status)], False, False
        for given_name, value in headers:
            name = given_name.lower()
            if name == b"content-length" and not is_framed:
                self._bytes_due, is_framed = int(value), True
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self._bytes_due, self._is_chunked, is_framed = 0, True, True
            elif name == b"connection" and b"close" in [option.strip() for option in value.lower().split(b",")]:
                self.keep_alive, says_close = False, True
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive and not says_close:
            parts.append(b"connection: close\r\n")
        if not is_framed:
            parts.append(self._choose_framing(status))
        parts.append(b"\r\n")
        self.carrier.transport.write(b"".join(parts))
        if self._is_for_head:
            self._finish()

    def _choose_framing(self, status: int) -> bytes:
        """Chooses how the client sees the end of an answer without a length. Returns the header for that."""
        if self._is_old:
            self._ends_with_connection = True
        elif not self._is_for_head and status not in WITHOUT_BODY:
            self._is_chunked = True
            return b"transfer-encoding: chunked\r\n"
        return b""

    def _send_body(self, body: bytes, has_more: bool) -> None:
        said = body
        if self._is_chunked:
            said = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not has_more:
                said += LAST_CHUNK
        elif not self._ends_with_connection:
            self._bytes_due -= len(body)
            if self._bytes_due < 0:
                raise AnswerFault("the answer is longer than its content-length")
        if said:
            self.carrier.transport.write(said)
        if has_more:
            return
        if self._bytes_due:
            raise AnswerFault("the answer is shorter than its content-length")
        self._finish()

    def _finish(self) -> None:
        self.is_whole = True
        self._has_news.set()
        if not self.keep_alive:
            self.carrier.transport.close()
        self.carrier.answered(self)

    @property
    def is_streaming(self) -> bool:
        """An answer without a length has begun."""
        return self._is_chunked or self._ends_with_connection

    def filler(self) -> bytes:
        """Filler bytes that may be sent to the client now; empty if the answer allows none."""
        state: dict[str, Any] = self._scope.get("state", {})
        if ENDS_WITH_CLIENT in state and not self.has_begun and not self._is_old:
            return INTERIM
        filler = self._filler or state.get(KEEP_ALIVE_BYTES)
        if filler is None or not self.is_streaming or self.carrier.is_write_paused:
            return b""
        return b"%x\r\n%b\r\n" % (len(filler), filler) if self._is_chunked else filler

    @property
    def is_left(self) -> bool:
        """See `Connection`."""
        return self.is_gone or self.is_whole

    def watch(self, on_left: Callable[[], None] | None) -> None:
        """See `Connection`."""
        self._on_left = on_left

    def hand_over(self, rest: OpenStream) -> None:
        """See `Connection`."""
        self._rest = rest

    def break_off(self) -> None:
        """See `Connection`."""
        self.carrier.break_off_answer(self)


@lru_cache
def _status_line(status: int) -> bytes:
    if not 100 <= status < 600:
        raise AnswerFault(f"{status} is no status")
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


def _check(headers: Headers) -> None:
    """Refuses headers that a client would read as several lines."""
    if _NO_NAME.search(b"".join([name for name, _ in headers])):
        raise AnswerFault("the name of a header has characters that no name may have")
    if _NO_VALUE.search(b"".join([value for _, value in headers])):
        raise AnswerFault("the value of a header has control characters")
