"""Readers that follow whole conversations, over all their runs, while everything breaks."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, field

from bench.chaos.client import Client, Refused, Request, StreamLost
from bench.chaos.ledger import Column, Ledger, Thread, json_of

FOLLOWED = 6
"""Conversations of each project that are followed."""

AT_ONCE = 10
WHOLE_S = 60.0

Cursor = tuple[int, int, int]

_DONE = b"data: [DONE]"


@dataclass
class ThreadRecord:
    """The frames that the readers of a conversation have seen."""

    thread: Thread
    frames: dict[Cursor, bytes] = field(default_factory=dict[Cursor, bytes])
    last: Cursor = (0, 0, 0)
    """The progress of the one reader that follows from the beginning and forgets nothing."""
    seen: set[Cursor] = field(default_factory=set[Cursor])
    """The cursors of the frames that this reader has seen."""


@dataclass
class ThreadReaders:
    """Follows some conversations of one project, and reads all of them once at the end."""

    client: Client
    ledger: Ledger
    dice: random.Random
    followed: dict[str, ThreadRecord] = field(default_factory=dict[str, ThreadRecord])
    """By the id of the conversation, or of the agent whose default history it is."""

    async def follow(self, threads: list[Thread]) -> None:
        """Follows some of these conversations until it is cancelled."""
        chosen = self.dice.sample(threads, min(FOLLOWED, len(threads)))
        self.followed = {thread.id: ThreadRecord(thread) for thread in chosen}
        async with asyncio.TaskGroup() as group:
            for record in self.followed.values():
                group.create_task(self._follow(record), name=f"follow {record.thread.id}")

    async def check(self, threads: list[Thread]) -> None:
        """Reads every conversation from its beginning. Checks that its frames are those that were seen before, in one
        order, and that each run begins and ends once."""
        turnstile = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for thread in threads:
                group.create_task(self._check(thread, turnstile), name=f"read {thread.id} again")

    async def _follow(self, record: ThreadRecord) -> None:
        while True:
            stays_for = self.dice.randint(1, 400)
            try:
                async with aclosing(self.client.frames(_request(record.thread, record.last))) as batches:
                    async for frames in batches:
                        for frame in frames:
                            self._take(record, frame)
                        stays_for -= len(frames)
                        if stays_for <= 0:
                            break
                    else:
                        self.ledger.http["conversation: closed"] += 1
            except StreamLost:
                await self.client.pause()
            except Refused as refusal:
                await self.client.come_again(refusal.answer)

    def _take(self, record: ThreadRecord, frame: bytes) -> None:
        cursor = cursor_of(frame)
        if cursor is None:
            return
        if cursor <= record.last:
            self._broken(record.thread, f"{cursor} came after {record.last}: {frame[:200]!r}")
        record.last = cursor
        record.seen.add(cursor)
        self._agree(record, cursor, frame)

    def _agree(self, record: ThreadRecord, cursor: Cursor, frame: bytes) -> None:
        known = record.frames.setdefault(cursor, frame)
        if known != frame:
            self._broken(record.thread, f"{cursor} was {known[:300]!r}, later {frame[:300]!r}")

    async def _check(self, thread: Thread, turnstile: asyncio.Semaphore) -> None:
        record = self.followed.get(thread.id, ThreadRecord(thread))
        async with turnstile:
            try:
                async with asyncio.timeout(WHOLE_S):
                    whole = await self._whole(thread)
            except TimeoutError:
                self._broken(thread, "read from its beginning, it does not end")
                return
        cursors = [cursor for cursor, _ in whole]
        if cursors != sorted(set(cursors)):
            self._broken(thread, "the cursors are not in order")
        for cursor, frame in whole:
            self._agree(record, cursor, frame)
        missed = [cursor for cursor in cursors if cursor < record.last and cursor not in record.seen]
        if missed:
            self._broken(thread, f"its reader missed {missed[:5]}, and has come to {record.last}")
        self._check_runs(thread, [frame for _, frame in whole])

    async def _whole(self, thread: Thread) -> list[tuple[Cursor, bytes]]:
        """Returns all frames of a conversation at rest, from as many connections as it takes."""
        whole: list[tuple[Cursor, bytes]] = []
        while True:
            after = whole[-1][0] if whole else (0, 0, 0)
            try:
                async with aclosing(self.client.frames(_request(thread, after, follow=False))) as batches:
                    async for frames in batches:
                        whole += [(cursor, frame) for frame in frames if (cursor := cursor_of(frame)) is not None]
                        if any(frame.endswith(_DONE) for frame in frames):
                            return whole
            except StreamLost:
                await self.client.pause()
            except Refused as refusal:
                await self.client.come_again(refusal.answer)

    def _check_runs(self, thread: Thread, frames: list[bytes]) -> None:
        notes = [json_of(frame) for frame in frames if b'"event_type":"run_' in frame]
        begun = [note["run_id"] for note in notes if note["event_type"] == "run_started"]
        ended = [note["run_id"] for note in notes if note["event_type"] == "run_ended"]
        if begun != ended or len(begun) != len(set(begun)):
            odd = sorted(set(begun) ^ set(ended)) or [one for one in begun if begun.count(one) > 1]
            self._broken(thread, f"{len(begun)} runs begin and {len(ended)} end: {odd[:5]}")

    def _broken(self, thread: Thread, detail: str) -> None:
        ran = [record for record in self.ledger.runs.values() if record.story.thread.id == thread.id]
        where = f"{self.ledger.elapsed_s:.1f} s: conversation {thread.id}: {detail}"
        self.ledger.broken(Column.THREADS, ran[-1].run_id if ran else "-", where)


def cursor_of(frame: bytes) -> Cursor | None:
    """The place of a frame in its conversation; None for a frame without one."""
    if not frame.startswith(b"id: "):
        return None
    turn, leg, number = frame[4 : frame.index(b"\n")].split(b".")
    return int(turn), int(leg), int(number)


def _request(thread: Thread, after: Cursor, *, follow: bool = True) -> Request:
    name = thread.conversation_id or "default"
    place = ".".join(map(str, after))
    query = f"agent_id={thread.agent_id}&after={place}&follow={str(follow).lower()}"
    return Request("GET", f"/v1/conversations/{name}/events?{query}")
