"""Streams of threads: all runs of a thread in one order, from any place on, and then new events as they occur.

The order is that of the thread's turns, their legs, and the numbers of each leg's log; it is the same for every reader
at every time, because no part of it ever changes. A dialect renders the reader's bytes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from api.event_stream import EventStream
from api.runs.reader import AWAY_S, RunReader, Sent, now
from api.runs.streaming import RunView, StreamService
from api.runs.thread_projection import MAX_TURN, NOW, LegInput, Present, Thread, ThreadCursor, ThreadProjection
from api.runs.thread_watches import ThreadWatch, ThreadWatches
from shared.domain.errors import NotFound, Unavailable
from shared.domain.events import FIRST_SEQ, StatusChanged, decode, is_end
from shared.domain.ids import MAX_SEQ, Seq
from shared.domain.lifecycle import STREAM_ENDED, RunStatus
from shared.domain.log_writer import Entries
from shared.domain.runs import Run
from shared.domain.threads import Leg, has_begun
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.turns import TurnStore

BEFORE_ALL = ThreadCursor()

MOST_HISTORY = 1000
"""The most messages before a leg that a projection gets: the newest ones."""

_AT_WORK = (RunStatus.CREATED, RunStatus.RUNNING)

LOOKING = 4
"""Readers of this process that query the database for the next leg at a time."""


@dataclass(frozen=True, kw_only=True)
class ThreadStreams:
    """Makes the streams of threads."""

    streaming: StreamService
    turns: TurnStore
    listing: RunListing
    approvals: ApprovalStore
    messages: MessageStore
    watches: ThreadWatches
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKING))
    """Limits how many readers query at a time: thousands of readers that wake together must leave connections to other
    requests."""

    def stream(
        self, thread: Thread, after: ThreadCursor | Literal["now"], projection: ThreadProjection, *, follow: bool
    ) -> EventStream:
        """Returns the response that streams a thread after a cursor. Without `follow` it ends when no run of the thread
        is active or queued; otherwise it ends when the thread is deleted.

        When this process ends, it breaks the connection: only the end of the stream ends the response cleanly.
        """
        return self._response(thread, lambda: self.batches(thread, after, projection, follow=follow))

    def stream_leg(self, thread: Thread, run: Run, projection: ThreadProjection) -> EventStream:
        """Returns the response that streams one run of a thread: it sends comments until the run has begun, and then
        the run from its beginning to its end. It shows neither the decisions on the run's calls nor the mark that the
        reader has caught up."""
        return self._response(thread, lambda: self.leg_batches(thread, run, projection))

    def stream_turn(self, thread: Thread, turn: int, after: ThreadCursor, projection: ThreadProjection) -> EventStream:
        """Returns the response that streams the rest of one turn after a cursor: all its legs. It ends when no leg of
        the turn is active or queued, even if other turns are queued."""
        return self._response(thread, lambda: self.turn_batches(thread, turn, after, projection))

    async def newest_turn(self, thread: Thread) -> ThreadCursor | None:
        """Returns the place `(turn, leg, 0)` before the thread's newest leg that has begun; None if none has begun."""
        leg = await self.turns.newest(thread.project_id, thread.id)
        return None if leg is None else ThreadCursor(leg.turn, leg.number)

    async def is_at_work(self, thread: Thread) -> bool:
        """Whether a run of the thread is active or queued. A thread that waits for answers is not at work."""
        active = await self.listing.active_of_agent(thread.project_id, thread.agent_id, thread.id)
        return any(run.status in _AT_WORK for run in active)

    def batches(
        self, thread: Thread, after: ThreadCursor | Literal["now"], projection: ThreadProjection, *, follow: bool
    ) -> AsyncGenerator[bytes]:
        """Yields the stream's bytes as they are ready. Empty bytes mean a silence: the sender sends a comment."""
        at = None if after == NOW else projection.starts_at(after)
        watch = self.watches.watch(thread.project_id, thread.id)
        return _Walk(service=self, thread=thread, projection=projection, watch=watch, follow=follow, at=at).bodies()

    def leg_batches(self, thread: Thread, run: Run, projection: ThreadProjection) -> AsyncGenerator[bytes]:
        """Yields the bytes of `stream_leg`."""
        watch = self.watches.watch(thread.project_id, thread.id)
        return _LegWalk(service=self, thread=thread, projection=projection, watch=watch, run=run).bodies()

    def turn_batches(
        self, thread: Thread, turn: int, after: ThreadCursor, projection: ThreadProjection
    ) -> AsyncGenerator[bytes]:
        """Yields the bytes of `stream_turn`."""
        at = max(projection.starts_at(after), ThreadCursor(turn))
        watch = self.watches.watch(thread.project_id, thread.id)
        return _Walk(service=self, thread=thread, projection=projection, watch=watch, at=at, turn=turn).bodies()

    def _response(self, thread: Thread, batches: Callable[[], AsyncGenerator[bytes]]) -> EventStream:
        streaming = self.streaming
        return EventStream(
            batches,
            streaming.ending,
            cut=None,
            entrance=lambda scope: streaming.quotas.reading_of(thread.project_id, scope),
        )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One reader's way through a thread.

    `at` moves with each frame, so a pass that fails because a service is away is simply repeated.
    """

    service: ThreadStreams
    thread: Thread
    projection: ThreadProjection
    watch: ThreadWatch
    follow: bool = False
    at: ThreadCursor | None = BEFORE_ALL
    """None: at the present place, not looked up yet."""
    turn: int | None = None
    """The only turn that is shown. None: all."""
    is_past: bool = False
    """The leg at the cursor has nothing more to show."""
    has_caught_up: bool = False
    """The reader has the mark that it has caught up."""
    is_over: bool = False

    async def bodies(self) -> AsyncGenerator[bytes]:
        """Yields everything after the cursor, and then new events as they occur, until the stream is over."""
        quiet_s = self.service.streaming.keepalive_s
        sent = Sent(now())
        with self.watch:
            while True:
                async for body in self._attempt(sent):
                    yield body
                    del body  # a waiting reader keeps no bytes that it was sent
                    sent.at = now()
                if self.is_over:
                    return
                if not await self.watch.wait(sent.at + quiet_s - now()) or now() >= sent.at + quiet_s:
                    yield b""
                    sent.at = now()

    async def _attempt(self, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields from `_pass`. If a service is away, it ends early, and the reader looks again soon."""
        try:
            async for body in self._pass(sent):
                yield body
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            self.watch.tell()

    async def _pass(self, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields everything that exists now."""
        self.watch.forget_news()
        if self.at is None:
            self.at = self.projection.starts_at(await self._present_cursor())
        while True:
            while (leg := await self._next()) is not None:
                async for body in self._show(leg, sent):
                    yield body
            if self.has_caught_up and self.follow and not self.watch.is_gone:
                return
            present = await self._present()
            goes_on = await self._goes_on(present)
            # This finds a run that has begun and ended in between, so that `present` lacks it.
            if await self._next() is None:
                break
        marks = [] if self.has_caught_up else [self.projection.caught_up(self.at, present)]
        self.has_caught_up = True
        self.is_over = self.watch.is_gone or not goes_on
        for body in [*marks, *([self.projection.over()] if self.is_over else [])]:
            if body:
                yield body

    async def _goes_on(self, present: Present) -> bool:
        """Returns whether the stream stays open when there is nothing more to see now."""
        if self.turn is None:
            return self.follow or present.running is not None or bool(present.queued)
        legs = await self._turn(self.turn)
        return any(leg.run.status in _AT_WORK for leg in legs if leg.turn == self.turn)

    async def _next(self) -> Leg | None:
        """Returns the next leg that has something to show; None if the reader has to wait for it."""
        at = self.at or ThreadCursor()
        legs = await self._turn(at.turn)
        while legs and self.turn in (None, legs[0].turn):
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
        was_seen = self.at is not None and self.at[:2] == (leg.turn, leg.number) and self._is_at_end(leg.run)
        async for body in self._run_of(leg, sent):
            yield body
        run = leg.run if was_seen else await self._present_run(leg.run)
        if run is None:
            self.is_past = True
            return
        asked = await self.service.approvals.of_run(run)
        if asked and run.status is RunStatus.AWAITING_APPROVAL:
            return
        at = self.at or ThreadCursor()
        if asked and at.number == run.last_seq:
            seq = Seq(run.last_seq + 1)
            self.at = at._replace(number=seq)
            if body := self.projection.resolved(leg._replace(run=run), seq, asked):
                yield body
        self.is_past = True

    async def _run_of(self, leg: Leg, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields the parts of the leg's beginning and log that the reader has not seen."""
        place = ThreadCursor(leg.turn, leg.number, FIRST_SEQ)
        if self.at is None or self.at < place:
            beginning = await self._beginning(leg.run)
            self.at, self.is_past = place, False
            if body := self.projection.began(leg, beginning):
                yield body
        if not self._is_at_end(leg.run):
            async for body in self._log(leg, sent):
                yield body

    def _is_at_end(self, run: Run) -> bool:
        return run.status in STREAM_ENDED and (self.at or ThreadCursor()).number >= run.last_seq

    async def _present_run(self, run: Run) -> Run | None:
        """Returns the run as it is now; None if it was deleted."""
        try:
            return await self._reader.runs.get(self.thread.project_id, run.id)
        except NotFound:
            return None

    async def _beginning(self, run: Run) -> LegInput:
        service = self.service
        if not self.projection.wants_input:
            return LegInput((), (), ())
        given, decided = await service.turns.input_of(run), await service.approvals.followed_by(run)
        before = await service.messages.before(run, MOST_HISTORY) if self.projection.wants_history else []
        return LegInput(given, decided, before)

    async def _log(self, leg: Leg, sent: Sent) -> AsyncGenerator[bytes]:
        """Yields the rest of the leg's log, and its end."""
        streaming = self.service.streaming
        newest = MAX_SEQ + 1 if self.has_caught_up else await self._newest(leg.run)
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
        run = await self._present_run(leg.run)
        if run is None:
            return b""  # deleted in this moment
        asked = await self.service.approvals.of_run(run)
        self.at = ThreadCursor(leg.turn, leg.number, seq)
        return self.projection.ended(leg._replace(run=run), seq, decode(entry).at, asked)

    @property
    def _reader(self) -> RunReader:
        return self.service.streaming.reader

    async def _newest(self, run: Run) -> int:
        """The number at which a reader of a live run has caught up. For an ended run, which others may follow, it is a
        number that no entry reaches."""
        if run.status in STREAM_ENDED:
            return MAX_SEQ + 1
        try:
            shown = await self._reader.event_log.newest(run.id)
        except Unavailable:
            shown = None
        return run.last_seq if shown is None else max(run.last_seq, shown[0])

    async def _caught_up(self, newest: int) -> bytes:
        """The mark that the reader has caught up, if it reads a live log and has just reached this number."""
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
        at, asked = self.service.streaming.clock.now(), [approval.id for approval in waiting]
        return Present(at, running[0] if running else None, queued, asked)

    async def _present_cursor(self) -> ThreadCursor:
        """The place after everything that exists."""
        leg = await self.service.turns.newest(self.thread.project_id, self.thread.id)
        if leg is None:
            return ThreadCursor()
        run = leg.run
        if run.status not in STREAM_ENDED:
            return ThreadCursor(leg.turn, leg.number, await self._newest(run))
        is_open = run.status is RunStatus.AWAITING_APPROVAL
        is_resolved = not is_open and bool(await self.service.approvals.of_run(run))
        return ThreadCursor(leg.turn, leg.number, run.last_seq + is_resolved)


@dataclass(slots=True, kw_only=True)
class _LegWalk(_Walk):
    """The way of a reader that has submitted a leg: it waits for the beginning, and reads this leg only."""

    run: Run
    has_caught_up: bool = True
    view: tuple[Leg, RunView] | None = None
    """The leg and the view of its log, when it has begun."""

    async def _pass(self, sent: Sent) -> AsyncGenerator[bytes]:
        self.view, quiet_s = None, self.service.streaming.keepalive_s
        last = Seq(max(FIRST_SEQ, (self.at or BEFORE_ALL).number))
        with ExitStack() as stack:
            # It follows the log before the run begins: the log's first entry arrives before any announcement.
            async for entries in self._reader.follow(self.run, last, quiet_s=quiet_s, sent=sent):
                async for body in self._arrived(entries, stack):
                    yield body
        self.is_over = True
        if body := self.projection.over():
            yield body

    async def _arrived(self, entries: Entries, stack: ExitStack) -> AsyncGenerator[bytes]:
        """Yields the leg's beginning once, and the entries' bytes. Yields empty bytes for no entries, and nothing if
        the run was deleted."""
        if not entries:
            yield b""
            return
        if self.view is None and (body := await self._begun(entries[0][1], stack)):
            yield body
        if self.view is not None:
            async for body in self._entries(*self.view, entries):
                yield body

    async def _begun(self, first: bytes, stack: ExitStack) -> bytes:
        """Finds the leg by the first entry that arrived. Renders the leg's beginning, if the reader has not seen it."""
        run = self._in_its_turn(first) or await self._present_run(self.run)
        if run is None:
            return b""
        leg, body = Leg(run.turn or 0, run.options.leg, run), b""
        place = ThreadCursor(leg.turn, leg.number, FIRST_SEQ)
        if self.at is None or self.at < place:
            beginning = await self._beginning(run)
            self.at, body = place, self.projection.began(leg, beginning)
        self.view = leg, stack.enter_context(self.service.streaming.viewing(run.id, self.projection.of_log(leg)))
        return body

    def _in_its_turn(self, first: bytes) -> Run | None:
        """The run with its turn, if that needs no query, for which the first token would wait. A continuation has its
        turn when it is submitted, and the first entry of most other logs contains it."""
        if self.run.turn is None and isinstance(event := decode(first), StatusChanged):
            self.run = replace(self.run, turn=event.turn)
        return None if self.run.turn is None else self.run
