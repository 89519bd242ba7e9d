"""Streams of runs: decides which entries a reader gets and when. A dialect's projection renders them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from weakref import WeakValueDictionary

from api.admission import CallerQuotas
from api.event_stream import EventStream, ServerEnd
from api.runs.reader import RunReader, Sent, now
from shared.concurrency import Clock
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MAX_SEQ, RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED
from shared.domain.log_writer import Entries
from shared.domain.runs import Run

CONTINUED_BY = "X-Holdfast-Continued-By"
"""The header of a decided run's stream that names its continuation."""

FRAMES_AT_ONCE = 64
"""Frames that are rendered and sent together, in a millisecond or two."""

CATCHING_UP = 4
"""Readers of long logs whose frames may be rendered in the same pass of the event loop."""


class LogView(Protocol):
    """One reader's view of a run's log in a dialect: a pure fold of entries into bytes, without I/O or a clock."""

    @property
    def shared_as(self) -> Hashable:
        """Readers of a run with equal values get the same bytes, from any cursor. None: the view keeps its reader's
        state, so this reader has to read the log from its first entry."""
        ...

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """Renders the next entries of the log, and returns whether the last one ends the stream. Raises `StreamBroken`
        if frames already sent are no longer valid."""
        ...


class Projection(LogView, Protocol):
    """The view of a reader whose stream has this log only."""

    @property
    def cut(self) -> bytes | None:
        """The bytes that end the stream of a running run when this process ends. Clients must not take them for the
        run's end. None: the connection is aborted."""
        ...

    @property
    def longest_silence_s(self) -> float:
        """Seconds after which this dialect's clients give up a silent stream."""
        ...

    def silence(self, last: Seq, now: datetime, /) -> bytes:
        """Renders a keep-alive after the entry with the number `last`. Empty: the sender sends a comment."""
        ...

    def end_of(self, last: Seq, /) -> bytes:
        """Renders the stream's end if `of` has not: the reader's cursor was at the end, or the log was deleted."""
        ...


class RunView:
    """A run's log for all readers with an equal view of it. Live entries reach these readers together, so their bytes
    are rendered for the first reader, and the other readers send the same bytes."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.readers = 0
        self._entries: Entries = []
        self._shown = b"", False

    def __enter__(self) -> "RunView":
        self.readers += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.readers -= 1

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """Renders entries, and returns whether the last one ends the stream."""
        if self.readers < 2 or len(entries) >= FRAMES_AT_ONCE:
            # The only reader, or a page of a reader that is behind, too large to keep.
            return self._view.of(entries)
        if entries != self._entries:
            self._entries, self._shown = entries, self._view.of(entries)
        return self._shown


@dataclass(frozen=True, kw_only=True)
class StreamService:
    """Makes the streams of runs."""

    reader: RunReader
    clock: Clock
    keepalive_s: float
    quotas: CallerQuotas
    ending: ServerEnd
    """Set when this process ends: its streams end too, and their clients resume at another process."""
    catching_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CATCHING_UP))
    """Limits how many long logs are rendered at once, so that hundreds of readers do not block the event loop."""
    views: WeakValueDictionary[tuple[RunId, Hashable], RunView] = field(
        default_factory=WeakValueDictionary[tuple[RunId, Hashable], RunView]
    )
    """The shared views of runs that have readers."""

    def stream(
        self,
        run: Run,
        after: Seq,
        projection: Projection,
        *,
        on_leave: Callable[[], Awaitable[None]] | None = None,
        on_whole: Callable[[], Awaitable[None]] | None = None,
    ) -> EventStream:
        """Returns the response that streams a run after a cursor. A header names the continuation of a parked run.
        `on_leave` is called if the client disconnects before the end, `on_whole` after the whole stream was sent."""
        stream = EventStream(
            lambda: self.batches(run, after, projection),
            self.ending,
            cut=projection.cut,
            entrance=lambda scope: self.quotas.reading_of(run.project_id, scope),
            on_leave=on_leave,
            on_whole=on_whole,
        )
        if run.continued_by is not None:
            # It is a header because the stream's bytes are the same before and after the decision.
            stream.headers[CONTINUED_BY] = run.continued_by
        return stream

    def is_over(self, run: Run, last_event_id: str) -> bool:
        """Returns whether the run's stream has ended and the reader has seen its end. Raises `InvalidRequest`."""
        return run.status in STREAM_ENDED and cursor_of(None, last_event_id) >= run.last_seq

    def batches(self, run: Run, after: Seq, projection: Projection) -> AsyncGenerator[bytes]:
        """Yields the stream's bytes as they are ready. Empty bytes mean a silence: the sender sends a comment."""
        return self._bodies(run, after, projection)

    def viewing(self, run_id: RunId, view: LogView) -> RunView:
        """Returns one reader's view of a run's log. Readers with equal views share it."""
        own = RunView(view)
        return own if view.shared_as is None else self.views.setdefault((run_id, view.shared_as), own)

    async def _bodies(self, run: Run, after: Seq, projection: Projection) -> AsyncGenerator[bytes]:
        last = after
        has_ended = False
        sent = Sent(now())
        quiet_s = min(self.keepalive_s, projection.longest_silence_s)
        reading = self.reader.follow(run, after, quiet_s=quiet_s, sent=sent)
        viewing = self.viewing(run.id, projection)
        del run  # a waiting reader does not keep the run
        with viewing as view:
            async for entries in reading:
                if not entries:
                    # Perhaps no entry that arrived has a type that this reader wants; proxies need bytes.
                    yield projection.silence(last, self.clock.now())
                    sent.at = now()
                    continue
                last = entries[-1][0]
                async for body, is_end in self.rendered(view, entries):
                    yield body
                    del body  # nor the bytes that it was sent
                    sent.at, has_ended = now(), is_end
                del entries
            if not has_ended:
                # The cursor was at the end already, but the client still needs the mark of the stream's end.
                yield projection.end_of(last)

    async def rendered(self, view: RunView, entries: Entries) -> AsyncGenerator[tuple[bytes, bool]]:
        """Yields the results of `RunView.of`, without empty ones that do not end the stream."""
        for start in range(0, len(entries), FRAMES_AT_ONCE):
            # Small batches bound the memory that a slow client costs: the bytes of a few frames, and their entries.
            body, has_ended = await self._body(view, entries[start : start + FRAMES_AT_ONCE])
            if body or has_ended:
                yield body, has_ended

    async def _body(self, view: RunView, entries: Entries) -> tuple[bytes, bool]:
        """As `RunView.of`, but a full batch, typical of a reader that is behind, waits for a place in `catching_up`."""
        if len(entries) < FRAMES_AT_ONCE:
            return view.of(entries)
        async with self.catching_up:
            await asyncio.sleep(0)
            return view.of(entries)


def cursor_of(starting_after: int | None, last_event_id: str | None) -> Seq:
    """Returns the cursor of a reader. Raises `InvalidRequest` if `Last-Event-ID` is not a number."""
    digits = (last_event_id or "").strip()
    if not digits:
        return Seq(starting_after or 0)
    # A client that reconnects repeats its first query; the header has the last number that it has read.
    if not digits.isdecimal() or len(digits) > len(str(MAX_SEQ)) or int(digits) > MAX_SEQ:
        raise InvalidRequest(
            f"Last-Event-ID is {digits[:50]!r}: it must be the number of the last frame seen",
            field="header.Last-Event-ID",
        )
    return Seq(int(digits))
