"""The reader of a run's log: one sequence, live from the feed, older from Redis, and from SQL what Redis no longer
has."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from api.runs.log_ends import LogEnd, LogEnds, LogWatch
from shared.concurrency import unix_ms
from shared.domain.errors import NotFound, Unavailable
from shared.domain.events import FIRST_SEQ, Gap, RunCreated, decode, encode, is_end
from shared.domain.ids import RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED, RunStatus, RunTrigger
from shared.domain.log_writer import Entries, of_bytes, unbroken
from shared.domain.runs import Run
from shared.domain.settling import PARKED, RunEnd, end_events
from shared.redis.event_feed import MAX_BYTES, EventFeed, Subscription
from shared.redis.event_log import EventLog
from shared.sql.runs.event_blocks import EventStore
from shared.sql.runs.run_store import RunStore

NEVER_QUIET_S = 86_400.0
"""For who need not be told of a silence."""

AWAY_S = 0.5
"""Seconds before a reader asks a service again that did not answer."""


@dataclass
class Sent:
    """When a client was last sent anything, by the event loop's clock."""

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
    """Told when a reader is shown that a part of a log is gone."""

    async def follow(
        self, run: Run, after: Seq, *, quiet_s: float, sent: Sent | None = None
    ) -> AsyncGenerator[Entries]:
        """Batches of entries after a cursor, up to the end of the log. An empty batch: nothing came for `quiet_s`, or
        with `sent`, its client was sent nothing of what came.

        Every reader from every cursor gets the same entries. A cursor at or after the end of an ended run gives
        nothing. A service that is away raises nothing: the reader waits for it.
        """
        last = after
        if last < FIRST_SEQ:
            last = FIRST_SEQ
            yield [(FIRST_SEQ, encode(RunCreated(at=unix_ms(run.created_at))))]
        reading = self._stored(run, last) if run.status in STREAM_ENDED else self._live(run, last, quiet_s, sent)
        async for entries in reading:
            yield entries

    async def wait_for_end(self, run: Run) -> None:
        """Returns when the run's stream has ended."""
        async for _ in self.follow(run, Seq(max(FIRST_SEQ, run.last_seq)), quiet_s=NEVER_QUIET_S):
            pass

    async def _stored(self, run: Run, last: Seq) -> AsyncGenerator[Entries]:
        """The entries of a log that has ended; SQL has all of it. If it was pruned, its end is made anew."""
        while last < run.last_seq:
            try:
                stored = await self._stored_page(run.id, last)
            except Unavailable:
                await asyncio.sleep(AWAY_S)
                continue
            entries = self._next_of(last, stored or [entry for entry in _end_of(run) if entry[0] > last])
            yield entries
            last = entries[-1][0]

    async def _live(self, run: Run, last: Seq, quiet_s: float, sent: Sent | None) -> AsyncGenerator[Entries]:
        async with self.feed.subscribe(run.id) as subscription:
            with self.log_ends.watch(subscription, last) as watch:
                watch.end = LogEnd(run.last_seq, is_over=False)
                async for entries in self._heard(run, watch, quiet_s, sent):
                    yield entries

    async def _heard(self, run: Run, watch: LogWatch, quiet_s: float, sent: Sent | None) -> AsyncGenerator[Entries]:
        now = asyncio.get_running_loop().time
        heard_at = now()
        ended: Run | None = None
        while ended is None:
            entries = await self._next(run, watch, wait_s=heard_at + quiet_s - now())
            if entries:
                yield entries
                heard_at, watch.last = now() if sent is None else sent.at, entries[-1][0]
                if is_end(entries[-1][1]):
                    return
            elif watch.is_over:
                ended = await self._ended(run)
            if now() >= heard_at + quiet_s:
                heard_at = now()
                yield []
        async for entries in self._stored(ended, watch.last):
            yield entries

    async def _next(self, run: Run, watch: LogWatch, *, wait_s: float) -> Entries:
        """The entries that follow, once there are any; none when the run is silent."""
        try:
            entries = await self._read(run, watch.subscription, watch.last, is_stored=watch.is_stored)
            if entries or watch.is_over or not await watch.subscription.wait(wait_s):
                return entries
            return await self._read(run, watch.subscription, watch.last, is_stored=watch.is_stored)
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            watch.end = await self.log_ends.of(run.id) or watch.end
            return []

    async def _read(self, run: Run, subscription: Subscription, last: Seq, *, is_stored: bool) -> Entries:
        stored = await self._stored_page(run.id, last) if is_stored else []
        if stored:
            return self._next_of(last, stored)
        entries = await subscription.read(self.event_log, last)
        known = unbroken(last, entries)
        if len(known) < len(entries):
            # Redis no longer has what is in between. The reader gets that from SQL, and then these entries again.
            subscription.fall_behind()
            return known or self._next_of(last, await self._stored_page(run.id, last) or entries)
        return known

    async def _stored_page(self, run_id: RunId, last: Seq) -> Entries:
        """No more than a reader may keep while its client takes none of it."""
        return of_bytes(await self.events.read(run_id, last), MAX_BYTES)

    async def _ended(self, run: Run) -> Run | None:
        """The run as it ended; for a deleted run, every entry has been shown. None: the database does not answer."""
        try:
            return await self.runs.get(run.project_id, run.id)
        except NotFound:
            return msgspec.structs.replace(run, last_seq=Seq(0))
        except Unavailable:
            await asyncio.sleep(AWAY_S)
            return None

    def _next_of(self, last: Seq, entries: Entries) -> Entries:
        """The entries that follow `last`. One entry (`gap`) stands for all that no store has any more."""
        known = unbroken(last, entries)
        if known:
            return known
        self.on_gap()
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
