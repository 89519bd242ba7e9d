"""Answers that take long to send: streams of server-sent events, and JSON that a thread makes piece by piece.

A stream sends its body itself. It sends all ready events at once, each send waits for the client's socket, and the
stream notices at once when its client disconnects. A reader costs its socket and one batch of events.

A long list (an agent with its tools and memory, a page of messages) takes a second or more to become JSON. A thread
makes it, so that the event loop serves other requests meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, cast

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.request_log import StreamFigures
from shared.concurrency import LONG_DATA

HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "content-type": "text/event-stream; charset=utf-8",
}
FRAME_END = b"\n\n"
KEEP_ALIVE = b": keep-alive\n"

KEEP_ALIVE_BYTES = "keep_alive_bytes"
"""Key in a request's state: bytes without meaning that the server may send between any two pieces of the answer."""

ENDS_WITH_CLIENT = "ends_with_client"
"""Key in a request's state: the request's work is to end if its client disconnects before the answer begins."""

BREAK_OFF = "break_off"
"""Key in a request's state: a function that closes the connection in the middle of the answer."""

RAW_SEND = "raw_send"
"""Key in a request's state: the server's own `send`.

The middlewares between a response and the server change only its head. Without this key a stream would call ten
functions for each token.
"""


class StreamBroken(Exception):
    """What the stream has sent is no longer valid; its client has to read the stream again."""


class EventStream(Response):
    """A response that sends batches of events until they end, the client disconnects or the server is `ending`.

    `batches` yields the bytes of the events that are ready. An empty batch becomes a comment, which keeps proxies from
    closing the connection. `cut` is sent when the server ends before the run does; with None the response breaks off
    the connection instead, for clients that take any clean end for the end of the stream. `batches` may raise
    `StreamBroken`, which breaks off the connection too. `entrance` is open for as long as the stream, and may refuse
    it. `on_leave` is called when the client disconnects, and `on_whole` after the last event was sent.
    """

    def __init__(
        self,
        batches: Callable[[], AsyncGenerator[bytes]],
        ending: asyncio.Event,
        *,
        cut: bytes | None,
        entrance: Callable[[Scope], AbstractAsyncContextManager[None]],
        on_leave: Callable[[], Awaitable[None]] | None = None,
        on_whole: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(headers=HEADERS)
        self._on_whole = on_whole
        self._on_leave = on_leave
        self._entrance = entrance
        self._batches = batches
        self._ending = ending
        self._cut = cut
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        figures = state[StreamFigures.KEY] = StreamFigures()
        state[KEEP_ALIVE_BYTES] = KEEP_ALIVE
        async with self._entrance(scope):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            is_whole = await self._show(receive, state.get(RAW_SEND, send), figures)
        if not is_whole and BREAK_OFF in state:
            state[BREAK_OFF]()
        elif not is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _show(self, receive: Receive, send: Send, figures: StreamFigures) -> bool:
        """Sends the stream. Returns False if the connection must be broken off."""
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(send, figures), name="send events")
            leaving = group.create_task(_wait_for_disconnect(receive), name="watch for disconnect")
            ending = group.create_task(_wait_for(self._ending), name="watch for the server's end")
            await asyncio.wait([sending, leaving, ending], return_when=asyncio.FIRST_COMPLETED)
            # Cancelling a send cuts no frame: its bytes are in the transport already.
            is_cut = ending.done() and not sending.done() and not leaving.done()
            is_left = leaving.done() and not sending.done() and not ending.done()
            for task in (sending, leaving, ending):
                task.cancel()
        if sending.done() and not sending.cancelled():
            figures.end = "whole"
            if self._on_whole is not None:
                await self._on_whole()
            return sending.result()
        if is_left and self._on_leave is not None:
            await self._on_leave()
        if is_cut:
            figures.end = "server_ending"
            if self._cut is None:
                return False
            await send({"type": "http.response.body", "body": self._cut, "more_body": False})
        return True

    async def _send(self, send: Send, figures: StreamFigures) -> bool:
        """Sends the batches. Returns False if what was sent is no longer valid."""
        try:
            async for body in self._batches():
                figures.frames += body.count(FRAME_END)
                await send({"type": "http.response.body", "body": body or KEEP_ALIVE, "more_body": True})
        except StreamBroken:
            return False
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def finishes(work: Coroutine[Any, Any, None], ending: asyncio.Event) -> bool:
    """Does the work. Returns False if the server ends first."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work, name="wait for a run's end")
        leaving = group.create_task(_wait_for(ending), name="wait for the server's end")
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        has_finished = working.done()
        working.cancel()
        leaving.cancel()
    return has_finished


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


CHARACTERS_OF_A_VALUE = 100
"""This many characters become JSON in the time of one value without text, such as a number or a key."""

JSON = "application/json"


def is_long(value: object) -> bool:
    """Whether rendering this value as JSON takes more than about a millisecond. Looks at a thousand values at most."""
    left, waiting = LONG_DATA, [value]
    while waiting and left > 0:
        one = waiting.pop()
        left -= CHARACTERS_OF_A_VALUE
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict):
            waiting.extend(cast("dict[str, object]", one).values())
        elif isinstance(one, list):
            waiting.extend(cast("list[object]", one))
    return left <= 0


def in_pieces(value: Any) -> bytes:
    """The value as JSON, without a long call into C, which would block every other thread."""
    if isinstance(value, list) and is_long(cast("object", value)):
        return b"[%b]" % b",".join(map(in_pieces, cast("list[Any]", value)))
    if isinstance(value, dict) and is_long(cast("object", value)):
        fields = cast("dict[str, Any]", value).items()
        return b"{%b}" % b",".join([b"%b:%b" % (to_json(name), in_pieces(one)) for name, one in fields])
    return to_json(value, inf_nan_mode="null")


async def json_answer(value: Any, status: int = 200) -> Response:
    """An answer with this value, short or long."""
    body = await asyncio.to_thread(in_pieces, value) if is_long(value) else in_pieces(value)
    return Response(body, status, media_type=JSON)


def with_long_answers(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The endpoint of a route, which returns long answers as responses. FastAPI would validate and render each of them
    in one blocking call."""

    @wraps(endpoint)
    async def answered(**values: Any) -> Any:
        value = await endpoint(**values)
        if isinstance(value, Response) or not is_long(value):
            return value
        answer = await json_answer(value)
        for given in values.values():
            if isinstance(given, Response):
                answer.headers.raw.extend(given.headers.raw)
        return answer

    return answered
