"""The measuring client. It costs little itself, so that the figures are the product's.

It reads streams from a bare socket and searches the bytes for tokens, because an HTTP library takes longer to deliver a
frame than the product to send it. Short requests use kept connections.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

STAMP = re.compile(rb"@(\d{10,})#(\d+) ")
SEQ = re.compile(rb"\nid: (\d+)\n")
RUN_ID = re.compile(rb'"run_id":"(run-[^"]+)"')
END = b"data: [DONE]"
TEXT_ENDS = b"event: response.output_text.done"
KEEP = 300
"""Bytes of the last read that are searched again, because a stamp or a run's id may be split."""
LONGEST_S = 180.0
"""Seconds after which an awaited event counts as lost. Every section waits for less."""
KEPT_S = 2.0
"""Seconds for which an unused connection is reused; the server closes it some time later."""

WAIT_TOOL = 'def wait() -> str:\n    """Waits."""\n    import time\n    time.sleep(600)\n    return "never"\n'
QUICK_TOOL = 'def quick() -> str:\n    """Returns at once."""\n    return "done"\n'

_NAMES = count()


class Refused(Exception):
    """The server answered with an error, or closed the stream before its end."""


@dataclass
class Watched:
    """A stream, and the times of its events. Times are seconds of the monotonic clock."""

    end: ClassVar[bytes] = END
    """Bytes that only the stream's end contains."""
    opened_at: float
    status: int = 0
    first_token_at: float = 0.0
    ended_at: float = 0.0
    delays: list[float] = field(default_factory=list[float])
    """For each token: from the model's write to the client's read."""
    expected: int = 0
    """The number of the next token; -1 before the first one of a stream that is joined in the middle."""
    disorder: str = ""
    """The first token that was not the expected one."""
    last_token_at: float = 0.0
    longest_silence: float = 0.0
    """Seconds between two tokens. Set it to 0 to measure again."""
    last_seq: int = 0
    run_id: str = ""
    seen: bytes = b""
    is_closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, data: bytes) -> None:
        """Takes bytes of the stream."""
        now = time.monotonic_ns()
        text = self.seen + data
        if not self.status and len(text) >= len("HTTP/1.1 200"):
            self.status = int(text[9:12])
        end = self._take_tokens(text, now)
        if self.end in text:
            self.ended_at = now / 1e9
        if (last := text.rfind(b"\nid: ")) >= 0 and (seq := SEQ.match(text, last)):
            self.last_seq = int(seq[1])
        if not self.run_id and (found := RUN_ID.search(text)):
            self.run_id = found[1].decode()
        self.seen = text[max(end, len(text) - KEEP) :]
        self.changed.set()

    def _take_tokens(self, text: bytes, now: int) -> int:
        """Takes the tokens in a text. Returns where the last one ends, or 0."""
        end = 0
        for stamp in STAMP.finditer(text):
            self.delays.append((now - int(stamp[1])) / 1e9)
            number = int(stamp[2])
            if number != self.expected >= 0 and not self.disorder:
                self.disorder = f"token {number} came where {self.expected} was due"
            self.expected = number + 1
            end = stamp.end()
        if end:
            seconds = now / 1e9
            if self.first_token_at:
                self.longest_silence = max(self.longest_silence, seconds - self.last_token_at)
            else:
                self.first_token_at = seconds
            self.last_token_at = seconds
        return end

    def close(self) -> None:
        """Records the end of the connection."""
        self.is_closed = True
        self.changed.set()

    def fault(self, tokens: int) -> str:
        """Returns the fault of a stream that should have this many tokens; empty if there is none."""
        if self.disorder:
            return f"{self.run_id}: {self.disorder}"
        if len(self.delays) != tokens:
            return f"{self.run_id}: {len(self.delays)} tokens arrived of {tokens}"
        return ""

    async def until(self, ready: str) -> None:
        """Waits for an attribute to become true. Raises `Refused` if the stream ends before."""
        await self._until(lambda: bool(getattr(self, ready)), ready)

    async def until_seq(self, seq: int) -> None:
        """Waits for the event with this number. Raises `Refused` if the stream ends before."""
        await self._until(lambda: self.last_seq >= seq, f"event {seq}")

    async def _until(self, is_there: Callable[[], bool], wanted: str) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                while not is_there():
                    await self._change()
        except TimeoutError:
            raise Refused(f"{self.run_id or 'a run'}: no {wanted} within {LONGEST_S:.0f} s") from None

    async def _change(self) -> None:
        if self.is_closed or self.status >= 300:
            raise Refused(f"status {self.status}: {self.seen!r}")
        self.changed.clear()
        await self.changed.wait()


