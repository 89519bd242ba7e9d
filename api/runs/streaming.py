"""Streams of runs: which entries a reader is sent and when. What an entry looks like is a dialect's to say."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from weakref import WeakValueDictionary

from api.admission import CallerQuotas
from api.event_stream import EventStream
from api.runs.reader import RunReader, Sent
from shared.concurrency import Clock
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MAX_SEQ, RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED
from shared.domain.log_writer import Entries
from shared.domain.runs import Run

CONTINUED_BY = "X-Holdfast-Continued-By"
"""The header of a decided run's stream that names the run that goes on."""

FRAMES_AT_ONCE = 64
"""Frames that are made and sent together, in a millisecond or two."""

CATCHING_UP = 4
"""Readers that are behind and get frames made for them in one turn of the event loop."""


class Projection(Protocol):
    """One reader's view of a run's log in a dialect: a pure fold of entries into bytes, without I/O and without a
    clock of its own."""

    @property
    def shared_as(self) -> Hashable:
        """Readers of a run whose projections are shared as the same are sent the same bytes, wherever they begin. None:
        the projection keeps state of its reader, who reads the log from its first entry."""
        ...

    @property
    def cut(self) -> bytes | None:
        """What ends a stream whose run goes on, when this process ends. A client must not take it for the run's end.
        None: the connection is broken off."""
        ...

    @property
    def longest_silence_s(self) -> float:
        """Seconds after which this dialect's clients take a stream without a byte for dead."""
        ...

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """What the next entries of the log are to the reader, and whether the last of them ends the stream. Raises
        `StreamBroken` when what the reader was sent does not hold any more."""
        ...

    def silence(self, last: Seq, now: datetime, /) -> bytes:
        """A sign of life after the entry with the number `last`. Nothing: a comment is sent."""
        ...

    def end_of(self, last: Seq, /) -> bytes:
        """What ends the stream where `of` has not: the reader's cursor was at the end, or the log is gone."""
        ...


class RunView:
    """A run as all of its readers with the same wishes see it. What is live comes to them at the same moment: its bytes
    are made for the first of them, and the others send the same."""

    def __init__(self, projection: Projection) -> None:
        self.projection = projection
        self.readers = 0
        self._entries: Entries = []
        self._shown = b"", False

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """Some entries as bytes, and whether their last one is the stream's end."""
        if self.readers < 2 or len(entries) >= FRAMES_AT_ONCE:
            # Nobody else wants them; or a page of who is behind, for which there is no room.
            return self.projection.of(entries)
        if entries != self._entries:
            self._entries, self._shown = entries, self.projection.of(entries)
        return self._shown


@dataclass(frozen=True, kw_only=True)
class StreamService:
    """Makes streams."""

    reader: RunReader
    clock: Clock
    keepalive_s: float
    quotas: CallerQuotas
    ending: asyncio.Event
    """Set when this process ends: its streams end too, and their clients resume at another process."""
    catching_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CATCHING_UP))
    """Readers of long logs take turns, so that hundreds of them keep nobody else from the event loop."""
    views: WeakValueDictionary[tuple[RunId, Hashable], RunView] = field(
        default_factory=WeakValueDictionary[tuple[RunId, Hashable], RunView]
    )
    """Of runs that are being read."""

    def stream(
        self,
        run: Run,
        after: Seq,
        projection: Projection,
        *,
        on_leave: Callable[[], Awaitable[None]] | None = None,
        on_whole: Callable[[], Awaitable[None]] | None = None,
    ) -> EventStream:
        """The response that shows a run from a cursor on. Its head says which run goes on where this one was parked.
        `on_leave` is called when the client goes away before the end, `on_whole` when it has been sent everything."""
        stream = EventStream(
            lambda: self.batches(run, after, projection),
            self.ending,
            cut=projection.cut,
            entrance=lambda scope: self.quotas.reading_of(run.project_id, scope),
            on_leave=on_leave,
            on_whole=on_whole,
        )
        if run.continued_by is not None:
            # Beside the stream, whose bytes are the same before and after the decision.
            stream.headers[CONTINUED_BY] = run.continued_by
        return stream

    def is_over(self, run: Run, last_event_id: str) -> bool:
        """Whether the run's stream has ended and its reader has seen the end. Raises `InvalidRequest` as `resume`."""
        return run.status in STREAM_ENDED and cursor_of(None, last_event_id) >= run.last_seq

    async def batches(self, run: Run, after: Seq, projection: Projection) -> AsyncGenerator[bytes]:
        """The stream's bytes, as they are ready. Nothing stands for a silence: the sender sends a comment."""
        view = self._view(run.id, projection)
        view.readers += 1
        try:
            async for body in self._bodies(run, after, view):
                yield body
        finally:
            view.readers -= 1

    def _view(self, run_id: RunId, projection: Projection) -> RunView:
        if projection.shared_as is None:
            return RunView(projection)
        return self.views.setdefault((run_id, projection.shared_as), RunView(projection))

    async def _bodies(self, run: Run, after: Seq, view: RunView) -> AsyncGenerator[bytes]:
        last = after
        has_ended = False
        now = asyncio.get_running_loop().time
        sent = Sent(now())
        quiet_s = min(self.keepalive_s, view.projection.longest_silence_s)
        async for entries in self.reader.follow(run, after, quiet_s=quiet_s, sent=sent):
            if not entries:
                # Also where all that came was of types that this reader does not want: proxies count bytes.
                yield view.projection.silence(last, self.clock.now())
                sent.at = now()
                continue
            last = entries[-1][0]
            for start in range(0, len(entries), FRAMES_AT_ONCE):
                # What waits for a client is the bytes of a few frames, and their entries.
                body, has_ended = await self._body(view, entries[start : start + FRAMES_AT_ONCE])
                if body:
                    yield body
                    sent.at = now()
        if not has_ended:
            # The cursor was at the end already: the client still needs the mark that the stream is over.
            yield view.projection.end_of(last)

    async def _body(self, view: RunView, entries: Entries) -> tuple[bytes, bool]:
        """Some entries as the client sees them, and whether their last one is the stream's end."""
        if len(entries) < FRAMES_AT_ONCE:
            return view.of(entries)
        async with self.catching_up:
            await asyncio.sleep(0)
            return view.of(entries)


def cursor_of(starting_after: int | None, last_event_id: str | None) -> Seq:
    """Where a reader goes on. Raises `InvalidRequest` when `Last-Event-ID` is no number."""
    digits = (last_event_id or "").strip()
    if not digits:
        return Seq(starting_after or 0)
    # A client that comes back sends what it sent at first, and its header says how far it has come.
    if not digits.isdecimal() or len(digits) > len(str(MAX_SEQ)) or int(digits) > MAX_SEQ:
        raise InvalidRequest(
            f"Last-Event-ID is {digits[:50]!r}: it must be the number of the last frame seen",
            field="header.Last-Event-ID",
        )
    return Seq(int(digits))
