"""Reads a run's log as one sequence: live entries from the feed, older ones from Redis, and from SQL those that Redis
no longer has."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.responses import Response

from api.errors import RETRY_AFTER_S, SHOULD_RETRY, refused
from api.event_stream import finishes
from shared.concurrency import repeating, unix_ms
from shared.domain.errors import ErrorCode, NotFound, Unavailable
from shared.domain.events import FIRST_SEQ, Event, Gap, RunCreated, StopReason, Unknown, decode, encode, is_end
from shared.domain.ids import ProjectId, RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED, RunStatus, RunTrigger
from shared.domain.log_writer import Entries, of_bytes, unbroken
from shared.domain.runs import Run
from shared.domain.settling import PARKED, RunEnd, end_events
from shared.redis.event_log import MAX_BYTES, EventFeed, EventLog, Subscription
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.steps import EventStore

# Where logs end. The feed stores nothing, so an end that was published while a reader could not receive it is only in
# SQL. A thousand silent readers share one query.


DOUBT_S = 5.0
"""Most seconds of silence until a query to SQL shows whether the log has ended."""

GATHER_S = 0.25
"""Seconds in which readers' questions are collected into one query."""


class LogEnd(NamedTuple):
    """The last number of a log in SQL, and whether the log has ended."""

    last_seq: Seq
    is_over: bool


@dataclass
class _Question:
    """One query that several readers share."""

    wanted: set[RunId] = field(default_factory=set[RunId])
    is_answered: bool = False
    ends: dict[RunId, LogEnd] | None = None
    """None: the database does not answer."""


@dataclass(slots=True, eq=False)
class LogWatch:
    """The progress of one reader of a live run, and the log's end in SQL."""

    subscription: Subscription
    last: Seq
    """The number of the reader's last entry."""
    watches: "set[LogWatch]"
    """All watches of this process. This one is among them for the length of a block."""
    asked_at: Seq | None = None
    """The value of `last` at the last round."""
    end: LogEnd | None = None
    """None: not queried yet."""

    def __enter__(self) -> "LogWatch":
        self.watches.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.watches.discard(self)

    @property
    def is_over(self) -> bool:
        return self.end is not None and self.end.is_over

    @property
    def is_stored(self) -> bool:
        """Whether SQL has the entries that follow."""
        return self.end is not None and self.last < self.end.last_seq


class LogEnds:
    """Finds out where the logs of silent readers end. Readers share queries, which leaves connections to the writers,
    and a reader without news is not woken."""

    def __init__(self, runs: RunStore, *, doubt_s: float = DOUBT_S) -> None:
        self._runs = runs
        self._round_s = doubt_s / 2
        self._watches: set[LogWatch] = set()
        self._next = _Question()
        self._asking = asyncio.Lock()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Checks silent readers' logs for as long as the block lasts."""
        return repeating(self._look, every_s=self._round_s, name="look for the ends of logs")

    def watch(self, subscription: Subscription, last: Seq) -> LogWatch:
        """Watches for one reader within the block. The reader is woken if it has received nothing for a while and SQL
        has more entries, or the end."""
        return LogWatch(subscription, last, self._watches)

    async def of(self, run_id: RunId) -> LogEnd | None:
        """Returns where the run's log ends; the log of a deleted run has ended. None: the database does not answer."""
        question = self._next
        question.wanted.add(run_id)
        # The first reader queries for all. If its client leaves meanwhile, the next reader does.
        async with self._asking:
            if not question.is_answered:
                await self._ask(question)
        ends = question.ends
        return None if ends is None else _end_in(ends, run_id)

    async def _ask(self, question: _Question) -> None:
        await asyncio.sleep(GATHER_S)
        if self._next is question:
            self._next = _Question()
        try:
            question.ends = await self._ends_of(question.wanted)
        except Unavailable:
            question.ends = None
        question.is_answered = True

    async def _look(self) -> None:
        """One round: one query for all readers that have received nothing since the last round."""
        silent: list[LogWatch] = []
        for watch in self._watches:
            if watch.subscription.is_waiting and watch.last == watch.asked_at:
                silent.append(watch)
            watch.asked_at = watch.last
        if not silent:
            return
        ends = await self._ends_of({watch.subscription.run_id for watch in silent})
        for watch in silent:
            watch.end = _end_in(ends, watch.subscription.run_id)
            if watch.is_over or watch.is_stored:
                watch.subscription.fall_behind()

    async def _ends_of(self, run_ids: Collection[RunId]) -> dict[RunId, LogEnd]:
        found = await self._runs.ends_of_logs(run_ids)
        return {run_id: LogEnd(last_seq, status in STREAM_ENDED) for run_id, status, last_seq in found}


