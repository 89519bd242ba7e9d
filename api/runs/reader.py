"""Reading a run's log as one sequence: live from the feed, past from Redis, and from SQL what Redis no longer has."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from shared.clock import unix_ms
from shared.domain.errors import NotFound, Unavailable
from shared.domain.events import FIRST_SEQ, Gap, RunCreated, decode, encode, is_end
from shared.domain.ids import RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED, RunStatus, RunTrigger
from shared.domain.log_writer import Entries, unbroken
from shared.domain.runs import Run
from shared.domain.settling import PARKED, RunEnd, end_events
from shared.redis.event_feed import EventFeed, Subscription
from shared.redis.event_log import EventLog
from shared.sql.runs.events import EventStore
from shared.sql.runs.run_store import RunStore

DOUBT_S = 5.0
"""After so much silence SQL is asked: an end that was published while nobody could hear it is there."""

AWAY_S = 0.5
"""How long a reader leaves a service that does not answer alone."""

GATHER_S = 0.25
"""How long questions of readers wait for one another."""


class LogEnd(NamedTuple):
    """How far a log reaches in SQL, and whether it has ended."""

    last_seq: Seq
    is_over: bool


@dataclass
class _Question:
    """What readers ask together."""

    wanted: set[RunId] = field(default_factory=set[RunId])
    is_answered: bool = False
    ends: dict[RunId, LogEnd] | None = None
    """None: the database does not say."""


class LogEnds:
    """Answers readers that hear nothing. A thousand of them ask SQL one question, so that they leave the database's
    connections to those who write."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._next = _Question()
        self._asking = asyncio.Lock()

    async def of(self, run_id: RunId) -> LogEnd | None:
        """Where the run's log ends; a run that is gone has ended. None: the database does not say."""
        question = self._next
        question.wanted.add(run_id)
        # The first reader that comes in asks for all. Should it leave in the middle, the next one does.
        async with self._asking:
            if not question.is_answered:
                await self._ask(question)
        ends = question.ends
        return None if ends is None else ends.get(run_id, LogEnd(FIRST_SEQ, is_over=True))

    async def _ask(self, question: _Question) -> None:
        await asyncio.sleep(GATHER_S)
        if self._next is question:
            self._next = _Question()
        try:
            found = await self._runs.ends_of_logs(question.wanted)
            question.ends = {run_id: LogEnd(last_seq, status in STREAM_ENDED) for run_id, status, last_seq in found}
        except Unavailable:
            question.ends = None
        question.is_answered = True


@dataclass(frozen=True, kw_only=True)
class RunReader:
    """Reads logs for this process's clients."""

    runs: RunStore
    events: EventStore
    event_log: EventLog
    feed: EventFeed
    log_ends: LogEnds

    async def follow(self, run: Run, after: Seq, *, quiet_s: float) -> AsyncGenerator[Entries]:
        """Batches of entries after a cursor, up to the end of the log. An empty batch: nothing came for `quiet_s`.

        Every reader from every cursor gets the same entries. A cursor at or behind the end of a run that has ended
        gives nothing. Raises nothing of its own: a service that is away is waited for.
        """
        last = after
        if last < FIRST_SEQ:
            last = FIRST_SEQ
            yield [(FIRST_SEQ, encode(RunCreated(at=unix_ms(run.created_at))))]
        reading = self._stored(run, last) if run.status in STREAM_ENDED else self._live(run, last, quiet_s)
        async for entries in reading:
            yield entries

    async def wait_for_end(self, run: Run) -> None:
        """Returns when the run's stream has ended."""
        async for _ in self.follow(run, Seq(max(FIRST_SEQ, run.last_seq)), quiet_s=DOUBT_S):
            pass

    async def _stored(self, run: Run, last: Seq) -> AsyncGenerator[Entries]:
        """A log that has ended: SQL has all of it. If it was pruned, its end is made anew."""
        while last < run.last_seq:
            try:
                stored = await self.events.read(run.id, last)
            except Unavailable:
                await asyncio.sleep(AWAY_S)
                continue
            entries = _next_of(last, stored or [entry for entry in _end_of(run) if entry[0] > last])
            yield entries
            last = entries[-1][0]

    async def _live(self, run: Run, last: Seq, quiet_s: float) -> AsyncGenerator[Entries]:
        now = asyncio.get_running_loop().time
        heard_at, stored = now(), run.last_seq
        ended: Run | None = None
        async with self.feed.subscribe(run.id) as subscription:
            while ended is None:
                entries, is_silent = await self._next(
                    run, subscription, last, is_stored=last < stored, wait_s=min(DOUBT_S, heard_at + quiet_s - now())
                )
                if entries:
                    yield entries
                    heard_at, last = now(), entries[-1][0]
                if entries and is_end(entries[-1][1]):
                    return
                if is_silent:
                    end = await self.log_ends.of(run.id)
                    stored = stored if end is None else end.last_seq
                    ended = await self._ended(run) if end is not None and end.is_over else None
                if now() >= heard_at + quiet_s:
                    heard_at = now()
                    yield []
        async for entries in self._stored(ended, last):
            yield entries

    async def _next(
        self, run: Run, subscription: Subscription, last: Seq, *, is_stored: bool, wait_s: float
    ) -> tuple[Entries, bool]:
        """What follows `last`, as far as it is known, and whether there is silence. `is_stored`: SQL has it in any
        case."""
        try:
            entries = await self._read(run, subscription, last, is_stored=is_stored)
            return entries, not entries and not await subscription.wait(wait_s)
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            return [], True

    async def _read(self, run: Run, subscription: Subscription, last: Seq, *, is_stored: bool) -> Entries:
        stored = await self.events.read(run.id, last) if is_stored else []
        if stored:
            return _next_of(last, stored)
        entries = await subscription.read(self.event_log, last)
        known = unbroken(last, entries)
        if len(known) < len(entries):
            # Redis no longer has what is in between. What came is read again, behind what SQL has.
            subscription.fall_behind()
            return known or _next_of(last, await self.events.read(run.id, last) or entries)
        return known

    async def _ended(self, run: Run) -> Run | None:
        """The run as it ended; one that is gone has shown everything. None: the database does not say."""
        try:
            return await self.runs.look_up(run.id)
        except NotFound:
            return msgspec.structs.replace(run, last_seq=Seq(0))
        except Unavailable:
            return None


def _next_of(last: Seq, entries: Entries) -> Entries:
    """Those that follow `last`. What is truly gone is said: one entry stands for all that is missing."""
    known = unbroken(last, entries)
    if known:
        return known
    first, entry = entries[0]
    gap = Gap(at=decode(entry).at, first_missing=Seq(last + 1))
    return [(Seq(first - 1), encode(gap)), *unbroken(Seq(first - 1), entries)]


def _end_of(run: Run) -> Entries:
    """The end of a log, made from the run."""
    end = RunEnd(
        trigger=RunTrigger.COMPLETE, stop_reason=run.stop_reason or "end_turn", cause=run.cause, error=run.error
    )
    events = end_events(
        end,
        at=unix_ms(run.completed_at or run.created_at),
        # The stream of a run that was decided has ended before, when it was parked.
        status=RunStatus.AWAITING_APPROVAL if run.stop_reason == PARKED.stop_reason else run.status,
        usage=run.usage,
        step_count=run.step_count,
        status_events=run.options.status_events,
    )
    first = run.last_seq + 1 - len(events)
    return [(Seq(seq), encode(event)) for seq, event in enumerate(events, start=first)]
