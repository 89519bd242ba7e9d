"""The HTTP server under the application: uvicorn, with bounded connections and a defined end."""

import asyncio
import functools
import gc
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from api.connection_rules import ConnectionLimit, ConnectionRules, ConnectionTerms
from api.event_stream import ServerEnd
from api.http_connection import HttpConnection

IDLE_S = 75
"""Seconds that a connection may be idle between two requests. Its client must close it first; otherwise the client may
send a request into a connection that the server is closing. Clients close after 5 s (httpx) or 4 s (Node), proxies
after 60 s (nginx, AWS ALB). uvicorn's default is 5 s."""

STREAMS_END_S = 5
"""Seconds that open requests get when the server ends; uvicorn's default is to wait for ever."""


def server_config(app: FastAPI, rules: ConnectionRules, *, idle_s: int = IDLE_S, **given: Any) -> uvicorn.Config:
    """uvicorn's configuration for the application. `given` are further fields of the configuration."""
    terms = ConnectionTerms(app, rules, ConnectionLimit(rules.max_connections))
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", functools.partial(HttpConnection, terms)),
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's own configuration would print every error with its traceback
        log_level="warning",
        server_header=False,
        # uvicorn would believe the forwarding headers of any process on this machine.
        proxy_headers=False,
        timeout_keep_alive=idle_s,
        **given,
    )


async def serve(
    app: FastAPI, sockets: list[socket.socket], rules: ConnectionRules, *, on_listening: Callable[[], None]
) -> None:
    """Serves on bound sockets until SIGTERM or SIGINT. `on_listening` is called when the server accepts connections."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # When uvicorn ends, it raises the signal again for the previous signal handler. The process still has to hand
        # over runs then.
        signal.signal(number, _heard_already)
    # The present objects live as long as the process. Without this each full collection would scan all of them, and
    # delay every stream meanwhile.
    gc.collect()
    gc.freeze()
    listens = _once(on_listening)
    config = server_config(
        app, rules, access_log=False, timeout_graceful_shutdown=STREAMS_END_S, callback_notify=listens
    )
    server = _Server(config, app.state.services.streaming.ending)
    await server.serve(sockets=sockets)


class _Server(uvicorn.Server):
    """Ends the open streams before it ends itself: the stream of a silent run would not end by itself."""

    def __init__(self, config: uvicorn.Config, ending: ServerEnd) -> None:
        super().__init__(config)
        self._ending = ending
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._ending.set)  # the signal handler runs between two steps of the loop


def _once(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """uvicorn calls this when it starts to listen, and then every half minute."""
    todo = [act]

    async def notified() -> None:
        if todo:
            todo.pop()()

    return notified


def _heard_already(_number: int, _frame: object) -> None:
    """uvicorn has handled the signal already."""
