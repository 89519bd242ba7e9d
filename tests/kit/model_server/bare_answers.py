"""Answers of every provider protocol as bytes, for tests of servers that cut, change, frame or end them otherwise."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tests.kit.model_server import Turn, anthropic_messages, gemini, openai_chat, openai_responses
from tests.kit.model_server.http_exchange import reset
from tests.kit.model_server.model_calls import ADD, ANTHROPIC, CHAT, GOOGLE, RESPONSES, ask, call
from tests.kit.plain_answers import serving
from tests.kit.stream_server import Serving
from tests.kit.wait_until import HANGS_S
from worker.models.provider import ModelEvent
from worker.models.registry import Models

_FRAMES = {
    CHAT: openai_chat.frames,
    RESPONSES: openai_responses.frames,
    ANTHROPIC: anthropic_messages.frames,
    GOOGLE: gemini.frames,
}
_VARIABLES = {
    CHAT: "OPENAI_BASE_URL",
    RESPONSES: "OPENAI_BASE_URL",
    ANTHROPIC: "ANTHROPIC_BASE_URL",
    GOOGLE: "GOOGLE_GEMINI_BASE_URL",
}
_AFTER_REASON = {CHAT: 2, RESPONSES: 0, ANTHROPIC: 1, GOOGLE: 0}
"""The frames after the one with the finish reason."""

EVENTS = "text/event-stream"


def head(content_type: str | None = EVENTS, *, status: str = "200 OK", **headers: str) -> bytes:
    """The head of a response in chunks."""
    named = {} if content_type is None else {"content-type": content_type}
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in {**named, **headers}.items()]
    return f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n{''.join(lines)}\r\n".encode()


def stream_of(handle: str, turn: Turn) -> list[bytes]:
    """The events of an answer."""
    model = handle.partition("/")[2]
    return [frame.data for frame in _FRAMES[handle](turn, {"model": model}, 1)]


def up_to_reason(handle: str, turn: Turn) -> list[bytes]:
    """The events of an answer, up to the one with the finish reason."""
    frames = stream_of(handle, turn)
    return frames[: len(frames) - _AFTER_REASON[handle]]


async def asked_of(handle: str, answer: Serving, *, left: asyncio.Event | None = None, **rest: Any) -> list[ModelEvent]:
    """The model's events when its server answers so; `rest` overrides arguments of `Models`. The server goes on until
    `left`, which is to be set when it has seen that its client left."""
    arguments: dict[str, Any] = {"first_event_timeout": HANGS_S, "idle_timeout": HANGS_S, "retries": 0, **rest}
    async with serving(answer) as server:
        keys = {"OPENAI_API_KEY": "test-key-1", "ANTHROPIC_API_KEY": "test-key-1", "GEMINI_API_KEY": "test-key-1"}
        models = Models(keys | {_VARIABLES[handle]: server.url.rstrip("/")}, **arguments)
        try:
            events = await ask(models, call(handle, tools=[ADD]))
        finally:
            await models.aclose()
        if left is not None:
            await left.wait()
        return events


async def answered(
    handle: str, frames: Sequence[bytes], end: str = "close", *, content_type: str | None = EVENTS, **rest: Any
) -> list[ModelEvent]:
    """The model's events when its server sends these frames, each as a chunk, and ends so: `silence`, `close`,
    `reset`, `no last chunk`, or `last chunk`."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(content_type) + b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames if frame))
        if end == "last chunk":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if end == "reset":
            reset(writer)
        elif end not in ("silence", "last chunk"):
            writer.close()

    return await asked_of(handle, answer, **rest)


async def answered_for_ever(handle: str, frames: Sequence[bytes], again: bytes) -> list[ModelEvent]:
    """The same for a server that sends `again` behind its answer until its client leaves. Returns when it has."""
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head() + b"".join(b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames))
        with suppress(ConnectionError):
            while not await _has_left(reader):
                writer.write(b"%x\r\n%b\r\n" % (len(again), again))
                await writer.drain()
        left.set()

    return await asked_of(handle, answer, left=left)


async def _has_left(reader: asyncio.StreamReader) -> bool:
    """Whether the client hangs up within a moment. It sends only its request."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            while await reader.read(1000):
                pass
        return True
    return False
