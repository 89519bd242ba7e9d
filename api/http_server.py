"""The HTTP server under the application: uvicorn, with limits on what a connection may cost before a request is there.

An application sees a request when its head is complete, and can end only what it sees. A connection that says nothing,
a head that never ends and a body that nobody wants are the server's to end.
"""

import asyncio
import functools
import gc
import json
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple, cast

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.connection_rules import ConnectionLimit, ConnectionRules
from api.letta.refusals import refusal
from shared.domain.error_codes import ErrorCode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""The request line and all headers."""

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 100

MAX_UNREAD_BYTES = 1_000_000
"""So much of a body is thrown away after its answer, so that a client which is still sending can read the answer."""

IDLE_S = 75
"""Seconds that a connection may be idle between two requests. Whoever uses it again must be the first to let go, or a
request is sent into a connection that is just being closed. Clients let go after 5 s (httpx) or 4 s (Node), proxies
after 60 s (nginx, AWS ALB). uvicorn's own limit is 5 s."""

TCP_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""RFC 5482. None where the system has no such limit, as macOS."""

STREAMS_END_S = 5
"""Seconds that requests under way get at the end; uvicorn would otherwise wait for them for ever."""

DATE_S = 1.0
"""Seconds after which the date that answers tell is made anew."""


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

EXCESS_S = 1.0
"""How long a connection over the limit stays for its request, which is answered with a 503."""

SLOWEST_READER = 1000
"""Bytes per second. Who takes less of an answer, while it waits in this process's memory, is cut off."""


def _flaw_of_framing(headers: Sequence[tuple[bytes, bytes]], version: str) -> str:
    """What a proxy in front of this server could read otherwise than this server does; empty: nothing."""
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and version != "1.0"):
        return "a request has one Host header"
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        return "the only Transfer-Encoding is chunked"
    return ""


