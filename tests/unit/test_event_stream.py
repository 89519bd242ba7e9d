"""How a stream of events leaves the application."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from api.access.callers import DEFAULT_PROJECT, Caller, Credential
from api.event_stream import KEEP_ALIVE, EventStream, ServerEnd, StreamBroken
from api.http_exchange import Exchange
from api.request_log import StreamStats
from shared.concurrency import LeanEvent, background
from shared.domain.api_keys import EVERYTHING
from tests.kit.keys import credential_of
from tests.kit.wait_until import wait_until

FRAMES = b"data: 1\n\n", b"data: 2\n\n"


async def frames() -> AsyncGenerator[bytes]:
    for frame in FRAMES:
        yield frame


class Sink(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: Any) -> None:
        self.sent.append(data)

    def close(self) -> None:
        """The answers here end with their connection."""


class Carried:
    """A connection with one request of a client without chunks, who reads a stream as it is."""

    def __init__(self) -> None:
        self.sink, self.server_state = Sink(), ServerState()
        self.transport: asyncio.Transport = self.sink
        self.is_write_paused = self.is_broken_off = self.has_forgotten = self.has_answered = False
        self.scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.0",
            "method": "GET",
            "path": "/stream",
            "headers": [(b"host", b"localhost")],
            "state": {},
        }
        self.exchange = Exchange(self, self.scope, keep_alive=False, expectation=b"")

    async def drain(self) -> None:
        """Its client reads everything at once."""

    def resume_reading(self) -> None:
        """Its client sends nothing more."""

    def forget_request(self, exchange: Exchange) -> None:
        self.has_forgotten = exchange is self.exchange

    def answered(self, exchange: Exchange) -> None:
        self.has_answered = exchange is self.exchange

    def break_off_answer(self, exchange: Exchange) -> None:
        self.is_broken_off = exchange is self.exchange
        exchange.client_leaves()

    async def ask(self, app: Callable[[Scope, Receive, Send], Any]) -> None:
        await self.exchange.run(app)

    def body(self) -> bytes:
        return b"".join(self.sink.sent[1:])


class Between:
    """What stands between the stream and the server, as middleware does."""

    def __init__(self, stream: EventStream) -> None:
        self.passed: list[str] = []
        self.has_returned = False
        self.stats: StreamStats | None = None
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            self.passed.append(message["type"])
            await send(message)

        await self._stream(scope, receive, noted)
        self.stats = scope["state"][StreamStats.KEY]
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
    between, carried = Between(stream()), Carried()
    await carried.ask(between)
    assert between.passed == ["http.response.start"]
    assert carried.sink.sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert carried.body() == b"".join(FRAMES)
    assert carried.has_answered


async def test_a_stream_that_was_broken_off_was_logged_as_whole() -> None:
    async def batches() -> AsyncGenerator[bytes]:
        yield FRAMES[0]
        raise StreamBroken

    between, carried = Between(stream(batches)), Carried()
    await carried.ask(between)
    assert carried.is_broken_off
    assert between.stats is not None
    assert (between.stats.frames, between.stats.end) == (1, "broken")
    assert carried.body() == FRAMES[0]


async def test_an_idle_reader_kept_its_request_and_what_stood_around_it() -> None:
    source, carried = Source(), Carried()
    between = Between(stream(source.batches))
    async with background(carried.ask(between), name="read"):
        await wait_until(lambda: between.has_returned and carried.body(), description="the first event")
        assert (carried.scope, carried.has_forgotten) == ({}, True)
        source.news.set()
        await wait_until(lambda: carried.has_answered, description="the end")
    assert carried.body() == b"".join(FRAMES)


async def test_an_idle_stream_ends_with_its_client() -> None:
    source, carried, left = Source(), Carried(), list[str]()

    async def leave() -> None:
        left.append("left")

    between = Between(stream(source.batches, on_leave=leave))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(carried.ask(between), name="read")
        await wait_until(carried.body, description="the first event")
        carried.exchange.client_leaves()
        await task
    assert (source.has_ended, left, carried.body()) == (True, ["left"], FRAMES[0])
    assert between.stats is not None
    assert between.stats.end == "client_left"
    assert task.cancelling() == 0


@pytest.mark.parametrize("cut", [b"data: cut\n\n", None])
async def test_an_idle_stream_ends_with_its_server(cut: bytes | None) -> None:
    source, carried, ending = Source(), Carried(), ServerEnd()
    between = Between(stream(source.batches, ending, cut=cut))
    async with asyncio.TaskGroup() as group:
        group.create_task(carried.ask(between), name="read")
        await wait_until(carried.body, description="the first event")
        ending.set()
    assert source.has_ended
    assert carried.is_broken_off == (cut is None)
    assert carried.body() == FRAMES[0] + (cut or b"")
    assert between.stats is not None
    assert between.stats.end == "server_ending"
    assert not ending.streams


async def test_an_idle_stream_outlived_the_key_that_had_opened_it() -> None:
    sources, ending = {"revoked": Source(), "valid": Source()}, ServerEnd()
    asked = {key_id: Carried() for key_id in sources}
    keys = {key_id: Caller(DEFAULT_PROJECT, key_id, EVERYTHING) for key_id in sources}

    async def still_hold(credential: Credential) -> bool:
        return credential == credential_of(keys["valid"])

    async with asyncio.TaskGroup() as group:
        for key_id, carried in asked.items():
            carried.scope["state"]["caller"] = keys[key_id]
            group.create_task(carried.ask(stream(sources[key_id].batches, ending)), name=key_id)
        await wait_until(lambda: all(one.body() for one in asked.values()), description="the first events")
        await ending.of_ended_keys(still_hold)
        await wait_until(lambda: sources["revoked"].has_ended, description="the stream of the revoked key to end")
        assert not sources["valid"].has_ended
        sources["valid"].news.set()
    assert asked["revoked"].is_broken_off
    assert asked["valid"].body() == b"".join(FRAMES)


async def test_a_stream_that_begins_when_its_server_has_ended_is_cut_at_once() -> None:
    carried, ending = Carried(), ServerEnd()
    ending.set()
    await carried.ask(Between(stream(frames, ending)))
    assert carried.body() == b"cut"


async def test_a_task_that_is_cancelled_is_not_taken_for_one_whose_client_left() -> None:
    source, carried, left = Source(), Carried(), list[str]()

    async def leave() -> None:
        left.append("left")

    task = asyncio.create_task(carried.ask(Between(stream(source.batches, on_leave=leave))), name="read")
    await wait_until(carried.body, description="the first event")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.has_ended, left) == (True, [])


async def test_a_silence_is_a_comment() -> None:
    async def silent() -> AsyncGenerator[bytes]:
        yield b""

    carried = Carried()
    await carried.ask(Between(stream(silent)))
    assert carried.body() == KEEP_ALIVE