def _end_in(ends: dict[RunId, LogEnd], run_id: RunId) -> LogEnd:
    return ends.get(run_id, LogEnd(FIRST_SEQ, is_over=True))


NEVER_QUIET_S = 86_400.0
"""For readers that need no keep-alive."""

AWAY_S = 0.5
"""Seconds until a reader tries again after a service did not answer."""


def now() -> float:
    """The event loop's clock."""
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Sent:
    """The time of the last bytes sent to a client, by the event loop's clock."""

    at: float


@dataclass(frozen=True, kw_only=True)
class RunReader:
    """Reads logs for this process's clients."""

    runs: RunStore
    events: EventStore
    event_log: EventLog
    feed: EventFeed
    log_ends: LogEnds
    on_gap: Callable[[], None] = lambda: None
    """Called when a reader gets a `Gap` in place of lost entries."""

    def follow(self, run: Run, after: Seq, *, quiet_s: float, sent: Sent | None = None) -> AsyncGenerator[Entries]:
        """Yields batches of entries after a cursor, up to the end of the log. An empty batch means that nothing arrived
        for `quiet_s`, or, with `sent`, that nothing was sent to the client for `quiet_s`.

        Every reader from every cursor gets the same entries. A cursor at or after the end of an ended run yields
        nothing. If a service does not answer, the reader waits for it and raises nothing.
        """
        return self._stored(run, after) if run.status in STREAM_ENDED else self._live(run, after, quiet_s, sent)

    async def present(self, run: Run) -> AsyncGenerator[Entries]:
        """Yields the entries that exist now: all of them if the run's log has ended."""
        async for entries in self.follow(run, Seq(0), quiet_s=0.0):
            if not entries:
                return
            yield entries

    async def wait_for_end(self, run: Run) -> None:
        """Waits until the run's stream has ended."""
        async for _ in self.follow(run, Seq(max(FIRST_SEQ, run.last_seq)), quiet_s=NEVER_QUIET_S):
            pass

    async def _stored(self, run: Run, last: Seq) -> AsyncGenerator[Entries]:
        """Yields the entries of an ended log, all of which SQL has. If the log was pruned, its end is rebuilt."""
        if last < FIRST_SEQ:
            last = FIRST_SEQ
            yield _first_of(run)
        while last < run.last_seq:
            try:
                stored = await self._stored_page(run.id, last)
            except Unavailable:
                await asyncio.sleep(AWAY_S)
                continue
            entries = self._next_of(last, stored or [entry for entry in _end_of(run) if entry[0] > last])
            last = entries[-1][0]
            yield entries

    async def _live(self, run: Run, last: Seq, quiet_s: float, sent: Sent | None) -> AsyncGenerator[Entries]:
        """Yields the entries of a live log. One generator does everything: thousands of readers wait in it."""
        if last < FIRST_SEQ:
            last = FIRST_SEQ
            yield _first_of(run)
        project_id, run_id, heard_at = run.project_id, run.id, now()
        ended: Sequence[Run] | None = None
        async with _FollowedLog(self, run, last) as watch:
            del run  # a waiting reader does not keep the run
            while ended is None:
                entries = await self._next(watch, wait_s=heard_at + quiet_s - now())
                if entries:
                    watch.last = entries[-1][0]
                    yield entries
                    heard_at = now() if sent is None else sent.at
                elif watch.is_over:
                    ended = await self._ended(project_id, run_id)
                if entries and is_end(entries[-1][1]):
                    return
                is_heard = bool(entries) and sent is None
                del entries  # a waiting reader keeps no entries that it was sent
                if not is_heard and now() >= heard_at + quiet_s:
                    heard_at = now()
                    yield []
        for one in ended:
            async for entries in self._stored(one, watch.last):
                yield entries

    async def _next(self, watch: LogWatch, *, wait_s: float) -> Entries:
        """Returns the entries that follow, once there are any; none if the run stays silent for `wait_s`."""
        try:
            entries = await self._read(watch)
            if entries or watch.is_over or not await watch.subscription.wait(wait_s):
                return entries
            return await self._read(watch)
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            watch.end = await self.log_ends.of(watch.subscription.run_id) or watch.end
            return []

    async def _read(self, watch: LogWatch) -> Entries:
        subscription, last = watch.subscription, watch.last
        stored = await self._stored_page(subscription.run_id, last) if watch.is_stored else []
        if stored:
            return self._next_of(last, stored)
        entries = await subscription.read(self.event_log, last)
        known = unbroken(last, entries)
        if len(known) < len(entries):
            # Redis no longer has the entries in between. The reader gets those from SQL, and then reads these again.
            subscription.fall_behind()
            return known or self._next_of(last, await self._stored_page(subscription.run_id, last) or entries)
        return known

    async def _stored_page(self, run_id: RunId, last: Seq) -> Entries:
        """Returns entries from SQL: at most the bytes that a reader may keep while its client reads none."""
        return of_bytes(await self.events.read(run_id, last), MAX_BYTES)

    async def _ended(self, project_id: ProjectId, run_id: RunId) -> Sequence[Run] | None:
        """Returns the ended run; none if it was deleted. None: the database does not answer."""
        try:
            return [await self.runs.get(project_id, run_id)]
        except NotFound:
            return []
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            return None

    def _next_of(self, last: Seq, entries: Entries) -> Entries:
        """Returns the entries that follow `last`. One `Gap` replaces all entries that no store has any more."""
        known = unbroken(last, entries)
        if known:
            return known
        self.on_gap()
        first, entry = entries[0]
        gap = Gap(at=decode(entry).at, first_missing=Seq(last + 1))
        return [(Seq(first - 1), encode(gap)), *unbroken(Seq(first - 1), entries)]


