"""Answers that take long to send: streams of server-sent events, and JSON that a thread makes piece by piece.

A stream sends its body itself. It sends all ready events at once, each send waits for the client's socket, and the
stream notices at once when its client disconnects. A reader costs its socket and one batch of events.

A long list (an agent with its tools and memory, a page of messages) takes a second or more to become JSON. A thread
makes it, so that the event loop serves other requests meanwhile.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Literal, Protocol, cast

import structlog
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.access.callers import Caller, Credential
from api.request_log import StreamStats
from shared.concurrency import LONG_DATA
from shared.sql.paging import Page, refuse_part

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no", "content-type": "text/event-stream; charset=utf-8"}
FRAME_END = b"\n\n"
KEEP_ALIVE = b": keep-alive\n"

KEEP_ALIVE_BYTES = "keep_alive_bytes"
"""Key in a request's state: filler bytes that the server may send between any two pieces of the answer."""

ENDS_WITH_CLIENT = "ends_with_client"
"""Key in a request's state: the request's work ends if its client disconnects before the answer begins."""


class StreamBroken(Exception):
    """Frames already sent are no longer valid; the client has to read the stream again."""


class ServerEnd(asyncio.Event):
    """Set when this process ends. `set` stops the open streams itself, so that no stream needs a task that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: set[OpenStream] = set()

    def set(self) -> None:
        """See `asyncio.Event`."""
        super().set()
        for stream in list(self.streams):
            stream.stop("server_ending")

    async def of_ended_keys(self, still_hold: Callable[[Credential], Awaitable[bool]]) -> None:
        """Breaks off the streams whose callers' keys are no longer valid. Streams may be open for days."""
        for credential in {stream.credential for stream in self.streams}:
            if credential is not None and not await still_hold(credential):
                for stream in [stream for stream in self.streams if stream.credential == credential]:
                    stream.stop("key_ended")


class Connection(Protocol):
    """The connection of one request, as a stream uses it. The request's state has it under `CONNECTION`."""

    @property
    def is_left(self) -> bool:
        """Whether the client needs no more bytes: it has left, or the answer is complete, as for a HEAD."""
        ...

    async def send(self, message: Message) -> None:
        """Sends a piece of the answer, past the middlewares: they change only the head, and would cost a stream ten
        function calls for each token."""
        ...

    def watch(self, on_left: Callable[[], None] | None) -> None:
        """Calls `on_left` when the client leaves. None: removes it."""
        ...

    def hand_over(self, rest: "OpenStream") -> None:
        """Takes the rest of an answer whose head was sent. The server sends it after the application has returned."""
        ...

    def break_off(self) -> None:
        """Closes the connection in the middle of the answer."""
        ...


CONNECTION = "connection"

StopReason = Literal["client_left", "server_ending", "key_ended"]

Failure = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
"""A failure in the form of `sys.exc_info`."""


