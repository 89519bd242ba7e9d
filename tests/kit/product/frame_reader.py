"""A reader of a run's stream, as a client sees it: frames as bytes, numbered, to the end."""

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from shared.concurrency import background
from tests.kit.wait_until import wait_until


@dataclass
class FrameReader:
    """The frames that one reader has received so far."""

    http: httpx.AsyncClient
    run_id: str
    starting_after: int = 0
    raw: list[bytes] = field(default_factory=list[bytes])
    """The received frames, without comments."""
    parting: bytes = b""
    """The text after the last frame: comments of a server that ends before the run does."""
    done: bool = False
    """The connection was closed by the server, after a whole answer."""

    @property
    def seq_ids(self) -> list[int]:
        return [int(frame.split(b"\n", 1)[0].removeprefix(b"id: ")) for frame in self.raw]

    @property
    def frames(self) -> list[dict[str, Any]]:
        """The JSON of all frames; the end of the stream is `{"message_type": "end"}`."""
        return [_json_of(frame) for frame in self.raw]

    def of_type(self, message_type: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["message_type"] == message_type]

    def notes(self, event_type: str) -> list[dict[str, Any]]:
        """The data of the stream's notes for developers, of one type."""
        notes = [frame for frame in self.of_type("event_message") if frame["event_type"] == event_type]
        return [note["event_data"] for note in notes]

    def assert_complete(self) -> None:
        """One frame after the other from the cursor on, every jump announced, without a gap, and one end."""
        jumps = unannounced_jumps(self.starting_after, self.seq_ids, self.frames)
        assert not jumps, f"numbers that follow neither the one before nor what is said: {jumps}"
        kinds = [frame["message_type"] for frame in self.frames]
        assert not self.notes("gap")
        assert kinds.count("end") == 1
        assert kinds[-1] == "end"

    async def read(self) -> None:
        """Reads to the end of the stream, every kind of frame."""
        body = {"starting_after": self.starting_after, "include_status_events": True, "include_pings": True}
        async with self.http.stream("POST", f"/v1/runs/{self.run_id}/stream", json=body) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.aiter_raw():
                *whole, rest = (rest + chunk).split(b"\n\n")
                self.raw.extend(map(_without_comments, whole))
        self.parting = rest
        assert not _without_comments(rest) or self.is_sent_away
        self.done = True

    @property
    def is_sent_away(self) -> bool:
        """The server ended the connection, not the stream: the reader must reconnect."""
        return b"retry: " in self.parting

    async def reach(self, frames: int) -> None:
        await wait_until(lambda: len(self.raw) >= frames, description=f"{frames} frames of {self.run_id}")

    async def end(self) -> None:
        await wait_until(lambda: self.done, description=f"the stream of {self.run_id} to end")


@asynccontextmanager
async def reading(http: httpx.AsyncClient, run_id: str, *, starting_after: int = 0) -> AsyncGenerator[FrameReader]:
    """A reader that reads while the body runs."""
    reader = FrameReader(http, run_id, starting_after)
    async with background(reader.read(), name=f"read {run_id}"):
        yield reader


async def read_whole(http: httpx.AsyncClient, run_id: str, *, starting_after: int = 0) -> FrameReader:
    """The stream, to its end."""
    reader = FrameReader(http, run_id, starting_after)
    await reader.read()
    return reader


def _without_comments(frame: bytes) -> bytes:
    return b"\n".join(line for line in frame.split(b"\n") if not line.startswith(b":"))


def _json_of(frame: bytes) -> dict[str, Any]:
    data = frame.rpartition(b"data: ")[2]
    return {"message_type": "end"} if data == b"[DONE]" else json.loads(data)


def unannounced_jumps(after: int, seq_ids: Iterable[int], frames: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    """The places where a number does not follow the one before it, and the frame does not name a number that its reader
    has seen."""
    jumps: list[tuple[int, int]] = []
    last = after
    for seq_id, frame in zip(seq_ids, frames, strict=True):
        follows = frame.get("event_data", {}).get("follows", seq_id)
        if seq_id != last + 1 and not follows <= last < seq_id:
            jumps.append((last, seq_id))
        last = seq_id
    return jumps
