"""One connection to the API: uvicorn's protocol, with limits on a client's costs before a request, between requests and
during an answer. It knows nothing about the contents of requests.

An application sees a request only after its head is complete. A silent connection, a head that never ends and a body
that no route reads are the server's to end.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, cast

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.answer_connection import CLOSE_DELIMITED, AnswerConnection, CloseDelimited, FewItems, Flow
from api.connection_rules import ConnectionLimit
from api.errors import plain_body
from api.event_stream import CONNECTION, ENDS_WITH_CLIENT, KEEP_ALIVE_BYTES
from shared.concurrency import LeanEvent
from shared.domain.errors import ErrorCode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""The request line and all headers."""

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 100

MAX_UNREAD_BYTES = 1_000_000
"""Bytes of a body that the server discards after its answer: a client that is still sending can then read it."""

MAX_UNANSWERED = 16
"""Requests of one connection that may wait for answers: the one that the application is answering, and those that the
client has sent behind it without waiting (HTTP pipelining). The server reads no more of them, and closes the connection
after the last of these answers, so that the client knows which requests to send again (RFC 9112, 9.3.2)."""

MAX_AHEAD_BYTES = 64 * 1024
"""Bytes that the server reads behind a request that is being answered. Then the client has to wait."""

TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""RFC 5482. None on systems without this option, such as macOS."""


class HeadRefusal(NamedTuple):
    """An answer to a connection whose request never reaches an application."""

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
"""Interim response that clients skip (RFC 9110, 15.2). The server may send it before an answer."""

PROBES, PROBE_S = 3, 0.3
"""How many probes go to a client that has closed its side, and how many seconds apart. A host that is gone refuses the
first, and the kernel then fails the next."""

TOO_MANY_AT_ONCE = HeadRefusal(
    "503 Service Unavailable",
    ErrorCode.TOO_MANY_CONNECTIONS,
    f"One connection has {MAX_UNANSWERED} requests at most that wait for answers",
)
"""For the log only: the connection ends after the last of the answers."""

EXCESS_S = 1.0
"""Seconds for which a connection over the limit stays open for its request, which gets a 503."""

SLOWEST_READER = 1000
"""Bytes per second. The server cuts off a client that reads a buffered answer more slowly."""


_WITHOUT_CHUNKS = ("0.9", "1.0")
"""Versions of HTTP without transfer codings and without interim responses such as `100 Continue`."""


def _flaw_of_framing(headers: Sequence[tuple[bytes, bytes]], version: str) -> str:
    """A part of the framing that a proxy in front of this server could read differently; empty: none."""
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
    """An absolute URL without a path means the root; uvicorn would find no path."""
    scheme, mark, rest = url.partition(b"://")
    end = min((rest.find(one) for one in b"/?#" if one in rest), default=len(rest))
    if not mark or rest[end : end + 1] == b"/":
        return url
    return scheme + mark + rest[:end] + b"/" + rest[end:]


def _break_off(cycle: Any) -> None:
    """Tells the application that this request's client has disconnected. Its further output is discarded."""
    cycle.disconnected = True
    cycle.message_event.set()
    connection: AnswerConnection = cycle.scope["state"][CONNECTION]
    connection.leaves()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. The server closes it if no complete request arrives within `timeout_s` of its begin, or if its
    client does not read an answer. A stream buffers at most one piece, and waits `reader_timeout_s` for its client each
    time: a client that reconnects can resume it.

    uvicorn's `cycle` is the last request whose head was read. A client may send several before it reads an answer, so
    `_unanswered` has all requests without a complete answer. The first of them is the one in progress."""

    # A dictionary for so many attributes would be the largest thing that a waiting connection has.
    __slots__ = (
        *("_ahead_bytes", "_connection", "_deadline", "_has_ended_one", "_head_bytes", "_in_body", "_in_head"),
        *("_is_excess", "_limit", "_named_bytes", "_probe", "_reader_timeout_s", "_reader_watch", "_reads_no_more"),
        *("_refusal", "_stream_watch", "_timeout_s", "_timers", "_unanswered", "_unread_bytes", "_unsent_bytes"),
    )

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
        self.parser: Any = self.parser  # None while an answer goes on for long
        self.pipeline = cast("Any", FewItems[Any]())
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
        self._unanswered = FewItems[Any]()
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
        self.flow = cast("Any", Flow(transport))
        self.server = _shared(self.server)
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
        for cycle in self._unanswered:  # uvicorn informs only the last request
            _break_off(cycle)
        self._unanswered.clear()
        self.pipeline.clear()
        super().connection_lost(None)  # with an error, its timer for idle connections would keep running

    def eof_received(self) -> Any:
        """The client sends nothing more. It may still read, or be gone altogether; only a write can tell."""
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
        if self.parser is None:
            self.parser = _parser_of(self)
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            # Either the parser gave up, or one of the methods below, which has then set the reason.
            self._stop_reading(self._refusal or NO_HTTP)
        except HttpParserUpgrade as offered:
            self.data_received(self._without_offer() + data[offered.args[0] :])
            return
        if not self._reads_no_more and not self._connection.is_closing():
            self._count(len(data))

    def _without_offer(self) -> bytes:
        """The head that was just read, without its `Upgrade`. After one the parser would treat the body as another
        protocol. Java's client offers HTTP/2 with its first request, even if that is a POST."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count(self, length: int) -> None:
        """Adds parsed bytes to the counter of their kind."""
        if self._is_answered() and self._deadline is None:
            self._expect_request(self._timeout_s)
        if self._in_head:
            # A request ended within these bytes, and the position at which the next one began is unknown.
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
        """Counts bytes behind a request that is being answered. Beyond the limit they wait in the kernel."""
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
        if name.lower() != b"expect" or self.parser.get_http_version() not in _WITHOUT_CHUNKS:
            super().on_header(name, value)
        self._named_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._named_bytes > MAX_HEAD_BYTES:
            self._refuse_head(HEAD_TOO_LONG)

    def on_headers_complete(self) -> None:
        flaw = _flaw_of_framing(self.headers, self.parser.get_http_version())
        if self.parser.get_method() == b"CONNECT":
            flaw = "this server is no proxy"
        if flaw:
            self._refuse_head(NO_HTTP._replace(detail=flaw))
        if not self.url.startswith(b"/"):
            self.url = _with_path(self.url)
        if self.parser.should_upgrade():
            return  # it is parsed again without the upgrade
        super().on_headers_complete()
        if self.parser.get_http_version() in _WITHOUT_CHUNKS:
            cast("Any", self.cycle.scope)["state"][CLOSE_DELIMITED] = CloseDelimited(self.cycle)
        cast("Any", self.cycle.scope)["state"][CONNECTION] = AnswerConnection(self, self.cycle)
        cast("Any", self.cycle).message_event = LeanEvent()
        self._in_head, self._in_body, self._unread_bytes = False, True, 0
        self._request_is_there()
        self._unanswered.append(self.cycle)
        # uvicorn reads no more while a request waits in the queue, and would not notice that the client disconnects.
        self.flow.resume_reading()

    def forget_request(self) -> None:
        """Releases the last request, whose answer goes on for long. The next one gets a parser of its own: a parser is
        the largest thing that a waiting connection has."""
        self.headers, self.url = [], b""
        if not self._in_head and not self._in_body:
            self.parser = None

    def break_off_answer(self, cycle: Any) -> None:
        """Closes the connection after the part of an answer that was sent, without the answer's end, so that the client
        sees that it is incomplete."""
        _break_off(cycle)
        self._end()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
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
            self._expect_request(self._timeout_s)  # the next request has begun, so the connection is not idle

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
            # The client has read nearly all of it. The next piece gets a new time limit.
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
        if self._is_answered() and self._deadline is None:  # otherwise a request has begun meanwhile
            self._end()

    def _stop_reading(self, why: HeadRefusal) -> None:
        """Reads nothing more from this client. It gets the outstanding answers, and then the refusal."""
        log.info("request_not_read", reason=why.detail, answers_before=len(self._unanswered))
        self._reads_no_more, self._refusal = True, why
        if self._in_body:
            self._forget_half_a_request()
        if self._is_answered():
            self._refuse(why)

    def _forget_half_a_request(self) -> None:
        """Removes the last request, whose body will not continue."""
        if self._is_answered():
            self._end()  # it was answered before its body arrived, and a second answer would belong to no request
            return
        half = self._unanswered.pop()
        if self._unanswered:
            self.pipeline.popleft()
            return
        if half.response_started:
            self._end()
        _break_off(half)

    def _is_answered(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._unanswered

    def _is_streaming(self) -> bool:
        if not self._unanswered:
            return False
        return bool(self._unanswered[0].chunked_encoding) or self._is_close_delimited()

    def _is_close_delimited(self) -> bool:
        answer: CloseDelimited | None = self._unanswered[0].scope["state"].get(CLOSE_DELIMITED)
        return answer is not None and answer.is_sending

    def _probe_client(self, times: int) -> None:
        """Sends bytes without meaning, where the answer allows them, so that the kernel detects a client that is gone
        while there is nothing else to send."""
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
        """Closes the connection after its client has read the rest."""
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
        """Ends a stream whose client has not read one buffer within the time limit."""
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


def _parser_of(protocol: HttpToolsProtocol) -> Any:
    """A parser such as uvicorn makes for each connection."""
    parser: Any = HttpRequestParser(protocol)
    with suppress(AttributeError):  # httptools before 0.6.3
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@lru_cache
def _shared(address: tuple[str, int | None] | None) -> tuple[str, int | None] | None:
    """An equal address, which all connections share: the server has one or two."""
    return address


def _forget_vanished(connection: socket.socket | None, after_s: float) -> None:
    """Makes the kernel end the connection if its peer acknowledges nothing for this long. A peer that vanished
    silently, such as a phone in a tunnel, would otherwise occupy a connection for some 15 minutes."""
    if connection is None or TCP_USER_TIMEOUT is None:
        return
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, max(1, round(after_s * 1000)))
