"""What measures: a client that costs little itself, so that the figures are the product's.

Streams are read from a bare socket and searched for what is measured; an HTTP library takes longer to hand a frame over
than the product takes to send it.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

STAMP = re.compile(rb"@(\d{10,}) ")
SEQ = re.compile(rb"^id: (\d+)$", re.MULTILINE)
END = b"data: [DONE]"
KEEP = 64
"""Bytes of the last read that are looked at again: a stamp may be cut in two."""

WAIT_TOOL = 'def wait() -> str:\n    """Waits."""\n    import time\n    time.sleep(600)\n    return "never"\n'


@dataclass
class Watched:
    """A stream, and when what was seen in it. Times are seconds of the monotonic clock."""

    opened_at: float
    first_token_at: float = 0.0
    ended_at: float = 0.0
    delays: list[float] = field(default_factory=list[float])
    last_seq: int = 0
    run_id: str = ""
    seen: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, data: bytes) -> None:
        now = time.monotonic_ns()
        text = self.seen + data
        end = 0
        for stamp in STAMP.finditer(text):
            self.delays.append((now - int(stamp[1])) / 1e9)
            end = stamp.end()
        if self.delays and not self.first_token_at:
            self.first_token_at = now / 1e9
        if END in text:
            self.ended_at = now / 1e9
        if not self.run_id and (found := re.search(rb'"run_id":"(run-[^"]+)"', text)):
            self.run_id = found[1].decode()
        for seq in SEQ.finditer(text):
            self.last_seq = int(seq[1])
        # Before the run's id was seen nothing is thrown away.
        self.seen = text[max(end, len(text) - KEEP) :] if self.run_id else text
        self.changed.set()

    async def until(self, ready: str) -> None:
        """Waits for an attribute to become true."""
        while not getattr(self, ready):
            self.changed.clear()
            await self.changed.wait()


class Client:
    """A client of one deployment."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def agent(self, *tool_ids: str) -> str:
        body = {"name": f"bench-{uuid4().hex[:8]}", "model": "openai/bench", "tool_ids": tool_ids}
        answer = await self.http.post("/v1/agents/", json={**body, "include_base_tools": False})
        return answer.raise_for_status().json()["id"]

    async def tool(self) -> str:
        answer = await self.http.put("/v1/tools/", json={"source_code": WAIT_TOOL})
        return answer.raise_for_status().json()["id"]

    async def submit(self, agent_id: str, **wish: Any) -> str:
        body = {"input": json.dumps(wish), "stream_tokens": True}
        answer = await self.http.post(f"/v1/agents/{agent_id}/messages/async", json=body)
        return answer.raise_for_status().json()["id"]

    async def cancel(self, run_id: str) -> None:
        (await self.http.post(f"/v1/runs/{run_id}/cancel")).raise_for_status()

    async def status(self, run_id: str) -> str:
        return (await self.http.get(f"/v1/runs/{run_id}")).json()["status"]

    def send(self, agent_id: str, **wish: Any):
        """The stream of a new run, read in the background for the block."""
        body = {"input": json.dumps(wish), "streaming": True, "stream_tokens": True, "background": True}
        return self._watching(f"/v1/agents/{agent_id}/messages", body)

    def resume(self, run_id: str, after: int):
        """The stream of a run from a cursor on."""
        return self._watching(f"/v1/runs/{run_id}/stream", {"starting_after": after})

    @asynccontextmanager
    async def _watching(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Watched]:
        content = json.dumps(body).encode()
        host = self.http.base_url.netloc
        reader, writer = await asyncio.open_connection(self.http.base_url.host, self.http.base_url.port)
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        watched = Watched(time.monotonic())
        writer.write(head % (path.encode(), host, len(content)) + content)
        reading = asyncio.create_task(_read(reader, watched))
        try:
            yield watched
        finally:
            reading.cancel()
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, watched: Watched) -> None:
    while not watched.ended_at and (data := await reader.read(1 << 16)):
        watched.take(data)
