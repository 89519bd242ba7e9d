"""One connection to the API: reads requests, has the application answer them in turn, and limits a client's costs
before a request, between requests and during an answer. It knows nothing about the contents of requests.

uvicorn accepts the connection and calls `shutdown` when the server ends. httptools parses. An application sees a
request only after its head is complete. The server itself ends a silent connection, a head that never ends, and a body
that no route reads.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, cast
from urllib.parse import unquote

import structlog
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from starlette.types import Scope

from api import connection_rules as rules
from api.connection_rules import ConnectionTerms, HeadRefusal
from api.http_exchange import CONTINUED, Exchange, Headers
from shared.concurrency import LeanEvent

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""RFC 5482. None on systems without this option, such as macOS."""

PROBES, PROBE_S = 3, 0.3
"""The number of probes to a client that has closed its side, and the seconds between them. A host that is gone refuses
the first, and the kernel then fails the next."""


class HeadRefused(Exception):
    """Ends the parsing of a request's head."""


@dataclass(slots=True, eq=False)
class HttpConnection(asyncio.Protocol):
    """One connection. The server closes it if no complete request arrives within `timeout_s` of its begin, or if its
    client does not read an answer. A stream buffers at most one piece, and waits `reader_timeout_s` for its client each
    time: a client that reconnects can resume it.

    A client may send several requests before it reads an answer, so `_unanswered` has all requests without a complete
    answer. The application answers the first of them. `_arriving` is the last request whose head was read, until it is
    answered.

    A process may have ten thousand idle connections. Each holds no parser and no part of a request."""

    terms: ConnectionTerms
    _: KW_ONLY
    config: uvicorn.Config
    server_state: Any
    """The state that uvicorn's server shares with its connections. It awaits connections and tasks when it ends."""
    app_state: Mapping[str, Any]
    _loop: Any = None
    transport: asyncio.Transport = field(init=False)
    is_write_paused: bool = False
    _is_read_paused: bool = False
    _drained: LeanEvent | None = None
    _is_excess: bool = False
    deadline: asyncio.TimerHandle | None = None
    _is_idle: bool = False
    """The deadline is that of a client without an open request."""
    _reader_watch: asyncio.TimerHandle | None = None
    _stream_watch: asyncio.TimerHandle | None = None
    _probe: asyncio.TimerHandle | None = None
    _unsent_bytes: int = 0
    _unanswered: list[Exchange] = field(default_factory=list[Exchange])
    _arriving: Exchange | None = None
    _ahead_bytes: int = 0
    _refusal: HeadRefusal | None = None
    _reads_no_more: bool = False
    _parser: Any = None
    _url: bytes = b""
    _headers: Headers = field(default_factory=Headers)
    _expectation: bytes = b""
    _in_head: bool = True
    _in_body: bool = False
    _has_moved_on: bool = False
    _part_bytes: int = 0
    _named_bytes: int = 0
    _unread_bytes: int = 0

    def __post_init__(self) -> None:
        self._loop = self._loop or asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server_state.connections.add(self)
        excess = self.terms.limit.enter()
        self._is_excess = excess > 0
        if excess > self.terms.limit.most:
            self.transport.abort()
            return
        _forget_vanished(transport.get_extra_info("socket"), self.terms.rules.reader_timeout_s)
        self._expect_request(rules.EXCESS_S if self._is_excess else self.terms.rules.timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        self.terms.limit.leave()
        self._request_is_there()
        _cancel(self._reader_watch)
        _cancel(self._probe)
        if self._stream_watch is not None and isinstance(exc, TimeoutError):
            # The kernel has the same limit.
            log.info("stream_client_cut_off", silent_s=self.terms.rules.reader_timeout_s)
        self._forget_stream()
        for exchange in self._unanswered:
            exchange.client_leaves()
        self._unanswered, self._arriving = [], None
        self._let_write()
        self._parser = None  # it refers to this object

    def eof_received(self) -> Any:
        """The client sends nothing more. It may still read, or be gone altogether; only a write can tell."""
        if self._in_body and self._unanswered:
            self._forget_half_a_request()
        if not self._unanswered or self.transport.is_closing():
            return False
        self._unanswered[-1].keep_alive = False
        self._probe_client(PROBES)
        return True

    def data_received(self, data: bytes) -> None:
        if self._is_excess:
            self._refuse(rules.TOO_MANY)
            return
        if self._reads_no_more:
            self._hold_back(len(data))
            return
        self._has_moved_on = False
        if self._parser is None:
            self._parser = HttpRequestParser(self)
            # Bytes behind a request with `Connection: close` are no flaw of that request.
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            # Either the parser gave up, or a method below did and has set the reason.
            self._stop_reading(self._refusal or rules.NO_HTTP)
        except HttpParserUpgrade as offered:
            self.data_received(self._without_offer() + data[offered.args[0] :])
            return
        if not self._reads_no_more and not self.transport.is_closing():
            self._count(len(data))

    def _without_offer(self) -> bytes:
        """The head that was just read, without its `Upgrade`. With it the parser would treat the body as another
        protocol. Java's client offers HTTP/2 with its first request, even if that is a POST."""
        method, version = self._parser.get_method(), self._parser.get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self._url, version.encode())]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count(self, length: int) -> None:
        """Adds parsed bytes to the counter of their kind."""
        if self._is_idle:
            self._expect_request(self.terms.rules.timeout_s)
        if self._in_head or self._in_body:
            # Another part ended within these bytes, and the position at which the present one began is unknown.
            self._part_bytes = 0 if self._has_moved_on else self._part_bytes + length
            if self._part_bytes > rules.MAX_HEAD_BYTES:
                self._stop_reading(rules.HEAD_TOO_LONG)
                return
        if self._in_body and not self._unanswered:
            self._unread_bytes += length
            if self._unread_bytes > rules.MAX_UNREAD_BYTES:
                self._end()
        if len(self._unanswered) > (0 if self._in_head else 1):
            self._hold_back(length)

    def _hold_back(self, length: int) -> None:
        """Counts bytes behind a request that is being answered. Beyond the limit they wait in the kernel."""
        self._ahead_bytes += length
        if self._ahead_bytes > rules.MAX_AHEAD_BYTES:
            self._pause_reading()

    def on_message_begin(self) -> None:
        if len(self._unanswered) >= rules.MAX_UNANSWERED:
            self._unanswered[-1].keep_alive = False
            self._refuse_head(rules.TOO_MANY_AT_ONCE)
        self._url, self._headers, self._expectation = b"", [], b""
        self._in_head, self._part_bytes, self._named_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > rules.MAX_URL_BYTES:
            self._refuse_head(rules.URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._named_bytes += len(name) + len(value)
        if self._in_head:  # otherwise it is a trailer, which must not be taken for a header (RFC 9110, 6.5.1)
            self._add_header(name.lower(), value)
        if len(self._headers) > rules.MAX_HEADERS or self._named_bytes > rules.MAX_HEAD_BYTES:
            self._refuse_head(rules.HEAD_TOO_LONG)

    def _add_header(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            if self._parser.get_http_version() in rules.WITHOUT_CHUNKS:
                return
            self._expectation = CONTINUED if self._expectation == CONTINUED else value.lower()
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        flaw = _flaw_of_head(self._parser.get_method(), self._headers, self._parser.get_http_version())
        if flaw:
            self._refuse_head(rules.NO_HTTP._replace(detail=flaw))
        if not self._url.startswith(b"/"):
            self._url = _with_path(self._url)
        if self._parser.should_upgrade():
            return  # it is parsed again without the upgrade
        scope = self._scope()
        stays = scope["http_version"] != "1.0" and self._parser.should_keep_alive()
        exchange = Exchange(self, scope, keep_alive=stays, expectation=self._expectation)
        self._in_head, self._in_body, self._has_moved_on, self._unread_bytes = False, True, True, 0
        self._request_is_there()
        self._arriving = exchange
        self._unanswered.append(exchange)
        if len(self._unanswered) == 1:
            self._begin_answer(exchange)
        self.resume_reading()  # even while requests wait: only a reading server notices that the client disconnects

    def _scope(self) -> Scope:
        target, root = parse_url(self._url), self.config.root_path
        raw_path: bytes = target.path
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "server": _address(self.transport.get_extra_info("sockname")),
            "client": _address(self.transport.get_extra_info("peername")),
            "scheme": "https" if self.transport.get_extra_info("sslcontext") else "http",
            "method": self._parser.get_method().decode("ascii"),
            "root_path": root,
            "path": root + (unquote(path) if "%" in path else path),
            "raw_path": root.encode("ascii") + raw_path,
            "query_string": target.query or b"",
            "headers": self._headers,
            "state": dict(self.app_state),
        }

    def _begin_answer(self, exchange: Exchange) -> None:
        task = self._loop.create_task(exchange.run(self.terms.app), name="request")
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def on_body(self, piece: bytes) -> None:
        self._has_moved_on = True
        if self._arriving is not None and self._arriving.add_body(piece):
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._in_body, self._has_moved_on = False, True
        if self._arriving is not None:
            self._arriving.end_body()

    def forget_request(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        if self._arriving is exchange and not self._in_head:
            self._url, self._headers = b"", []
            if not self._in_body:
                # The next request gets a parser of its own: it is the largest thing that a waiting connection has.
                self._parser = None

    def break_off_answer(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        exchange.client_leaves()
        self._end()

    def answered(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        self._unanswered.pop(0)
        self._ahead_bytes = 0
        self.server_state.total_requests += 1
        self.forget_request(exchange)
        self._arriving = None if self._arriving is exchange else self._arriving
        if self.transport.is_closing():
            self._watch_reader()
            return
        self.resume_reading()
        if self._unanswered:
            self._begin_answer(self._unanswered[0])
        else:
            self._go_on_after_the_last_answer()

    def _go_on_after_the_last_answer(self) -> None:
        if self._reads_no_more:
            self._refuse(self._refusal or rules.NO_HTTP)
            return
        # If the next request has begun, the connection is not idle.
        self._expect_request(self.terms.rules.timeout_s if self._in_head else self.config.timeout_keep_alive)
        self._is_idle = not self._in_head

    def _pause_reading(self) -> None:
        """Leaves what the client sends in the kernel."""
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """See `Carrier`."""
        if self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    async def drain(self) -> None:
        """See `Carrier`."""
        if self._drained is None:
            self._drained = LeanEvent()
        await self._drained.wait()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if not self._is_streaming():
            self._watch_reader()
        elif self._stream_watch is None:
            self._stream_watch = self._loop.call_later(self.terms.rules.reader_timeout_s, self._drop_reader)

    def resume_writing(self) -> None:
        self._let_write()
        self._forget_stream()
        # The client has read nearly all of it. The next piece gets a new time limit.
        _cancel(self._reader_watch)
        self._reader_watch = None
        if self.transport.is_closing():
            self._watch_reader()

    def _let_write(self) -> None:
        self.is_write_paused = False
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    def shutdown(self) -> None:
        """uvicorn calls this when the server ends."""
        if self._unanswered:
            self._unanswered[-1].keep_alive = False
        else:
            self._end()

    def _stop_reading(self, why: HeadRefusal) -> None:
        """Reads nothing more from this client. The client gets the outstanding answers, and then the refusal."""
        log.info("request_not_read", reason=why.detail, answers_before=len(self._unanswered))
        self._reads_no_more, self._refusal = True, why
        if self._in_body:
            self._forget_half_a_request()
        if not self._unanswered:
            self._refuse(why)

    def _forget_half_a_request(self) -> None:
        """Removes the last request, whose body will not continue."""
        if not self._unanswered:
            self._end()  # it was answered before its body arrived, and a second answer would belong to no request
            return
        half = self._unanswered.pop()
        if self._unanswered:
            return  # the application has not seen it
        if half.has_begun:
            self._end()
        half.client_leaves()

    def _is_streaming(self) -> bool:
        return bool(self._unanswered) and self._unanswered[0].is_streaming

    def _probe_client(self, times: int) -> None:
        """Sends filler bytes, where the answer allows them, so that the kernel detects a client that is gone while the
        server has nothing else to send."""
        if self.transport.is_closing():
            return
        filler = self._unanswered[0].filler()
        if filler:
            self.transport.write(filler)
        self._probe = self._loop.call_later(PROBE_S, self._probe_client, times - 1) if times > 1 else None

    def _expect_request(self, within_s: float) -> None:
        self._request_is_there()
        self.deadline = self._loop.call_later(within_s, self.give_up)

    def _request_is_there(self) -> None:
        _cancel(self.deadline)
        self.deadline, self._is_idle = None, False

    def give_up(self) -> None:
        """Ends the connection of a client that has not sent a request in time."""
        if not self._unanswered:
            self._end()

    def _end(self) -> None:
        """Closes the connection after its client has read the rest."""
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes and self._reader_watch is None:
            self._reader_watch = self._loop.call_later(self.terms.rules.timeout_s, self._look_at_reader)

    def _forget_stream(self) -> None:
        _cancel(self._stream_watch)
        self._stream_watch = None

    def _drop_reader(self) -> None:
        """Ends a stream whose client has not read one buffer within the time limit."""
        self._stream_watch = None
        log.info("stream_client_cut_off", silent_s=self.terms.rules.reader_timeout_s)
        self.transport.abort()

    def _look_at_reader(self) -> None:
        self._reader_watch = None
        before, now = self._unsent_bytes, self.transport.get_write_buffer_size()
        if now > before - rules.SLOWEST_READER * self.terms.rules.timeout_s and now:
            self.transport.abort()
        else:
            self._watch_reader()

    def _refuse_head(self, why: HeadRefusal) -> None:
        """Raises `HeadRefused`, which ends the parsing."""
        self._refusal = why
        raise HeadRefused(why.status)

    def _refuse(self, why: HeadRefusal) -> None:
        if not self.transport.is_closing():
            self.transport.write(why.answer())
            self._end()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _address(known: object) -> tuple[str, int | None] | None:
    """One end of a connection, as ASGI has it; None if the system does not know it."""
    if isinstance(known, tuple):
        named = cast("tuple[Any, ...]", known)
        return str(named[0]), int(named[1])
    return (known, None) if isinstance(known, str) and known else None


def _forget_vanished(connection: socket.socket | None, after_s: float) -> None:
    """Makes the kernel end the connection if its peer acknowledges nothing for this long. A peer that vanished
    silently, such as a phone in a tunnel, would otherwise occupy a connection for some 15 minutes."""
    if connection is None or TCP_USER_TIMEOUT is None:
        return
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, max(1, round(after_s * 1000)))


def _flaw_of_head(method: bytes, headers: Sequence[tuple[bytes, bytes]], version: str) -> str:
    """A part of the head that a proxy in front of this server could read differently, or a request to be a proxy;
    empty: none."""
    if method == b"CONNECT":
        return "this server is no proxy"
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and version != "1.0"):
        return "a request has one Host header"
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and version in rules.WITHOUT_CHUNKS:
        return "HTTP/1.0 has no Transfer-Encoding"
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        return "the only Transfer-Encoding is chunked"
    return ""


def _with_path(url: bytes) -> bytes:
    """An absolute URL without a path means the root; the parser would find no path."""
    scheme, mark, rest = url.partition(b"://")
    end = min((rest.find(one) for one in b"/?#" if one in rest), default=len(rest))
    if not mark or rest[end : end + 1] == b"/":
        return url
    return scheme + mark + rest[:end] + b"/" + rest[end:]
