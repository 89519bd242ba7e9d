"""The server itself: it chooses the turn for each request, and plays it."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Self

from tests.kit.model_server import anthropic_messages, gemini, openai_chat, openai_responses
from tests.kit.model_server.http_exchange import (
    HttpRequest,
    read_request,
    reset,
    write_chunk,
    write_json,
    write_stream_head,
)
from tests.kit.model_server.openai_embeddings import EmbeddingAnswers
from tests.kit.model_server.turn import FOREVER, STATUSES, Call, Failure, Frame, Turn
from tests.kit.stream_server import stream_server

Wire = Literal["chat", "responses", "anthropic", "google"]

_WIRES: dict[Wire, ModuleType] = {
    "chat": openai_chat,
    "responses": openai_responses,
    "anthropic": anthropic_messages,
    "google": gemini,
}

_HOSTED = ("AZURE", "DEEPSEEK", "GROQ", "MINIMAX", "MISTRAL", "TOGETHER", "XAI", "ZAI")
"""Providers whose variables are named after them."""

_GARBAGE = b'data: {"this is": not JSON\n\n'


@dataclass
class ReceivedRequest:
    """A request, and its outcome. Times are those of the event loop."""

    wire: Wire
    model: str
    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    """With its query."""
    turn: Turn
    pieces_sent: int = 0
    finished: bool = False
    """The turn was played to its end, good or bad."""
    client_left_at: float | None = None

    @property
    def client_left(self) -> bool:
        """The client closed the connection while the turn was played."""
        return self.client_left_at is not None


def _say_ok(_: ReceivedRequest) -> Turn:
    return Turn(text="OK.")


@dataclass
class ModelServer:
    """Serves while its `async with` block is open."""

    requests: list[ReceivedRequest] = field(default_factory=list[ReceivedRequest])
    """All requests so far, in the order of their arrival."""
    embeddings: EmbeddingAnswers = field(default_factory=EmbeddingAnswers)
    """The embedding model at `/embeddings`, whose requests are not among `requests`."""
    connections_accepted: int = 0
    _queue: deque[Turn] = field(default_factory=deque[Turn])
    _choose: Callable[[ReceivedRequest], Turn] = field(default=_say_ok)
    _port: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self._port = await self._stack.enter_async_context(stream_server(self._serve))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self._port}"

    def base_urls(self) -> dict[str, str]:
        """The environment with which every provider leads here."""
        return {
            "OPENAI_API_KEY": "test-openai",
            "OPENAI_BASE_URL": f"{self.origin}/v1",
            "ANTHROPIC_API_KEY": "test-anthropic",
            "ANTHROPIC_BASE_URL": self.origin,
            "GEMINI_API_KEY": "test-gemini",
            "GOOGLE_GEMINI_BASE_URL": self.origin,
            "OPENROUTER_API_KEY": "test-openrouter",
            "OPENROUTER_BASE_URL": f"{self.origin}/v1",
            "OLLAMA_BASE_URL": self.origin,
            "VLLM_BASE_URL": f"{self.origin}/v1",
            "LMSTUDIO_BASE_URL": f"{self.origin}/v1",
            "OPENAI_COMPATIBLE_BASE_URL": f"{self.origin}/v1",
            **{f"{name}_BASE_URL": self.origin for name in _HOSTED},
            **{f"{name}_API_KEY": f"test-{name.lower()}" for name in _HOSTED},
        }

    def forget(self) -> None:
        """Forgets the requests and the queued answers before another test. Connections stay open."""
        self.requests = []
        self.embeddings = EmbeddingAnswers()
        self._queue.clear()
        self._choose = _say_ok

    def play(self, *turns: Turn) -> None:
        """Queue turns for the next requests."""
        self._queue.extend(turns)

    def say(self, text: str, **rest: Any) -> None:
        """Queue a turn of text; the rest as in `Turn`."""
        self.play(Turn(text=text, **rest))

    def call(self, name: str, /, **arguments: Any) -> None:
        """Queue a turn that calls one tool."""
        self.play(Turn(calls=[Call(name, arguments)]))

    def fail(self, kind: Literal["rate_limit", "auth", "server", "overloaded", "context"], **headers: str) -> None:
        """Queue an HTTP error; `retry_after="1"` becomes the header `retry-after: 1`."""
        self.play(Turn(failure=Failure(kind, headers={key.replace("_", "-"): value for key, value in headers.items()})))

    def answer_with(self, choose: Callable[[ReceivedRequest], Turn]) -> None:
        """The function that makes a turn when none is queued."""
        self._choose = choose

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_accepted += 1
        try:
            with suppress(ConnectionError):
                while (request := await read_request(reader)) is not None:
                    if not await self._exchange(request, reader, writer):
                        break
        finally:
            writer.close()

    async def _exchange(self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection can take another."""
        if request.path.endswith("/embeddings"):
            status, body = await self.embeddings.answer(request)
            write_json(writer, status, body, {})
            await writer.drain()
            return True
        received = self._receive(request)
        if received is None:
            write_json(writer, 404, {"error": {"message": f"no such path: {request.path}"}}, {})
            await writer.drain()
            return True
        answer = _Answer(received, writer, len(self.requests))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_client_left(reader))
            playing = tasks.create_task(answer.play())
            await asyncio.wait([watching, playing], return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                received.client_left_at = asyncio.get_running_loop().time()
            watching.cancel()
            playing.cancel()
        received.finished = not received.client_left
        return received.finished and answer.keeps_connection

    def _receive(self, request: HttpRequest) -> ReceivedRequest | None:
        body: dict[str, Any] = json.loads(request.content or b"{}")
        model = str(body.get("model", ""))
        match request.path.partition("?")[0].split("/"):
            case [*_, "chat", "completions"]:
                wire: Wire = "chat"
            case [*_, "responses"]:
                wire = "responses"
            case [*_, "messages"]:
                wire = "anthropic"
            case [*_, "models", last] if last.endswith(":streamGenerateContent"):
                wire, model = "google", last.partition(":")[0]
            case _:
                return None
        received = ReceivedRequest(wire, model, body, request.headers, request.path, turn=Turn())
        received.turn = self._queue.popleft() if self._queue else self._choose(received)
        self.requests.append(received)
        return received


@dataclass
class _Answer:
    """One turn on its way out."""

    request: ReceivedRequest
    writer: asyncio.StreamWriter
    number: int
    keeps_connection: bool = True

    async def play(self) -> None:
        try:
            await self._play()
        except ConnectionError:
            self.request.client_left_at = asyncio.get_running_loop().time()

    async def _play(self) -> None:
        turn, wire = self.request.turn, _WIRES[self.request.wire]
        await self._silence(turn.silent_before_headers)
        if turn.failure is not None:
            status = turn.failure.status or STATUSES[turn.failure.kind]
            if turn.failure.kind == "overloaded" and self.request.wire == "anthropic":
                status = 503
            body = wire.error_body(turn.failure.kind, status, turn.failure.message)
            write_json(self.writer, status, body, turn.failure.headers)
        elif self.request.wire == "chat" and not self.request.body.get("stream"):
            await self._silence(turn.silent_after_headers)
            write_json(self.writer, 200, openai_chat.whole(turn, self.request.body, self.number), {})
        else:
            write_stream_head(self.writer)
            raw = (Frame("piece", chunk) for chunk in turn.raw)
            await self._stream(raw if turn.raw else wire.frames(turn, self.request.body, self.number))
        if not self.writer.transport.is_closing():
            await self.writer.drain()

    async def _stream(self, frames: Iterator[Frame]) -> None:
        turn, opened = self.request.turn, False
        for frame in frames:
            if frame.kind != "opening" and not opened:
                opened = True
                await self.writer.drain()
                await self._silence(turn.silent_after_headers)
            if frame.kind != "opening" and self._break_is_due() and not self._break():
                return
            if frame.kind == "piece":
                await self._silence(FOREVER if self.request.pieces_sent == turn.silent_after else turn.pace)
                self.request.pieces_sent += 1
            write_chunk(self.writer, frame.data)
            await self.writer.drain()
        write_chunk(self.writer, b"")

    async def _silence(self, seconds: float) -> None:
        resume = self.request.turn.resume
        if resume is None:
            await asyncio.sleep(seconds)
        elif seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(resume.wait(), seconds)

    def _break_is_due(self) -> bool:
        return self.request.turn.break_ is not None and self.request.pieces_sent == self.request.turn.break_after

    def _break(self) -> bool:
        """Play the failure. Returns whether the stream goes on after it."""
        match self.request.turn.break_:
            case "garbage":
                write_chunk(self.writer, _GARBAGE)
                return True
            case "garbage_only":
                write_chunk(self.writer, _GARBAGE)
                write_chunk(self.writer, b"")
            case "error_event":
                write_chunk(self.writer, _WIRES[self.request.wire].error_event("The model broke down on the way."))
                write_chunk(self.writer, b"")
            case "drop":
                self.keeps_connection = False
                self.writer.close()
            case "reset":
                self.keeps_connection = False
                reset(self.writer)
            case _:
                write_chunk(self.writer, b"")
        return False


async def _client_left(reader: asyncio.StreamReader) -> None:
    """Returns when the client hangs up. It sends nothing while it waits for its answer, so any read is the end."""
    with suppress(ConnectionError):
        await reader.read(1)
