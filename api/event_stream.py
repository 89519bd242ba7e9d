"""Answers that take long to send: a stream of server-sent events, and JSON that a thread makes piece by piece.

A stream sends its body itself. Everything that is ready leaves in one send, each send waits for the client's socket,
and the stream notices at once when its client goes away. A reader costs its socket and one batch of entries.

A long list (an agent with its tools and memory, a page of messages) takes a second and more to become JSON. A thread
makes it, so that the event loop serves others meanwhile.
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
"""The key in the state of a request of what may be sent between any two pieces of its answer, and means nothing."""

ENDS_WITH_CLIENT = "ends_with_client"
"""The key in the state of a request whose work ends when its client goes away, before its answer has begun."""

BREAK_OFF = "break_off"
"""The key in the state of a request of what closes its connection in the middle of the answer."""

RAW_SEND = "raw_send"
"""The key in the state of a request of the server's own `send`.

What stands between a response and the server has to do with its head. A stream that went through all of it would
wake ten functions for each token."""


class StreamBroken(Exception):
    """What a stream has sent does not hold: its client has to read it again."""


class EventStream(Response):
    """A response that sends batches of events until they end, the client goes away or the server is `ending`.

    `batches` yields the bytes of those that are ready; an empty batch becomes a comment, which keeps proxies from
    hanging up. `cut` is sent when the server ends and the run goes on; None breaks the connection off instead, for
    clients that take any clean end for the last one. `batches` may raise `StreamBroken`, which breaks it off too.
    `entrance` is open for as long as the stream is, and may refuse it. `on_leave` is called when the client goes away,
    and `on_whole` when it has been sent everything.
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
        """Sends the stream. False: the connection is to be broken off."""
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(send, figures), name="send events")
            leaving = group.create_task(_wait_for_disconnect(receive), name="watch for disconnect")
            ending = group.create_task(_wait_for(self._ending), name="watch for the server's end")
            await asyncio.wait([sending, leaving, ending], return_when=asyncio.FIRST_COMPLETED)
            # A cancelled send has passed its bytes on already: no frame is cut.
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
        """Sends the batches. False: what was sent does not hold."""
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
    """Does the work. False when the server ends before it is done."""
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
"""As many characters become JSON in the time that a value takes which is none: a number, the key of a field."""

JSON = "application/json"


def is_long(value: object) -> bool:
    """Whether it takes more than about a millisecond to make JSON of this. Looks at a thousand values at most."""
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
    """As JSON, with no long call into C: nothing else of the process runs meanwhile."""
    if isinstance(value, list) and is_long(cast("object", value)):
        return b"[%b]" % b",".join(map(in_pieces, cast("list[Any]", value)))
    if isinstance(value, dict) and is_long(cast("object", value)):
        fields = cast("dict[str, Any]", value).items()
        return b"{%b}" % b",".join([b"%b:%b" % (to_json(name), in_pieces(one)) for name, one in fields])
    return to_json(value, inf_nan_mode="null")


async def json_answer(value: Any, status: int = 200) -> Response:
    """The answer with this value, whatever its length."""
    body = await asyncio.to_thread(in_pieces, value) if is_long(value) else in_pieces(value)
    return Response(body, status, media_type=JSON)


def with_long_answers(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The endpoint of a route, whose long answers are responses already. FastAPI would look through each of them, and
    make it JSON, in one go."""

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
