"""How a stream of events leaves the application."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.answer_connection import AnswerConnection, WholeAnswers
from api.event_stream import CONNECTION, KEEP_ALIVE, EventStream, ServerEnd, StreamBroken
from api.request_log import StreamFigures
from shared.concurrency import LeanEvent, background
from tests.kit.wait_until import wait_until

FRAMES = b"data: 1\n\n", b"data: 2\n\n"


async def frames() -> AsyncGenerator[bytes]:
    for frame in FRAMES:
        yield frame


async def never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


@dataclass
class Cycle:
    """A request as uvicorn has it."""

    scope: dict[str, Any] = field(
        default_factory=lambda: {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/stream",
            "headers": [(b"host", b"localhost")],
            "state": {},
        }
    )
    disconnected: bool = False
    response_complete: bool = False


class Protocol:
    """A connection as uvicorn has it."""

    def __init__(self) -> None:
        self.cycle, self.sent = Cycle(), list[Message]()
        self.connection = AnswerConnection(self, self.cycle)
        self.cycle.scope["state"][CONNECTION] = self.connection
        self.is_broken_off = False

    def forget_request(self) -> None:
        """See `BoundedHttpProtocol`."""

    def break_off_answer(self, _cycle: Cycle) -> None:
        self.is_broken_off = True

    def leave(self) -> None:
        self.cycle.disconnected = True
        self.connection.leaves()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def ask(self, app: Callable[[Scope, Receive, Send], Any]) -> None:
        await WholeAnswers(app)(self.cycle.scope, never, self.send)

    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


class Between:
    """What stands between the stream and the server, as middleware does."""

    def __init__(self, stream: EventStream) -> None:
        self.passed: list[str] = []
        self.has_returned = False
        self.figures: StreamFigures | None = None
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            self.passed.append(message["type"])
            await send(message)

        await self._stream(scope, receive, noted)
        self.figures = scope["state"][StreamFigures.KEY]
        self.has_returned = True


class Source:
    """The batches of a stream that waits after its first one."""

    def __init__(self) -> None:
        self.news = LeanEvent()
        self.has_ended = False

    async def batches(self) -> AsyncGenerator[bytes]:
        try:
            yield FRAMES[0]
            await self.news.wait()
            yield FRAMES[1]
        finally:
            self.has_ended = True


def stream(
    batches: Callable[[], AsyncGenerator[bytes]] = frames,
    ending: ServerEnd | None = None,
    *,
    cut: bytes | None = b"cut",
    on_leave: Callable[[], Awaitable[None]] | None = None,
) -> EventStream:
    def entrance(_scope: Scope) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    return EventStream(batches, ending or ServerEnd(), cut=cut, entrance=entrance, on_leave=on_leave)


async def test_each_token_went_through_ten_functions_on_its_way_out() -> None:
    between, protocol = Between(stream()), Protocol()
    await protocol.ask(between)
    assert between.passed == ["http.response.start"]
    assert protocol.sent[0]["type"] == "http.response.start"
    assert protocol.body() == b"".join(FRAMES)
    assert not protocol.sent[-1]["more_body"]


async def test_a_stream_that_was_broken_off_was_logged_as_whole() -> None:
    async def batches() -> AsyncGenerator[bytes]:
        yield FRAMES[0]
        raise StreamBroken

    between, protocol = Between(stream(batches)), Protocol()
    await protocol.ask(between)
    assert protocol.is_broken_off
    assert between.figures is not None
    assert (between.figures.frames, between.figures.end) == (1, "broken")
    assert protocol.body() == FRAMES[0]


async def test_an_idle_reader_kept_its_request_and_what_stood_around_it() -> None:
    source, protocol = Source(), Protocol()
    between = Between(stream(source.batches))
    async with background(protocol.ask(between), name="read"):
        await wait_until(lambda: between.has_returned and protocol.body(), description="the first event")
        assert protocol.cycle.scope.keys() == {"type", "http_version", "method", "state"}
        source.news.set()
        await wait_until(lambda: not protocol.sent[-1]["more_body"], description="the end")
    assert protocol.body() == b"".join(FRAMES)


async def test_an_idle_stream_ends_with_its_client() -> None:
    source, protocol, left = Source(), Protocol(), list[str]()

    async def leave() -> None:
        left.append("left")

    between = Between(stream(source.batches, on_leave=leave))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(protocol.ask(between), name="read")
        await wait_until(protocol.body, description="the first event")
        protocol.leave()
        await task
    assert (source.has_ended, left, protocol.body()) == (True, ["left"], FRAMES[0])
    assert between.figures is not None
    assert between.figures.end == "client_left"
    assert task.cancelling() == 0


@pytest.mark.parametrize("cut", [b"data: cut\n\n", None])
async def test_an_idle_stream_ends_with_its_server(cut: bytes | None) -> None:
    source, protocol, ending = Source(), Protocol(), ServerEnd()
    between = Between(stream(source.batches, ending, cut=cut))
    async with asyncio.TaskGroup() as group:
        group.create_task(protocol.ask(between), name="read")
        await wait_until(protocol.body, description="the first event")
        ending.set()
    assert source.has_ended
    assert protocol.is_broken_off == (cut is None)
    assert protocol.body() == FRAMES[0] + (cut or b"")
    assert between.figures is not None
    assert between.figures.end == "server_ending"
    assert not ending.told


async def test_a_stream_that_begins_when_its_server_has_ended_is_cut_at_once() -> None:
    protocol, ending = Protocol(), ServerEnd()
    ending.set()
    await protocol.ask(Between(stream(frames, ending)))
    assert protocol.body() == b"cut"


async def test_a_task_that_is_cancelled_is_not_taken_for_one_whose_client_left() -> None:
    source, protocol, left = Source(), Protocol(), list[str]()

    async def leave() -> None:
        left.append("left")

    task = asyncio.create_task(protocol.ask(Between(stream(source.batches, on_leave=leave))), name="read")
    await wait_until(protocol.body, description="the first event")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.has_ended, left) == (True, [])


async def test_a_silence_is_a_comment() -> None:
    async def silent() -> AsyncGenerator[bytes]:
        yield b""

    protocol = Protocol()
    await protocol.ask(Between(stream(silent)))
    assert protocol.body() == KEEP_ALIVE