class HeadRefused(Exception):
    """Ends the parsing of a request's head."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. It is closed when it has begun, or begun a request, and no request is there after `timeout_s`;
    and when its client does not take what it is answered. A stream keeps no more than one buffer, and waits for its
    client for `reader_timeout_s` at a time: who comes back goes on where it was."""

    def __init__(
        self, *args: Any, timeout_s: float, reader_timeout_s: float, limit: ConnectionLimit, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self._timeout_s = timeout_s
        self._reader_timeout_s = reader_timeout_s
        self._limit = limit
        self._is_excess = False
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_watch: asyncio.TimerHandle | None = None
        self._stream_watch: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._refusal: HeadRefusal | None = None
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._named_bytes = 0
        self._unread_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_excess = self._limit.is_over(len(self.connections))
        if self._is_excess and len(self.connections) > 2 * self._limit.most:
            transport.abort()
            return
        _forget_vanished(transport.get_extra_info("socket"), self._reader_timeout_s)
        self._expect_request(EXCESS_S if self._is_excess else self._timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_there()
        if self._reader_watch is not None:
            self._reader_watch.cancel()
        if self._stream_watch is not None and isinstance(exc, TimeoutError):
            self._say_cut_off()  # the kernel has the same limit, and may come to it first
        self._forget_stream()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_excess:
            self._refuse(TOO_MANY)
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_answered() and self._deadline is None:
            self._expect_request(self._timeout_s)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HEAD_TOO_LONG)
        elif self._in_body and self._is_answered():
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self._end()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._named_bytes = True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse_head(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._named_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._named_bytes > MAX_HEAD_BYTES:
            self._refuse_head(HEAD_TOO_LONG)

    def on_headers_complete(self) -> None:
        flaw = _flaw_of_framing(self.headers, cast("Any", self.parser).get_http_version())
        if flaw:
            self._refuse_head(NO_HTTP._replace(detail=flaw))
        self._in_head, self._in_body, self._unread_bytes = False, True, 0
        self._request_is_there()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._is_streaming():
            self._watch_reader()
        elif self._stream_watch is None:
            self._stream_watch = self.loop.call_later(self._reader_timeout_s, self._drop_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stream()

    def timeout_keep_alive_handler(self) -> None:
        self._end()

    def send_400_response(self, msg: str) -> None:
        """The parser has given up: of itself, or because we refuse what it has read."""
        if not self._is_answered():
            self._end()  # an answer is under way, and another would be taken for a part of it
        else:
            self._refuse(self._refusal or NO_HTTP)

    def _is_answered(self) -> bool:
        """Whether nobody waits for an answer."""
        cycle = cast("Any", self.cycle)
        return cycle is None or cycle.response_complete

    def _is_streaming(self) -> bool:
        return not self._is_answered() and bool(self.cycle.chunked_encoding)

    def _expect_request(self, within_s: float) -> None:
        self._deadline = self.loop.call_later(within_s, self._give_up)

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
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes and self._reader_watch is None:
            self._reader_watch = self.loop.call_later(self._timeout_s, self._look_at_reader)

    def _forget_stream(self) -> None:
        if self._stream_watch is not None:
            self._stream_watch.cancel()
            self._stream_watch = None

    def _drop_reader(self) -> None:
        """Ends a stream whose client has not taken one buffer in all this time."""
        self._stream_watch = None
        self._say_cut_off()
        self.transport.abort()

    def _say_cut_off(self) -> None:
        log.info("stream_client_cut_off", silent_s=self._reader_timeout_s)

    def _look_at_reader(self) -> None:
        self._reader_watch = None
        before, now = self._unsent_bytes, self.transport.get_write_buffer_size()
        if now > before - SLOWEST_READER * self._timeout_s and now:
            self.transport.abort()
        else:
            self._watch_reader()

    def _refuse_head(self, why: HeadRefusal) -> None:
        """Raises `HeadRefused`, which the parser hands to `send_400_response` as a flaw of the request."""
        self._refusal = why
        raise HeadRefused(why.status)

    def _refuse(self, why: HeadRefusal) -> None:
        if not self.transport.is_closing():
            said = json.dumps(refusal(why.code, why.detail)).encode()
            self.transport.write(
                f"HTTP/1.1 {why.status}\r\n{why.headers}content-type: application/json\r\n"
                f"content-length: {len(said)}\r\nconnection: close\r\n\r\n".encode()
                + said
            )
            self._end()


def _forget_vanished(connection: socket.socket | None, after_s: float) -> None:
    """Has the kernel end the connection when its peer has acknowledged nothing of what it was sent for so long. A peer
    that vanished without a word, as a telephone in a tunnel, would keep its place for some 15 minutes."""
    if connection is None or TCP_USER_TIMEOUT is None:
        return
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, max(1, round(after_s * 1000)))


def server_config(app: FastAPI, rules: ConnectionRules, *, idle_s: int = IDLE_S, **given: Any) -> uvicorn.Config:
    """How to serve the application. `given` are further fields of uvicorn's."""
    protocol = functools.partial(
        BoundedHttpProtocol,
        timeout_s=rules.timeout_s,
        reader_timeout_s=rules.reader_timeout_s,
        limit=ConnectionLimit(rules.max_connections),
    )
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's own would print every error with its traceback
        log_level="warning",
        server_header=False,
        # uvicorn would believe what anybody on this machine says about the address of others.
        proxy_headers=False,
        timeout_keep_alive=idle_s,
        **given,
    )


async def serve(
    app: FastAPI, sockets: list[socket.socket], rules: ConnectionRules, *, on_listening: Callable[[], None]
) -> None:
    """Serves on bound sockets until SIGTERM or SIGINT. `on_listening` is called when the first request can come."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # At its end uvicorn raises the signal again, for whom it was before. Runs are still to be handed over then.
        signal.signal(number, _heard_already)
    # What is here lives as long as the process. Each full collection would look through all of it, and hold up every
    # stream meanwhile.
    gc.collect()
    gc.freeze()
    config = server_config(app, rules, access_log=False, timeout_graceful_shutdown=STREAMS_END_S)
    server = _Server(config, app.state.services.streaming.ending, on_listening)
    await server.serve(sockets=sockets)


class _Server(uvicorn.Server):
    """Tells the open streams when it is told to end: a stream with a silent run would never end by itself."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending
        self._on_listening = on_listening
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._ending.set)  # a signal comes between two steps of the loop

    async def main_loop(self) -> None:
        """Serves until it is told to end. uvicorn's own looks ten times a second, also when there is nothing to do."""
        self._on_listening()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._ending.wait()


def _heard_already(_number: int, _frame: object) -> None:
    """uvicorn has acted on the signal."""