class _FollowedLog:
    """The subscription and the watch of a reader of a live run, for the length of a block."""

    __slots__ = ("_watch",)

    def __init__(self, reader: RunReader, run: Run, last: Seq) -> None:
        self._watch = reader.log_ends.watch(reader.feed.subscribe(run.id), last)
        self._watch.end = LogEnd(run.last_seq, is_over=False)

    async def __aenter__(self) -> LogWatch:
        await self._watch.subscription.__aenter__()
        return self._watch.__enter__()

    async def __aexit__(self, *failure: object) -> None:
        self._watch.__exit__(*failure)
        await self._watch.subscription.__aexit__(*failure)


def _first_of(run: Run) -> Entries:
    return [(FIRST_SEQ, encode(RunCreated(at=unix_ms(run.created_at))))]


def _end_of(run: Run) -> Entries:
    """Rebuilds the end of a log from its run."""
    end = RunEnd(
        trigger=RunTrigger.COMPLETE,
        stop_reason=run.stop_reason or StopReason.ANSWERED,
        cause=run.cause,
        error=run.error,
    )
    events = end_events(
        end,
        at=unix_ms(run.completed_at or run.created_at),
        # The stream of a decided run ended when the run was parked.
        status=RunStatus.AWAITING_APPROVAL if run.stop_reason == PARKED.stop_reason else run.status,
        usage=run.usage,
        step_count=run.step_count,
        status_events=run.options.status_events,
    )
    first = run.last_seq + 1 - len(events)
    return [(Seq(seq), encode(event)) for seq, event in enumerate(events, start=first)]


TakeEvent = Callable[[Seq, Event | Unknown], None]
"""Receives the next event of a log, with its number."""


@dataclass(frozen=True, kw_only=True)
class RunWaiter:
    """Waits for runs, for clients that want a whole answer. A run goes on if its client leaves or this process ends."""

    reader: RunReader
    runs: RunStore
    server_ends: asyncio.Event
    """Set when this process ends."""

    async def ended(self, run: Run) -> Run | None:
        """Returns the run after its stream has ended; None if this process ends first. Raises `NotFound` if the run was
        deleted."""
        return await self._after(run, self.reader.wait_for_end(run))

    async def followed(self, run: Run, take: TakeEvent) -> Run | None:
        """Does what `ended` does, and calls `take` with each event of the run's log."""
        return await self._after(run, self._follow(run, take))

    async def reads(self, run: Run, take: TakeEvent) -> bool:
        """Calls `take` with each event of the run's log until its end. False: this process ends first."""
        return await finishes(self._follow(run, take), self.server_ends)

    async def _follow(self, run: Run, take: TakeEvent) -> None:
        async for entries in self.reader.follow(run, Seq(0), quiet_s=NEVER_QUIET_S):
            for seq, entry in entries:
                take(seq, decode(entry))

    async def _after(self, run: Run, reading: Coroutine[Any, Any, None]) -> Run | None:
        has_ended = await finishes(reading, self.server_ends)
        return await self.runs.get(run.project_id, run.id) if has_ended else None


def elsewhere(run: Run) -> Response:
    """Returns the answer of an ending process: the run goes on, and the client has to request it from another process.
    The client must not retry, because the repeated request would begin another run."""
    shown_by = "stream" if run.has_own_thread else "messages"
    said = f"SERVICE_UNAVAILABLE: this server is ending. The run goes on: see GET /v1/runs/{run.id} and its {shown_by}"
    headers = {"Retry-After": str(RETRY_AFTER_S), SHOULD_RETRY: "false"}
    return refused(503, ErrorCode.SERVER_ENDING, said, headers=headers, run_id=run.id)
