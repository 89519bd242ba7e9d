"""One connection to the API: uvicorn's protocol, with limits on what a client may cost before a request is there,
between requests and while it is answered. It knows nothing of what is asked.

An application sees a request when its head is complete, and can end only what it sees. A connection that says nothing,
a head that never ends and a body that nobody wants are the server's to end.
"""

import asyncio
import functools
import json
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import structlog
from httptools import HttpParserError, HttpParserUpgrade
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.connection_rules import ConnectionLimit
from api.errors import plain_body
from api.event_stream import BREAK_OFF, ENDS_WITH_CLIENT, KEEP_ALIVE_BYTES
from shared.domain.errors import ErrorCode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""The request line and all headers."""

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 100

MAX_UNREAD_BYTES = 1_000_000
"""So much of a body is thrown away after its answer, so that a client which is still sending can read the answer."""

MAX_UNANSWERED = 16
"""Requests of one connection that wait for answers: the one that is being answered, and those that its client has sent
behind it without waiting (HTTP pipelining). What more it sends is not read, and the connection ends with the last of
these answers, so that the client knows which requests it has to send again (RFC 9112, 9.3.2)."""

MAX_AHEAD_BYTES = 64 * 1024
"""So much is read behind a request that is being answered; then the client has to wait."""

TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""RFC 5482. None where the system has no such limit, as macOS."""


class HeadRefusal(NamedTuple):
    """What is said of a connection before an application knows of a request."""

    status: str
    code: ErrorCode
    detail: str
    headers: str = ""


HEAD_TOO_LONG = HeadRefusal(
    "431 Request Header Fields Too Large", ErrorCode.HEAD_TOO_LARGE, "The head of the request is too long"
)
URL_TOO_LONG = HeadRefusal("414 URI Too Long", ErrorCode.URL_TOO_LONG, "The URL is too long")
NO_HTTP = HeadRefusal("400 Bad Request", ErrorCode.INVALID_HTTP, "Invalid HTTP request received.")
TOO_MANY = HeadRefusal(
    "503 Service Unavailable",
    ErrorCode.TOO_MANY_CONNECTIONS,
    "This process has as many connections as HOLDFAST_MAX_CONNECTIONS allows",
    "retry-after: 2\r\n",
)

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
"""What may be sent before an answer and means nothing (RFC 9110, 15.2): clients pass over it."""

PROBES, PROBE_S = 3, 0.3
"""How often, and how many seconds apart, a client that has closed its side is sent something that means nothing. One
that is gone refuses the first, and the kernel then refuses those behind it."""

TOO_MANY_AT_ONCE = HeadRefusal(
    "503 Service Unavailable",
    ErrorCode.TOO_MANY_CONNECTIONS,
    f"One connection has {MAX_UNANSWERED} requests at most that wait for answers",
)
"""Nobody is sent this: the connection ends with the last of the answers."""

EXCESS_S = 1.0
"""How long a connection over the limit stays for its request, which is answered with a 503."""

SLOWEST_READER = 1000
"""Bytes per second. Who takes less of an answer, while it waits in this process's memory, is cut off."""


_WITHOUT_CHUNKS = ("0.9", "1.0")
"""Versions of HTTP that know no transfer codings, and no answer in between such as `100 Continue`."""


def _flaw_of_framing(headers: Sequence[tuple[bytes, bytes]], version: str) -> str:
    """What a proxy in front of this server could read otherwise than this server does; empty: nothing."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and version != "1.0"):
        return "a request has one Host header"
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and version in _WITHOUT_CHUNKS:
        return "HTTP/1.0 has no Transfer-Encoding"
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        return "the only Transfer-Encoding is chunked"
    return ""


class HeadRefused(Exception):
    """Ends the parsing of a request's head."""


def _with_path(url: bytes) -> bytes:
    """An absolute URL that names no path means the root; uvicorn would find none."""
    scheme, mark, rest = url.partition(b"://")
    end = min((rest.find(one) for one in b"/?#" if one in rest), default=len(rest))
    if not mark or rest[end : end + 1] == b"/":
        return url
    return scheme + mark + rest[:end] + b"/" + rest[end:]


