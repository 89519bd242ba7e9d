"""The HTTP server under the application: uvicorn, with limits on what a connection may cost before a request is there.

An application sees a request when its head is complete, and can end only what it sees. A connection that says nothing,
a head that never ends and a body that nobody wants are the server's to end.
"""

import asyncio
import functools
import signal
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""The request line and all headers. Of a head that comes in one piece, the socket's buffer is the limit."""

MAX_UNREAD_BYTES = 1_000_000
"""So much of a body is thrown away after its answer, so that a client which is still sending can read the answer."""

IDLE_S = 75
"""Seconds that a connection may be idle between two requests. Whoever uses it again must be the first to let go, or a
request is sent into a connection that is just being closed. Clients let go after 5 s (httpx) or 4 s (Node), proxies
after 60 s (nginx, AWS ALB). uvicorn's own limit is 5 s."""

STREAMS_END_S = 5
"""Seconds that requests under way get at the end; uvicorn would otherwise wait for them for ever."""

HEAD_TOO_LONG = "Request Header Fields Too Large"


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. It is closed when it has begun, or begun a request, and no request is there after `timeout_s`."""

    def __init__(self, *args: Any, timeout_s: float, **named: Any) -> None:
        super().__init__(*args, **named)
        self._timeout_s = timeout_s
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._unread_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answered() and self._deadline is None:
            self._expect_request()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
        elif self._in_body and self._is_answered():
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._unread_bytes = False, True, 0
        self._request_is_there()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _is_answered(self) -> bool:
        """Whether nobody waits for an answer."""
        cycle = cast("Any", self.cycle)
        return cycle is None or cycle.response_complete

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(self._timeout_s, self._give_up)

    def _request_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_answered():
            self.transport.close()

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            self.logger.warning("A request's head is longer than %d bytes.", MAX_HEAD_BYTES)
            said = HEAD_TOO_LONG.encode()
            self.transport.write(
                b"HTTP/1.1 431 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (said, len(said), said)
            )
            self.transport.close()


def server_config(app: FastAPI, *, timeout_s: float, idle_s: int = IDLE_S, **given: Any) -> uvicorn.Config:
    """How to serve the application. `given` are further fields of uvicorn's."""
    protocol = functools.partial(BoundedHttpProtocol, timeout_s=timeout_s)
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        log_level="warning",
        timeout_keep_alive=idle_s,
        **given,
    )


async def serve(app: FastAPI, *, host: str, port: int, timeout_s: float) -> None:
    """Serves until SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # At its end uvicorn raises the signal again, for whom it was before. Runs are still to be handed over then.
        signal.signal(number, _heard_already)
    config = server_config(
        app, timeout_s=timeout_s, host=host, port=port, access_log=False, timeout_graceful_shutdown=STREAMS_END_S
    )
    server = _Server(config, app.state.services.streaming.ending)
    await server.serve()


class _Server(uvicorn.Server):
    """Tells the open streams when it is told to end: a stream with a silent run would never end by itself."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._tell_streams = ending.set
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._tell_streams)  # a signal comes between two steps of the loop
        super().handle_exit(sig, frame)


def _heard_already(_number: int, _frame: object) -> None:
    """uvicorn has acted on the signal."""