class EventStream(Response):
    """A response that sends batches of events until they end, the client disconnects or the server is `ending`.

    `batches` yields the bytes of the events that are ready. An empty batch becomes a comment, which keeps proxies from
    closing the connection. `cut` is sent when the server ends before the run does; with None the response breaks off
    the connection instead, for clients that take any clean end for the end of the stream. `batches` may raise
    `StreamBroken`, which breaks off the connection too. `entrance` is open for as long as the stream, and may refuse
    it. `on_leave` is called when the client disconnects, and `on_whole` after the last event was sent.

    The response itself sends only the head. A stream may last for days, and is idle for most of that time: the
    middlewares' frames, the request and all that these refer to would use most of its memory. So the middlewares
    return, and the server sends the rest (`OpenStream`).
    """

    def __init__(
        self,
        batches: Callable[[], AsyncGenerator[bytes]],
        ending: ServerEnd,
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
        state = scope["state"]
        connection: Connection = state[CONNECTION]
        stats = state[StreamStats.KEY] = StreamStats()
        state[KEEP_ALIVE_BYTES] = KEEP_ALIVE
        entered = self._entrance(scope)
        await entered.__aenter__()
        caller: Caller | None = state.get("caller")
        rest = OpenStream(
            pieces=self._batches(),
            credential=None if caller is None else Credential(caller.key_id, caller.proof),
            ending=self._ending,
            cut=self._cut,
            on_leave=self._on_leave,
            on_whole=self._on_whole,
            connection=connection,
            stats=stats,
            entered=entered,
            asked=f"{scope['method']} {scope['path']}",
            variables=copy_context(),
        )
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        except BaseException:
            await entered.__aexit__(*sys.exc_info())
            raise
        stats.is_open = True
        connection.hand_over(rest)


@dataclass(slots=True, eq=False, kw_only=True)
class OpenStream:
    """The rest of a stream after its head. Only the server's own layer around the application calls it, once."""

    pieces: AsyncGenerator[bytes]
    credential: Credential | None
    """The credential of its caller. None where requests need no caller."""
    ending: ServerEnd
    cut: bytes | None
    on_leave: Callable[[], Awaitable[None]] | None
    on_whole: Callable[[], Awaitable[None]] | None
    connection: Connection
    stats: StreamStats
    entered: AbstractAsyncContextManager[None]
    asked: str
    """The request, for the log."""
    variables: Context | None
    """The request's context variables. The middlewares reset them when they return."""
    stopped: StopReason | None = None
    """The reason why the stream ends before its last event."""
    is_broken: bool = False
    """Frames already sent are no longer valid."""
    task: "asyncio.Task[object] | None" = None
    """The task that sends, while the stream may be stopped."""

    async def __call__(self) -> None:
        """Sends the rest. One coroutine does everything, because thousands of idle streams wait in it."""
        self._begin()
        try:
            if self.stopped is None:
                async for body in self.pieces:
                    await self._send(body)
                    del body  # it may be long, and the next one may arrive tomorrow
                await self.connection.send({"type": "http.response.body", "body": b"", "more_body": False})
        except StreamBroken:
            self.is_broken = True
        except asyncio.CancelledError:
            if not self._is_stop():
                raise
        except Exception:
            log.exception("request_failed", request=self.asked)
            raise
        finally:
            await self._end(sys.exc_info())

    def _begin(self) -> None:
        _restore(self.variables)
        self.variables = None
        if self.connection.is_left:
            self.stopped = "client_left"
        elif self.ending.is_set():
            self.stopped = "server_ending"
        self.task = asyncio.current_task()
        self.connection.watch(self.client_leaves)
        self.ending.streams.add(self)

    async def _send(self, body: bytes) -> None:
        self.stats.frames += body.count(FRAME_END)
        await self.connection.send({"type": "http.response.body", "body": body or KEEP_ALIVE, "more_body": True})
        if self.stopped is not None:
            raise asyncio.CancelledError  # code in between has caught the cancellation of `stop`

    def _is_stop(self) -> bool:
        """Whether only `stop` has cancelled the task. This cuts no frame: sent frames are in the transport already."""
        task, self.task = self.task, None
        return self.stopped is not None and not (task is not None and task.uncancel())

    async def _end(self, failure: Failure) -> None:
        """Ends the stream after its last event, after it was stopped, or after a failure."""
        self.task, is_whole = None, True
        self.connection.watch(None)
        self.ending.streams.discard(self)
        try:
            try:
                await self.pieces.aclose()
                is_whole = failure[0] is not None or await self._conclude()
            finally:
                await self.entered.__aexit__(*failure)
        except Exception:
            log.exception("request_failed", request=self.asked)
            raise
        finally:
            self.stats.has_ended()
        if not is_whole:
            self.connection.break_off()

    async def _conclude(self) -> bool:
        """Ends the answer. Returns False if the connection must be broken off."""
        if self.is_broken:
            self.stats.end = "broken"
            return False
        if self.stopped is None:
            self.stats.end = "whole"
            if self.on_whole is not None:
                await self.on_whole()
            return True
        self.stats.end = self.stopped
        if self.stopped == "client_left" and self.on_leave is not None:
            await self.on_leave()
        if self.stopped == "key_ended" or (self.stopped == "server_ending" and self.cut is None):
            return False
        if self.stopped == "server_ending":
            await self.connection.send({"type": "http.response.body", "body": self.cut, "more_body": False})
        return True

    def client_leaves(self) -> None:
        """The connection calls this when the client leaves."""
        self.stop("client_left")

    def stop(self, why: StopReason) -> None:
        """Ends the stream before its last event."""
        if self.stopped is None and self.task is not None:
            self.stopped = why
            self.task.cancel()


def _restore(variables: Context | None) -> None:
    """Sets the context variables of the present task to these values."""
    for variable, value in (variables or Context()).items():
        if variable.get(None) is not value:
            variable.set(value)


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
"""Characters that become JSON in the time of one value without text, such as a number or a key."""

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


async def json_answer(value: Any) -> Response:
    """An answer with this value, short or long."""
    body = await asyncio.to_thread(in_pieces, value) if is_long(value) else in_pieces(value)
    return Response(body, media_type=JSON)


def with_long_answers(endpoint: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The endpoint of a route, which returns long answers as responses. FastAPI would validate and render each of them
    in one blocking call."""

    @wraps(endpoint)
    async def answered(**values: Any) -> Any:
        value = await endpoint(**values)
        if isinstance(page := values.get("page"), Page) and page.is_whole:
            refuse_part(value)
        if isinstance(value, Response) or not is_long(value):
            return value
        answer = await json_answer(value)
        for given in values.values():
            if isinstance(given, Response):
                answer.headers.raw.extend(given.headers.raw)
        return answer

    return answered
