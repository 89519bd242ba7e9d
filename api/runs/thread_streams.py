"""Streams of threads: all runs of a thread in one order, from any place of it on, and then what comes.

The order is that of the thread's turns, their legs, and the numbers of each leg's log; it is the same for every reader
at every time, because no part of it ever changes. A dialect renders what a reader gets.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from api.event_stream import EventStream
from api.runs.reader import AWAY_S, RunReader, Sent
from api.runs.streaming import Projection, RunView, StreamService
from api.runs.thread_watches import ThreadWatch, ThreadWatches
from shared.domain.approvals import Approval
from shared.domain.errors import InvalidCursor, NotFound, Unavailable
from shared.domain.events import FIRST_SEQ, decode, is_end
from shared.domain.ids import MAX_SEQ, AgentId, ApprovalId, ProjectId, RunId, Seq, ThreadId
from shared.domain.lifecycle import STREAM_ENDED, RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import NewMessage
from shared.domain.runs import Run
from shared.domain.turns import Leg, has_begun
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.turns import TurnStore

MAX_TURN = 2**31 - 1

LOOKING = 4
"""Readers of this process that ask the database at a time what comes next."""


class ThreadCursor(NamedTuple):
    """A place in the order of a thread. The reader has seen everything up to it."""

    turn: int = 0
    leg: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"{self.turn}.{self.leg}.{self.number}"


NOW: Literal["now"] = "now"
"""In place of a cursor: the reader wants to see what comes."""


def thread_cursor_of(after: str | None, last_event_id: str | None) -> ThreadCursor | Literal["now"]:
    """Returns the cursor of a reader. Raises `InvalidCursor`.

    A browser that comes back repeats its first query, and says in `Last-Event-ID` how far it has read.
    """
    if last_event_id is not None and last_event_id.strip():
        return _cursor(last_event_id.strip(), "header.Last-Event-ID")
    if after == NOW:
        return NOW
    return ThreadCursor() if after is None else _cursor(after, "query.after")


def _cursor(text: str, name: str) -> ThreadCursor:
    parts = text.split(".")
    if len(parts) == 3 and all(part.isdecimal() and part.isascii() and len(part) <= 19 for part in parts):
        cursor = ThreadCursor(*map(int, parts))
        if max(cursor.turn, cursor.leg) <= MAX_TURN and cursor.number <= MAX_SEQ:
            return cursor
    allowed = " or 'now'" if name == "query.after" else ""
    raise InvalidCursor(
        f"{name.partition('.')[2]} is {text[:50]!r}: it must be the id of the last frame seen, such as 3.0.17{allowed}",
        field=name,
    )


class Present(NamedTuple):
    """What a thread does at the moment when a reader has seen all of it."""

    at: datetime
    running: RunId | None
    queued: list[RunId]
    waiting: list[ApprovalId]
    """The calls that wait for a decision or a result."""


class ThreadProjection(Protocol):
    """A reader's view of a thread in a dialect: what it is sent between the entries of logs, and which view of each log
    it gets. Pure: bytes depend on nothing but the arguments, so that every reader is sent the same."""

    def of_log(self, leg: Leg) -> Projection:
        """Returns the view of the leg's log, of which neither the first entry nor the last one is rendered."""
        ...

    def began(self, leg: Leg, given: Sequence[NewMessage], decided: Sequence[Approval]) -> bytes:
        """Renders the beginning of a leg with the messages of its input, and with the decisions that it follows."""
        ...

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """Renders the end of a leg's log, which has this number and time. The leg has parked itself if it has asked for
        decisions; what has become of them must not be shown here."""
        ...

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """Renders what has become of the decisions for which the leg has asked, when none of them is open."""
        ...

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """Renders the mark that the reader has seen everything up to the present."""
        ...

    def over(self) -> bytes:
        """Renders the end of the stream."""
        ...


class Thread(NamedTuple):
    """The thread that a reader follows."""

    project_id: ProjectId
    agent_id: AgentId
    id: ThreadId


