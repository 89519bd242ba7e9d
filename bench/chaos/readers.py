"""Readers of streams: some stay, some leave and reconnect, all at any API process that answers.

A reader checks the numbers of the frames. The run's record keeps their contents, which all readers must agree on.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from bench.chaos.client import Client, Refused, Request, StreamLost
from bench.chaos.ledger import Column, Ledger, RunRecord, json_of

END = b"data: [DONE]"
_GAP = b'"gap"'


@dataclass(frozen=True)
class Submission:
    """A request whose answer is the stream of a new run."""

    request: Request
    accept: Callable[[str], RunRecord]
    """Called with the run's id as soon as the stream has it."""


class StreamReader(ABC):
    """Reads one run's stream to its end, over as many connections as it takes."""

    def __init__(
        self, client: Client, ledger: Ledger, dice: random.Random, opened: RunRecord | Submission, *, restless: bool
    ) -> None:
        """`restless`: it leaves and comes back."""
        self.record: RunRecord | None = opened if isinstance(opened, RunRecord) else None
        self.refusal: Refused | None = None
        self._submission = opened if isinstance(opened, Submission) else None
        self._client = client
        self._ledger = ledger
        self._dice = dice
        self._restless = restless
        self._ended = False

    async def read(self) -> None:
        """Reads to the end of the stream. Returns early after a final refusal."""
        while not self._ended and self.refusal is None:
            try:
                await self._read_once()
            except StreamLost:
                await self._client.pause()
            except Refused as refusal:
                await self._after(refusal)
            if not self._ended and self._restless:
                self._step_back()

    async def _read_once(self) -> None:
        stays_for = self._dice.randint(1, 60) if self._restless else 1 << 60
        async with aclosing(self._client.frames(self._request())) as batches:
            async for frames in batches:
                for frame in frames:
                    self._take(frame)
                stays_for -= len(frames)
                if stays_for <= 0 and self.record is not None and not self._ended:
                    self._ledger.http["stream: left by its reader"] += 1
                    return
        if not self._ended:
            self._closed_early()
            raise StreamLost

    def _request(self) -> Request:
        if self.record is None and self._submission is not None:
            return self._submission.request
        assert self.record is not None
        return self._resumed(self.record)

    @abstractmethod
    def _resumed(self, record: RunRecord) -> Request:
        """Returns the request that continues after the last number that the reader has seen."""

    @abstractmethod
    def _take(self, frame: bytes) -> None:
        """Checks and keeps the next frame."""

    @abstractmethod
    def _step_back(self) -> None:
        """Sometimes forgets the last events. Read again, the same numbers must have the same bytes."""

    def _closed_early(self) -> None:
        """The server ended the answer properly, and the stream had no end."""
        self._ledger.http["stream: closed before its end"] += 1

    async def _after(self, refusal: Refused) -> None:
        if refusal.answer.status in (429, 500, 502, 503, 504):
            await self._client.come_again(refusal.answer)
            return
        self.refusal = refusal
        if self.record is not None:
            self._broken(Column.LOST, f"its stream was refused: {refusal}")

    def _broken(self, column: Column, detail: str) -> None:
        assert self.record is not None
        self._ledger.broken(column, self.record.run_id, f"{self._ledger.elapsed_s:.1f} s: {detail}")


class Reader(StreamReader):
    """Reads a run as Letta's clients do."""

    _last = 0

    def _resumed(self, record: RunRecord) -> Request:
        body = {"starting_after": self._last, "include_status_events": record.story.notes}
        return Request("POST", f"/v1/runs/{record.run_id}/stream", body)

    def _step_back(self) -> None:
        if self._dice.random() < 0.2 and self.record is not None:
            seen = [seq for seq in self.record.frames if seq <= self._last]
            self._last = self._dice.choice([0, *seen])

    def _take(self, frame: bytes) -> None:
        if self.record is None:
            assert self._submission is not None
            self.record = self._submission.accept(str(json_of(frame)["run_id"]))
        seq = int(frame[4 : frame.index(b"\n")])
        if self._ended:
            self._broken(Column.ENDS, f"frame {seq} after the end: {frame[:200]!r}")
        elif frame.endswith(END):
            self._end(seq)
        elif _GAP in frame and (first := first_missing(frame)) is not None:
            self.record.gaps.add((first, seq))
            if first > self._last + 1:
                self._broken(Column.GAPS, f"{seq} reports a gap from {first}, but {self._last} was the last number")
            self._last = seq
        elif seq <= self._last:
            if b'"message_type":"ping"' not in frame:
                self._broken(Column.DUPLICATED, f"frame {seq} came after {self._last}: {frame[:200]!r}")
        else:
            self._next(seq, frame)

    def _end(self, seq: int) -> None:
        assert self.record is not None
        self._ended = True
        # A reader whose cursor is at the end gets the end with its cursor's number.
        if seq > self._last:
            if seq != self._last + 1:
                self._broken(Column.GAPS, f"the end {seq} came after {self._last}")
            self.record.ends.add(seq)

    def _next(self, seq: int, frame: bytes) -> None:
        assert self.record is not None
        if seq != self._last + 1:
            follows = follows_of(frame)
            if follows is None or not follows <= self._last:
                self._broken(Column.GAPS, f"{seq} came after {self._last} without a gap")
        self._last = seq
        known = self.record.frames.setdefault(seq, frame)
        if known != frame:
            self._broken(Column.DUPLICATED, f"frame {seq} was {known[:250]!r}, later {frame[:250]!r}")


def follows_of(frame: bytes) -> int | None:
    """Returns the number that a new owner's first frame follows; None for all other frames."""
    if b'"follows"' not in frame:
        return None
    match json_of(frame):
        case {"message_type": "event_message", "event_data": {"follows": int(follows)}}:
            return follows
        case _:
            return None


def first_missing(frame: bytes) -> int | None:
    """Returns the first number of the gap that this frame reports; None for all other frames."""
    match json_of(frame):
        case {"message_type": "gap", "first_missing": int(first)}:
            return first
        case {"event_type": "gap", "event_data": {"first_missing": int(first)}}:
            return first
        case {"event_type": "gap", "first_missing": int(first)}:
            return first
        case _:
            return None
