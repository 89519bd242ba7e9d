"""A reader of a conversation's stream, as a client sees it: frames as bytes, with their cursors."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from shared.concurrency import background
from tests.kit.wait_until import wait_until


@dataclass
class ConversationReader:
    """The frames that one reader has received so far."""

    http: httpx.AsyncClient
    path: str
    params: dict[str, str] = field(default_factory=dict[str, str])
    raw: list[bytes] = field(default_factory=list[bytes])
    """The received frames, without comments."""
    done: bool = False
    """The connection was closed by the server, after a whole answer."""

    @property
    def placed(self) -> list[bytes]:
        """The frames that have a cursor, which are the same for every reader."""
        return [frame for frame in self.raw if frame.startswith(b"id: ")]

    @property
    def cursors(self) -> list[str]:
        return [_cursor_of(frame) for frame in self.placed]

    @property
    def frames(self) -> list[dict[str, Any]]:
        """The JSON of all frames; the end of the stream is `{"message_type": "end"}`."""
        return [_json_of(frame) for frame in self.raw]

    @property
    def kinds(self) -> list[str]:
        """The types of notes and messages, in order."""
        return [frame.get("event_type") or frame["message_type"] for frame in self.frames]

    @property
    def text(self) -> str:
        """The agent's texts."""
        return "".join(frame["content"] for frame in self.frames if frame["message_type"] == "assistant_message")

    def notes(self, event_type: str) -> list[dict[str, Any]]:
        """The data of the notes of one type."""
        return [frame["event_data"] for frame in self.frames if frame.get("event_type") == event_type]

    async def read(self) -> None:
        """Reads to the end of the stream."""
        async with self.http.stream("GET", self.path, params=self.params, timeout=None) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.aiter_raw():
                *whole, rest = (rest + chunk).split(b"\n\n")
                self.raw.extend(map(_without_comments, whole))
        self.done = True

    async def until(self, kind: str, times: int = 1) -> None:
        """Waits for this many frames of this kind."""
        await wait_until(lambda: self.kinds.count(kind) >= times, description=f"{times} frames of {kind!r}")


@asynccontextmanager
async def reading_conversation(
    http: httpx.AsyncClient, conversation: str, *, agent: str | None = None, after: str | None = None
) -> AsyncGenerator[ConversationReader]:
    """A reader that follows a conversation for the block."""
    reader = _reader(http, conversation, agent, after)
    async with background(reader.read(), name="read a conversation"):
        yield reader


async def read_conversation(
    http: httpx.AsyncClient,
    conversation: str,
    *,
    agent: str | None = None,
    after: str | None = None,
    only_notes: bool = False,
) -> ConversationReader:
    """Reads all present frames."""
    reader = _reader(http, conversation, agent, after)
    reader.params |= {"follow": "false", "notes": str(only_notes).lower()}
    await reader.read()
    return reader


def _reader(http: httpx.AsyncClient, conversation: str, agent: str | None, after: str | None) -> ConversationReader:
    given = {"agent_id": agent, "after": after}
    params = {name: value for name, value in given.items() if value is not None}
    return ConversationReader(http, f"/v1/conversations/{conversation}/events", params)


def place_of(cursor: str) -> tuple[int, ...]:
    """A cursor as three numbers, to compare."""
    return tuple(map(int, cursor.split(".")))


def _without_comments(frame: bytes) -> bytes:
    return b"\n".join(line for line in frame.split(b"\n") if not line.startswith(b":"))


def _cursor_of(frame: bytes) -> str:
    return frame.split(b"\n", 1)[0].removeprefix(b"id: ").decode()


def _json_of(frame: bytes) -> dict[str, Any]:
    data = frame.rpartition(b"data: ")[2]
    return {"message_type": "end"} if data == b"[DONE]" else json.loads(data)
