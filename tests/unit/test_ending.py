"""A request that the server cancels at its end is answered, if nothing of its answer is out yet."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.every_answer import EveryAnswer
from tests.kit.product.refusing import refusing_app

SCOPE: Scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "app": refusing_app()}


async def never() -> Message:
    return await asyncio.get_running_loop().create_future()


async def cancelled(app: Any) -> list[Message]:
    """What was sent when the application was cancelled in the middle of its work."""
    sent: list[Message] = []
    working = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)

    async def request() -> None:
        working.set()
        await EveryAnswer(app)(SCOPE, never, send)

    task = asyncio.ensure_future(request())
    await working.wait()
    await asyncio.wait([task], timeout=0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return sent


async def test_a_request_without_an_answer_gets_a_503() -> None:
    """It was a bare 500, which says that the server is broken."""

    async def waits(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()

    begin, body = await cancelled(waits)
    assert begin["status"] == 503
    assert (b"retry-after", b"2") in begin["headers"]
    assert b"this server is ending" in body["body"]


async def test_an_answer_that_has_begun_is_left_alone() -> None:
    async def begins(_scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    [begin] = await cancelled(begins)
    assert begin["status"] == 200
