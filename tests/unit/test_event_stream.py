"""How a stream of events leaves the application."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext

from starlette.types import Message, Receive, Scope, Send

from api.event_stream import EventStream
from api.every_answer import ClientSide


async def frames() -> AsyncGenerator[bytes]:
    yield b"data: 1\n\n"
    yield b"data: 2\n\n"


async def never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def stream() -> EventStream:
    return EventStream(frames, asyncio.Event(), cut=b"", entrance=lambda _: nullcontext())


class Between:
    """What stands between the stream and the server, as middleware does."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            self.passed.append(message["type"])
            await send(message)

        await stream()(scope, receive, noted)


async def test_each_token_went_through_ten_functions_on_its_way_out() -> None:
    between, sent = Between(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    await ClientSide(between)({"type": "http", "method": "GET", "headers": []}, never, send)
    assert between.passed == ["http.response.start"]
    assert sent[0]["type"] == "http.response.start"
    assert b"".join(message["body"] for message in sent[1:]) == b"data: 1\n\ndata: 2\n\n"
    assert not sent[-1]["more_body"]


async def test_a_stream_leaves_a_server_that_noted_no_way_out() -> None:
    between, sent = Between(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    await between({"type": "http"}, never, send)
    assert len(between.passed) == len(sent) == 4