@dataclass(frozen=True, kw_only=True)
class ThreadStreams:
    """Makes the streams of threads."""

    streaming: StreamService
    turns: TurnStore
    listing: RunListing
    approvals: ApprovalStore
    watches: ThreadWatches
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKING))
    """Limits how many readers look for what comes next at a time, so that thousands that are woken together leave
    connections to everybody else."""

    def stream(
        self, thread: Thread, after: ThreadCursor | Literal["now"], projection: ThreadProjection, *, follow: bool
    ) -> EventStream:
        """Returns the response that streams a thread after a cursor. Without `follow` it ends when the thread does
        nothing more by itself; otherwise it ends with the thread.

        When this process ends, the connection is broken off: only the end of the stream ends it cleanly.
        """
        streaming = self.streaming
        return EventStream(
            lambda: self.batches(thread, after, projection, follow=follow),
            streaming.ending,
            cut=None,
            entrance=lambda scope: streaming.quotas.reading_of(thread.project_id, scope),
        )

    async def batches(
        self, thread: Thread, after: ThreadCursor | Literal["now"], projection: ThreadProjection, *, follow: bool
    ) -> AsyncGenerator[bytes]:
        """Yields the stream's bytes as they are ready. Empty bytes mean a silence: the sender sends a comment."""
        with self.watches.watch(thread.project_id, thread.id) as watch:
            at = None if after == NOW else after
            walk = _Walk(service=self, thread=thread, projection=projection, watch=watch, follow=follow, at=at)
            async for body in walk.bodies():
                yield body


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One reader's way through a thread.

    `at` moves with each frame, so a part that fails because a service is away is simply begun again.
    """

    service: ThreadStreams
    thread: Thread
    projection: ThreadProjection
    watch: ThreadWatch
    follow: bool
    at: ThreadCursor | None
    """None: at the present, wherever that is."""
    is_past: bool = False
    """The leg at the cursor has nothing more to show."""
    has_caught_up: bool = False
    """The reader knows that it has caught up."""
    is_over: bool = False

    async def bodies(self) -> AsyncGenerator[bytes]:
        """Yields everything after the cursor, and then what comes, until the stream is over."""
        quiet_s = self.service.streaming.keepalive_s
        sent = Sent(_now())
        while not self.is_over:
            try:
                async for body in self._pass(sent):
                    yield body
                    sent.at = _now()
                changed = self.is_over or await self.watch.has_changed(sent.at + quiet_s - _now())
            except Unavailable:
                await asyncio.sleep(AWAY_S)
                changed = _now() < sent.at + quiet_s
            if not changed:
                yield b""
                sent.at = _now()

    async def _pass(self, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields all that there is to see now."""
        self.watch.look()
        if self.at is None:
            self.at = await self._present_cursor()
        while True:
            while (leg := await self._next()) is not None:
                async for body in self._show(leg, sent):
                    yield body
            if self.has_caught_up and self.follow and not self.watch.is_gone:
                return
            present = await self._present()
            # A run may have begun and ended in between: one that is not in `present` is found now.
            if await self._next() is None:
                break
        if not self.has_caught_up:
            self.has_caught_up = True
            yield self.projection.caught_up(self.at, present)
        if self.watch.is_gone or not (self.follow or present.running or present.queued):
            self.is_over = True
            yield self.projection.over()

    async def _next(self) -> Leg | None:
        """Returns the next leg that has something to show; None if the reader has to wait for it."""
        at = self.at or ThreadCursor()
        legs = await self._turn(at.turn)
        while legs:
            for leg in legs:
                place = (leg.turn, leg.number)
                if place > at[:2] or (place == at[:2] and not self.is_past):
                    return leg if self._has_more(leg, at) else None
            legs = await self._turn(legs[0].turn + 1)
        return None

    async def _turn(self, turn: int) -> list[Leg]:
        project_id, thread_id = self.thread.project_id, self.thread.id
        async with self.service.looking:
            return await self.service.turns.first_from(project_id, thread_id, min(turn, MAX_TURN))

    def _has_more(self, leg: Leg, at: ThreadCursor) -> bool:
        run = leg.run
        # The turns after a parked leg are shown when it has been decided, because its continuation comes before them.
        is_decided = run.status is not RunStatus.AWAITING_APPROVAL
        is_at_end = (leg.turn, leg.number) == at[:2] and at.number >= run.last_seq
        return has_begun(run) and (is_decided or not is_at_end)

    async def _show(self, leg: Leg, sent: Sent) -> AsyncGenerator[bytes]:
        approvals = self.service.approvals
        place = ThreadCursor(leg.turn, leg.number, FIRST_SEQ)
        if self.at is None or self.at < place:
            given, decided = await self.service.turns.input_of(leg.run), await approvals.followed_by(leg.run)
            self.at, self.is_past = place, False
            yield self.projection.began(leg, given, decided)
        if leg.run.status not in STREAM_ENDED or self.at.number < leg.run.last_seq:
            async for body in self._log(leg, sent):
                yield body
            try:
                run = await self._reader.runs.get(self.thread.project_id, leg.run.id)
            except NotFound:
                self.is_past = True
                return
            leg = leg._replace(run=run)
        asked = await approvals.of_run(leg.run)
        if asked and leg.run.status is RunStatus.AWAITING_APPROVAL:
            return
        if asked and self.at.number == leg.run.last_seq:
            seq = Seq(leg.run.last_seq + 1)
            self.at = place._replace(number=seq)
            yield self.projection.resolved(leg, seq, asked)
        self.is_past = True

    async def _log(self, leg: Leg, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields the rest of the leg's log, and its end."""
        streaming, newest = self.service.streaming, await self._newest(leg.run)
        with streaming.viewing(leg.run.id, self.projection.of_log(leg)) as view:
            if body := await self._caught_up(newest):
                yield body
            last = Seq((self.at or ThreadCursor()).number)
            async for entries in self._reader.follow(leg.run, last, quiet_s=streaming.keepalive_s, sent=sent):
                async for body in self._entries(leg, view, entries):
                    yield body
                if body := await self._caught_up(newest):
                    yield body

    async def _entries(self, leg: Leg, view: RunView, entries: Entries) -> AsyncGenerator[bytes]:
        if not entries:
            yield b""
            return
        shown = entries[:-1] if is_end(entries[-1][1]) else entries
        async for body, _ in self.service.streaming.rendered(view, shown):
            yield body
        if shown:
            self.at = ThreadCursor(leg.turn, leg.number, shown[-1][0])
        if len(shown) < len(entries) and (body := await self._ended(leg, entries[-1:])):
            yield body

    async def _ended(self, leg: Leg, end: Entries) -> bytes:
        [(seq, entry)] = end
        try:
            run = await self._reader.runs.get(self.thread.project_id, leg.run.id)
        except NotFound:
            return b""  # deleted in this moment
        asked = await self.service.approvals.of_run(run)
        self.at = ThreadCursor(leg.turn, leg.number, seq)
        return self.projection.ended(leg._replace(run=run), seq, decode(entry).at, asked)

    @property
    def _reader(self) -> RunReader:
        return self.service.streaming.reader

    async def _newest(self, run: Run) -> int:
        """The number with which a reader of a live run has caught up; none for an ended one, after which other runs may
        come."""
        if run.status in STREAM_ENDED:
            return MAX_SEQ + 1
        try:
            return max(run.last_seq, await self._reader.event_log.last(run.id))
        except Unavailable:
            return run.last_seq

    async def _caught_up(self, newest: int) -> bytes:
        """The mark that the reader has caught up, if it reads a live log and has come to this number just now."""
        at = self.at or ThreadCursor()
        if self.has_caught_up or at.number < newest:
            return b""
        present = await self._present()
        self.has_caught_up = True
        return self.projection.caught_up(at, present)

    async def _present(self) -> Present:
        project_id, agent_id, thread_id = self.thread
        async with self.service.looking:
            active = await self.service.listing.active_of_agent(project_id, agent_id, thread_id)
            waiting = await self.service.approvals.waiting_on_thread(project_id, thread_id)
        running = [run.id for run in active if run.status is RunStatus.RUNNING]
        queued = [run.id for run in active if run.status is RunStatus.CREATED]
        now, asked = self.service.streaming.clock.now(), [approval.id for approval in waiting]
        return Present(now, running[0] if running else None, queued, asked)

    async def _present_cursor(self) -> ThreadCursor:
        """The place after all that there is."""
        leg = await self.service.turns.newest(self.thread.project_id, self.thread.id)
        if leg is None:
            return ThreadCursor()
        run = leg.run
        if run.status not in STREAM_ENDED:
            return ThreadCursor(leg.turn, leg.number, await self._newest(run))
        is_open = run.status is RunStatus.AWAITING_APPROVAL
        is_resolved = not is_open and bool(await self.service.approvals.of_run(run))
        return ThreadCursor(leg.turn, leg.number, run.last_seq + is_resolved)


def _now() -> float:
    return asyncio.get_running_loop().time()