def _break_off(cycle: Any) -> None:
    """Tells the application that the client of this request is gone. What it still sends goes nowhere."""
    cycle.disconnected = True
    cycle.message_event.set()


CLOSE_DELIMITED = "close_delimited"
"""The key in the state of a request of its `CloseDelimited`, if its client knows no chunks."""


class CloseDelimited:
    """An answer to a client that knows no chunks: one without a length ends with its connection (RFC 9112, 6.3).

    It tells uvicorn's `cycle`, which would choose chunks, that each piece is as long as it is."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self.is_sending = False
        """An answer without a length has begun."""

    def before(self, send: Send) -> Send:
        """What the application sends by instead of `send`."""

        async def unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.is_sending = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                self._cycle.chunked_encoding = False if self.is_sending else None
            elif self.is_sending:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        return unframed


class CloseDelimitedAnswers:
    """The application, for clients that know no chunks as well. It stands around all that sends answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: CloseDelimited | None = scope["state"].get(CLOSE_DELIMITED)
        await self._app(scope, receive, send if answer is None else answer.before(send))


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. It is closed when it has begun, or begun a request, and no request is there after `timeout_s`;
    and when its client does not take what it is answered. A stream keeps no more than one buffer, and waits for its
    client for `reader_timeout_s` at a time: who comes back goes on where it was.

    uvicorn's `cycle` is the last request whose head was read. A client may send several before it reads an answer, so
    `_unanswered` has all that have no whole answer yet; the first of them is the one that is being answered."""

    def __init__(
        self,
        *args: Any,
        timeout_s: float,
        reader_timeout_s: float,
        limit: ConnectionLimit,
        timers: asyncio.AbstractEventLoop | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._timers = timers or asyncio.get_running_loop()
        self._connection: Any = None
        self._timeout_s = timeout_s
        self._reader_timeout_s = reader_timeout_s
        self._limit = limit
        self._is_excess = False
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_watch: asyncio.TimerHandle | None = None
        self._stream_watch: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._unanswered: deque[Any] = deque()
        self._ahead_bytes = 0
        self._refusal: HeadRefusal | None = None
        self._reads_no_more = False
        self._in_head = True
        self._in_body = False
        self._has_ended_one = False
        self._head_bytes = 0
        self._named_bytes = 0
        self._unread_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connection = transport
        excess = self._limit.enter()
        self._is_excess = excess > 0
        if excess > self._limit.most:
            transport.abort()
            return
        _forget_vanished(transport.get_extra_info("socket"), self._reader_timeout_s)
        self._expect_request(EXCESS_S if self._is_excess else self._timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.leave()
        self._request_is_there()
        for watch in (self._reader_watch, self._probe):
            if watch is not None:
                watch.cancel()
        if self._stream_watch is not None and isinstance(exc, TimeoutError):
            log.info("stream_client_cut_off", silent_s=self._reader_timeout_s)  # the kernel has the same limit
        self._forget_stream()
        for cycle in self._unanswered:  # uvicorn tells the last request alone
            _break_off(cycle)
        self._unanswered.clear()
        self.pipeline.clear()
        super().connection_lost(None)  # with an error, its timer for idle connections would go on

    def eof_received(self) -> Any:
        """The client sends nothing more. It may still read, or be gone altogether: only what is sent to it can tell."""
        if self._in_body and self._unanswered:
            self._forget_half_a_request()
        if not self._unanswered or self._connection.is_closing():
            return False
        self._unanswered[-1].keep_alive = False
        self._probe_client(PROBES)
        return True

    def data_received(self, data: bytes) -> None:
        if self._is_excess:
            self._refuse(TOO_MANY)
            return
        if self._reads_no_more:
            self._hold_back(len(data))
            return
        self._has_ended_one = False
        try:
            cast("Any", self.parser).feed_data(data)
        except HttpParserError:
            # Either the parser has given up, or one of the methods below, which then says why.
            self._stop_reading(self._refusal or NO_HTTP)
        except HttpParserUpgrade as offered:
            self.data_received(self._without_offer() + data[offered.args[0] :])
            return
        if not self._reads_no_more and not self._connection.is_closing():
            self._count(len(data))

    def _without_offer(self) -> bytes:
        """The head that was just read, without its offer to speak another protocol. The parser takes the body of a
        request with one for that other protocol; Java's client offers HTTP/2 with each first request, POSTs as well."""
        method, version = cast("Any", self.parser).get_method(), cast("Any", self.parser).get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count(self, length: int) -> None:
        """Counts bytes that were parsed to what they turned out to be."""
        if self._is_answered() and self._deadline is None:
            self._expect_request(self._timeout_s)
        if self._in_head:
            # Of bytes in which a request ended, nobody knows where the next one began.
            self._head_bytes += 0 if self._has_ended_one else length
            if self._head_bytes > MAX_HEAD_BYTES:
                self._stop_reading(HEAD_TOO_LONG)
                return
        elif self._in_body and self._is_answered():
            self._unread_bytes += length
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self._end()
        if len(self._unanswered) > (0 if self._in_head else 1):
            self._hold_back(length)

    def _hold_back(self, length: int) -> None:
        """Counts what came behind a request that is being answered. Too much of it waits in the kernel."""
        self._ahead_bytes += length
        if self._ahead_bytes > MAX_AHEAD_BYTES:
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        if len(self._unanswered) >= MAX_UNANSWERED:
            self._unanswered[-1].keep_alive = False
            self._refuse_head(TOO_MANY_AT_ONCE)
        super().on_message_begin()
        self._in_head, self._head_bytes, self._named_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse_head(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() != b"expect" or cast("Any", self.parser).get_http_version() not in _WITHOUT_CHUNKS:
            super().on_header(name, value)
        self._named_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._named_bytes > MAX_HEAD_BYTES:
            self._refuse_head(HEAD_TOO_LONG)

    def on_headers_complete(self) -> None:
        flaw = _flaw_of_framing(self.headers, cast("Any", self.parser).get_http_version())
        if cast("Any", self.parser).get_method() == b"CONNECT":
            flaw = "this server is no proxy"
        if flaw:
            self._refuse_head(NO_HTTP._replace(detail=flaw))
        if not self.url.startswith(b"/"):
            self.url = _with_path(self.url)
        if cast("Any", self.parser).should_upgrade():
            return  # it is read again, as what it is without the offer
        super().on_headers_complete()
        if cast("Any", self.parser).get_http_version() in _WITHOUT_CHUNKS:
            cast("Any", self.cycle.scope)["state"][CLOSE_DELIMITED] = CloseDelimited(self.cycle)
        cast("Any", self.cycle.scope)["state"][BREAK_OFF] = functools.partial(self._break_off_answer, self.cycle)
        self._in_head, self._in_body, self._unread_bytes = False, True, 0
        self._request_is_there()
        self._unanswered.append(self.cycle)
        # uvicorn reads nothing more behind a request that waits for its turn, and would not see the client leave.
        self.flow.resume_reading()

    def _break_off_answer(self, cycle: Any) -> None:
        """Closes the connection behind what was sent of an answer, without the answer's end: its client sees that
        there was more."""
        _break_off(cycle)
        self._end()

    def on_message_complete(self) -> None:
        if cast("Any", self.parser).should_upgrade():
            return
        self._in_body, self._has_ended_one = False, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        self._ahead_bytes = 0
        super().on_response_complete()
        if self._connection.is_closing():
            self._watch_reader()
        elif not self._unanswered:
            self._go_on_after_the_last_answer()

    def _go_on_after_the_last_answer(self) -> None:
        if self._reads_no_more:
            self._refuse(self._refusal or NO_HTTP)
        elif self._in_head and self._deadline is None:
            self._expect_request(self._timeout_s)  # the next request has begun: it is no idle connection

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._is_streaming():
            self._watch_reader()
        elif self._stream_watch is None:
            self._stream_watch = self._timers.call_later(self._reader_timeout_s, self._drop_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stream()
        if self._reader_watch is not None:
            # The client has taken nearly all of it. What it is sent next is measured anew.
            self._reader_watch.cancel()
            self._reader_watch = None
        if self._connection.is_closing():
            self._watch_reader()

    def shutdown(self) -> None:
        if self._unanswered:
            self._unanswered[-1].keep_alive = False
        else:
            self._end()

    def timeout_keep_alive_handler(self) -> None:
        if self._is_answered() and self._deadline is None:  # else a request has begun meanwhile
            self._end()

    def _stop_reading(self, why: HeadRefusal) -> None:
        """Reads nothing more of this client. It is answered what it asked before, and told why behind that."""
        log.info("request_not_read", reason=why.detail, answers_before=len(self._unanswered))
        self._reads_no_more, self._refusal = True, why
        if self._in_body:
            self._forget_half_a_request()
        if self._is_answered():
            self._refuse(why)

    def _forget_half_a_request(self) -> None:
        """Takes back the last request, whose body does not go on."""
        if self._is_answered():
            self._end()  # it was answered before its body was there, and another answer would belong to nothing
            return
        half = self._unanswered.pop()
        if self._unanswered:
            self.pipeline.popleft()
            return
        if half.response_started:
            self._end()
        _break_off(half)

    def _is_answered(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._unanswered

    def _is_streaming(self) -> bool:
        if not self._unanswered:
            return False
        return bool(self._unanswered[0].chunked_encoding) or self._is_close_delimited()

    def _is_close_delimited(self) -> bool:
        answer: CloseDelimited | None = self._unanswered[0].scope["state"].get(CLOSE_DELIMITED)
        return answer is not None and answer.is_sending

    def _probe_client(self, times: int) -> None:
        """Sends something that means nothing, where the answer has room for it, so that a client that is gone is
        noticed while there is nothing to send."""
        if self._connection.is_closing():
            return
        cycle = self._unanswered[0]
        state, is_old = cycle.scope["state"], cycle.scope["http_version"] in _WITHOUT_CHUNKS
        if ENDS_WITH_CLIENT in state and not cycle.response_started and not is_old:
            self._connection.write(INTERIM)
        keep_alive = state.get(KEEP_ALIVE_BYTES) if self._is_streaming() else None
        if keep_alive is not None and not self.flow.write_paused:
            is_whole = self._is_close_delimited()
            self._connection.write(keep_alive if is_whole else b"%x\r\n%b\r\n" % (len(keep_alive), keep_alive))
        self._probe = self._timers.call_later(PROBE_S, self._probe_client, times - 1) if times > 1 else None

    def _expect_request(self, within_s: float) -> None:
        self._deadline = self._timers.call_later(within_s, self._give_up)

    def _request_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_answered():
            self._end()

    def _end(self) -> None:
        """Closes the connection, once its client has taken what is still to be sent."""
        if not self._connection.is_closing():
            self._connection.close()
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._unsent_bytes = self._connection.get_write_buffer_size()
        if self._unsent_bytes and self._reader_watch is None:
            self._reader_watch = self._timers.call_later(self._timeout_s, self._look_at_reader)

    def _forget_stream(self) -> None:
        if self._stream_watch is not None:
            self._stream_watch.cancel()
            self._stream_watch = None

    def _drop_reader(self) -> None:
        """Ends a stream whose client has not taken one buffer in all this time."""
        self._stream_watch = None
        log.info("stream_client_cut_off", silent_s=self._reader_timeout_s)
        self._connection.abort()

    def _look_at_reader(self) -> None:
        self._reader_watch = None
        before, now = self._unsent_bytes, self._connection.get_write_buffer_size()
        if now > before - SLOWEST_READER * self._timeout_s and now:
            self._connection.abort()
        else:
            self._watch_reader()

    def _refuse_head(self, why: HeadRefusal) -> None:
        """Raises `HeadRefused`, which ends the parsing."""
        self._refusal = why
        raise HeadRefused(why.status)

    def _refuse(self, why: HeadRefusal) -> None:
        if not self._connection.is_closing():
            said = json.dumps(plain_body(why.code, why.detail)).encode()
            self._connection.write(
                f"HTTP/1.1 {why.status}\r\n{why.headers}content-type: application/json\r\n"
                f"content-length: {len(said)}\r\nconnection: close\r\n\r\n".encode()
                + said
            )
            self._end()


def _forget_vanished(connection: socket.socket | None, after_s: float) -> None:
    """Has the kernel end the connection when its peer has acknowledged nothing for so long. One that vanished without a
    word, as a telephone in a tunnel, would keep its place for some 15 minutes."""
    if connection is None or TCP_USER_TIMEOUT is None:
        return
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, max(1, round(after_s * 1000)))
