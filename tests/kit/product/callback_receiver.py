"""A receiver of callbacks: a local HTTP server that stores its requests and answers as the test asks."""

import asyncio
import json
import ssl
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from tests.kit.model_server.http_exchange import HttpRequest, read_request, write_json
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until


@dataclass(frozen=True)
class ReceivedCallback:
    """One request."""

    path: str
    headers: dict[str, str]
    content: bytes
    written: tuple[str, ...]

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.content)


@dataclass
class CallbackReceiver:
    """Serves while its `async with` block is open. Answers 200 unless other answers are queued."""

    tls: ssl.SSLContext | None = None
    received: list[ReceivedCallback] = field(default_factory=list[ReceivedCallback])
    answer_headers: dict[str, str] = field(default_factory=dict[str, str])
    _answers: deque[int | None] = field(default_factory=deque[int | None])
    port: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(stream_server(self._serve, tls=self.tls))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}/called?by=holdfast"

    def answer(self, *statuses: int | None) -> None:
        """The answers to the next requests; None closes the connection without an answer."""
        self._answers.extend(statuses)

    async def called(self, times: int = 1) -> ReceivedCallback:
        """Waits until this many requests have arrived. Returns the latest."""
        await wait_until(lambda: len(self.received) >= times, description=f"callback number {times}")
        return self.received[times - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                if not await self._answer(request, writer):
                    break
        finally:
            writer.close()

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        status = self._answers.popleft() if self._answers else 200
        if status is not None:
            write_json(writer, status, {"thanks": True}, self.answer_headers)
            await writer.drain()
        self.received.append(ReceivedCallback(request.path, request.headers, request.content, request.written))
        return status is not None