class WatchedResponse(Watched):
    """The stream of a response. After its tokens it repeats the whole text, in the events that end an item."""

    has_text_again = False

    def _take_tokens(self, text: bytes, now: int) -> int:
        if self.has_text_again:
            return 0
        told, end, _ = text.partition(TEXT_ENDS)
        self.has_text_again = bool(end)
        return super()._take_tokens(told, now)


class WatchedAgUi(Watched):
    """The stream of a run over AG-UI, which ends with an event of its own."""

    end = b'"type":"RUN_FINISHED"'


class _Stream(asyncio.Protocol):
    """Gives received bytes to a `Watched`."""

    def __init__(self, watched: Watched) -> None:
        self.data_received = watched.take
        self._watched = watched

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._watched.close()


@dataclass
class _Connection:
    """A connection that is kept for the next request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0

    async def request(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request. Returns the answer's status and body."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0])
        body = await self.reader.readexactly(length)
        self.used_at = time.monotonic()
        return int(head[9:12]), body


class Client:
    """A client of the deployment on a port of loopback. Its creator closes it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.faults: list[str] = []
        """Streams in which tokens were lost or out of order."""
        self._kept: list[_Connection] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        for connection in self._kept:
            connection.writer.close()

    def check(self, stream: Watched, tokens: int) -> None:
        """Records a fault unless the stream had every token once, in order."""
        if fault := stream.fault(tokens):
            self.faults.append(fault)

    def check_end(self, stream: Watched, tokens: int) -> None:
        """As `check`, of a stream that was joined in the middle."""
        if stream.disorder or stream.expected != tokens:
            self.faults.append(f"{stream.run_id}: {stream.disorder or f'it ended before token {stream.expected}'}")

    async def agent(self, *tool_ids: str, model: str = "openai/bench") -> str:
        body = {"name": f"bench-{next(_NAMES)}", "model": model, "tool_ids": tool_ids}
        return (await self._request("POST", "/v1/agents/", {**body, "include_base_tools": False}))["id"]

    async def agents(self, number: int) -> list[str]:
        """Makes agents for concurrent runs, a few at a time."""
        made: list[str] = []
        for first in range(0, number, 20):
            made += await asyncio.gather(*(self.agent() for _ in range(first, min(number, first + 20))))
        return made

    async def conversation(self, agent_id: str) -> str:
        """Begins a conversation with the agent. Returns its id."""
        return (await self._request("POST", f"/v1/conversations?agent_id={agent_id}", {}))["id"]

    async def tool(self, source: str) -> str:
        return (await self._request("PUT", "/v1/tools/", {"source_code": source}))["id"]

    async def submit(self, agent_id: str, **wish: Any) -> str:
        body = {"input": json.dumps(wish), "stream_tokens": True}
        return (await self._request("POST", f"/v1/agents/{agent_id}/messages/async", body))["id"]

    async def submit_to(self, conversation_id: str, **wish: Any) -> None:
        """Submits to a conversation, and reads nothing of the stream."""
        body = {"input": json.dumps(wish), "streaming": True, "background": True}
        async with self.watching(f"/v1/conversations/{conversation_id}/messages", body) as stream:
            await stream.until("run_id")

    async def said(self, agent_id: str) -> str:
        """Returns the agent's last answer."""
        listed = await self._request("GET", f"/v1/agents/{agent_id}/messages?limit=1&order=desc")
        return str(listed[0]["content"])

    async def cancel(self, run_id: str) -> None:
        await self._request("POST", f"/v1/runs/{run_id}/cancel")

    async def status(self, run_id: str) -> str:
        return (await self._request("GET", f"/v1/runs/{run_id}"))["status"]

    async def ended(self, run_id: str) -> None:
        """Waits until the run has ended. Raises `Refused` if it has failed."""
        while (status := await self.status(run_id)) not in ("completed", "cancelled"):
            if status == "failed":
                raise Refused(f"{run_id} has failed")
            await asyncio.sleep(0.1)

    def send(self, agent_id: str, **wish: Any):
        """Starts a run, and reads its stream in the background for the block."""
        body = {"input": json.dumps(wish), "streaming": True, "stream_tokens": True, "background": True}
        return self.watching(f"/v1/agents/{agent_id}/messages", body)

    def send_to(self, conversation_id: str, **wish: Any):
        """As `send`, in a conversation."""
        body = {"input": json.dumps(wish), "streaming": True, "stream_tokens": True, "background": True}
        return self.watching(f"/v1/conversations/{conversation_id}/messages", body)

    def respond(self, agent_id: str, **wish: Any):
        """As `send`, as a response."""
        body = {"model": agent_id, "input": json.dumps(wish), "stream": True, "background": True}
        return self.watching("/openai/v1/responses", body, watched=WatchedResponse(0.0))

    def run_ag_ui(self, agent_id: str, **wish: Any):
        """As `send`, over AG-UI."""
        said = {"id": f"m{next(_NAMES)}", "role": "user", "content": json.dumps(wish)}
        body = {"threadId": "bench", "runId": said["id"], "protocolVersion": "1.0", "messages": [said], "tools": []}
        empty: dict[str, Any] = {"context": [], "state": {}, "forwardedProps": {}}
        return self.watching(f"/ag-ui/{agent_id}", {**body, **empty}, watched=WatchedAgUi(0.0))

    def chat(self, agent_id: str, **wish: Any):
        """As `send`, over the AI SDK's stream of UI messages."""
        said = {"id": f"m{next(_NAMES)}", "role": "user", "parts": [{"type": "text", "text": json.dumps(wish)}]}
        body = {"id": "bench", "trigger": "submit-message", "messages": [said]}
        return self.watching(f"/ai-sdk/{agent_id}/chat", body)

    def resume(self, run_id: str, after: int):
        """Reads the stream of a run from a cursor on, in the background for the block."""
        first_token = -1 if after else 0
        return self.watching(f"/v1/runs/{run_id}/stream", {"starting_after": after}, expected=first_token)

    @asynccontextmanager
    async def watching(
        self, path: str, body: dict[str, Any], *, expected: int = 0, watched: Watched | None = None
    ) -> AsyncGenerator[Watched]:
        """Reads the stream that answers a request, for the block. `expected` is the number of its first token."""
        watched = watched or Watched(0.0, expected=expected)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: _Stream(watched), "127.0.0.1", self.port)
        try:
            watched.opened_at = time.monotonic()
            transport.write(self._written("POST", path, body))
            yield watched
        finally:
            transport.abort()

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        written = self._written(method, path, body)
        while self._kept and self._kept[-1].used_at < time.monotonic() - KEPT_S:
            self._kept.pop().writer.close()
        connection = (
            self._kept.pop() if self._kept else _Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        )
        status, answer = await connection.request(written)
        self._kept.append(connection)
        if status >= 300:
            raise Refused(f"{method} {path}: status {status}: {answer[:300]!r}")
        return json.loads(answer)

    def _written(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content
