"""The HTTP server under the application: uvicorn, with bounded connections, which ends when its owner says so."""

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

from api.connection_rules import ConnectionLimit, ConnectionRules
from api.http_connection import BoundedHttpProtocol, CloseDelimitedAnswers

IDLE_S = 75
"""Seconds that a connection may be idle between two requests. Whoever uses it again must be the first to let go, or a
request is sent into a connection that is just being closed. Clients let go after 5 s (httpx) or 4 s (Node), proxies
after 60 s (nginx, AWS ALB). uvicorn's own limit is 5 s."""

STREAMS_END_S = 5
"""Seconds that requests under way get at the end; uvicorn would otherwise wait for them for ever."""


def server_config(app: FastAPI, rules: ConnectionRules, *, idle_s: int = IDLE_S, **given: Any) -> uvicorn.Config:
    """How to serve the application. `given` are further fields of uvicorn's."""
    protocol = functools.partial(
        BoundedHttpProtocol,
        timeout_s=rules.timeout_s,
        reader_timeout_s=rules.reader_timeout_s,
        limit=ConnectionLimit(rules.max_connections),
    )
    return uvicorn.Config(
        CloseDelimitedAnswers(app),
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
    listens = _once(on_listening)
    config = server_config(
        app, rules, access_log=False, timeout_graceful_shutdown=STREAMS_END_S, callback_notify=listens
    )
    server = _Server(config, app.state.services.streaming.ending)
    await server.serve(sockets=sockets)


class _Server(uvicorn.Server):
    """Ends the open streams when it ends itself: a stream with a silent run would never end by itself."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._ending.set)  # a signal comes between two steps of the loop


def _once(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """uvicorn calls this when it listens, and every half a minute from then on."""
    todo = [act]

    async def notified() -> None:
        if todo:
            todo.pop()()

    return notified


def _heard_already(_number: int, _frame: object) -> None:
    """uvicorn has acted on the signal."""
