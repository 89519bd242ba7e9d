"""The process of a model that writes the time into its tokens: `python -m bench.model` prints its port.

The last message of a request is its script, as JSON: `{"tokens": 150, "per_second": 30}`, `{"silent": true}` or
`{"call": "wait"}`. Each token is `@<nanoseconds of the monotonic clock>#<its number>`. All processes share that clock,
so a reader knows how long the token took, and by the numbers 0, 1, 2 … that none is missing. The answer to a tool's
result has one token, with the time at which the model called the tool.

It shares its processors with the measured processes. So a connection is a protocol without tasks, tokens are slices of
bytes that are made once, and all tokens that are due at the same time are one write.
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CALL_ID = "call_"
BATCH = 50
"""Tokens per write, without a pace."""


def event(delta: dict[str, Any], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    return _event({"choices": [choice]})


def _event(body: dict[str, Any]) -> bytes:
    whole = {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "bench", **body}
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


BEFORE, AFTER = event({"content": "TOKEN"}).split(b"TOKEN")
USED = _event({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}})


def tokens(first: int, end: int, stamp: int) -> bytes:
    """Returns the events of the tokens from `first` to before `end`, as one HTTP chunk."""
    data = b"".join(b"%b@%d#%d %b" % (BEFORE, stamp, number, AFTER) for number in range(first, end))
    return _chunk(data)


class Conversation(asyncio.Protocol):
    """A client's connection. It sends one answer after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._received = b""
        self._timer: asyncio.Handle | None = None
        self._go_on: Callable[[], None] | None = None
        """Continues an answer when the client has read enough."""
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            go_on()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._received = body[length:]
        self._answer(json.loads(body[:length])["messages"])

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        last = messages[-1]
        if last["role"] == "tool":
            asked_at = int(last["tool_call_id"].removeprefix(CALL_ID))
            self._transport.write(HEAD + tokens(0, 1, asked_at) + _end())
            return
        wanted = json.loads(last["content"])
        if "call" in wanted:
            function = {"name": wanted["call"], "arguments": "{}"}
            call = {"index": 0, "id": f"{CALL_ID}{time.monotonic_ns()}", "type": "function", "function": function}
            self._transport.write(HEAD + _chunk(event({"tool_calls": [call]})) + _end("tool_calls"))
            return
        self._transport.write(HEAD)
        count, per_second = wanted.get("tokens", 0), wanted.get("per_second")
        if wanted.get("silent"):
            return
        if per_second:
            self._play(0, count, self._loop.time(), per_second)
        else:
            self._pour(0, count)

    def _play(self, sent: int, count: int, began: float, per_second: float) -> None:
        """Writes the due tokens, and schedules itself for the next one."""
        due = min(count, int((self._loop.time() - began) * per_second + 1e-6) + 1)
        if due > sent:
            self._transport.write(tokens(sent, due, time.monotonic_ns()))
        if due >= count:
            self._transport.write(_end())
            return
        self._timer = self._loop.call_at(began + due / per_second, self._play, due, count, began, per_second)

    def _pour(self, sent: int, count: int) -> None:
        """Writes as fast as the client reads, and yields to other connections after each write."""
        if self._is_full:
            self._go_on = lambda: self._pour(sent, count)
            return
        end = min(count, sent + BATCH)
        self._transport.write(tokens(sent, end, time.monotonic_ns()))
        if end == count:
            self._transport.write(_end())
        else:
            self._timer = self._loop.call_soon(self._pour, end, count)


def _end(reason: str = "stop") -> bytes:
    return _chunk(event({}, finish=reason) + USED + b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Conversation(loop), "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(serve())
