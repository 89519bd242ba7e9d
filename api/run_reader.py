"""Reading a run's log as one sequence: live from the feed, past from Redis, and from SQL what Redis no longer has."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from shared.clock import unix_ms
from shared.domain.errors import NotFound, Unavailable
from shared.domain.events import Ended, Gap, RunCreated, decode, encode
from shared.domain.ids import Seq
from shared.domain.lifecycle import STREAM_ENDED
from shared.domain.runs import Run
from shared.redis.event_feed import EventFeed, Subscription
from shared.redis.event_log import EventLog
from shared.sql.event_rows import EventStore
from shared.sql.run_store import RunStore

Entries = list[tuple[Seq, bytes]]

DOUBT_S = 5.0
"""After so much silence SQL is asked: an end that was published while nobody could hear it is there."""

AWAY_S = 0.5
"""How long a reader leaves a service that does not answer alone."""


@dataclass(frozen=True, kw_only=True)
class RunReader:
    """Reads logs for this process's clients."""

    runs: RunStore
    events: EventStore
    event_log: EventLog
    feed: EventFeed

    async def follow(self, run: Run, after: Seq, *, quiet_s: float) -> AsyncGenerator[Entries]:
        """Batches of entries after a cursor, up to the end of the log. An empty batch: nothing came for `quiet_s`.

        Every reader from every cursor gets the same entries. A cursor at or behind the end of a run that has ended
        gives nothing. Raises nothing of its own: a service that is away is waited for.
        """
        last = after
        if last < 1:
            last = Seq(1)
            yield [(last, encode(RunCreated(at=unix_ms(run.created_at))))]
        if run.status in STREAM_ENDED and last >= run.last_seq:
            return
        silent_s, is_over = 0.0, False
        async with self.feed.subscribe(run.id) as subscription:
            ask_sql = run.status in STREAM_ENDED or last < run.last_seq
            while not is_over:
                entries = await self._next(run, subscription, last, ask_sql=ask_sql)
                if entries:
                    yield entries
                    last, silent_s = entries[-1][0], 0.0
                    is_over = isinstance(decode(entries[-1][1]), Ended)
                    continue
                pause = min(DOUBT_S, quiet_s - silent_s)
                ask_sql = not await subscription.wait(pause)
                silent_s += pause if ask_sql else 0.0
                is_over = ask_sql and await self._is_over(run, last)
                if silent_s >= quiet_s and not is_over:
                    silent_s = 0.0
                    yield []

    async def wait_for_end(self, run: Run) -> None:
        """Returns when the run's stream has ended."""
        async for _ in self.follow(run, Seq(max(1, run.last_seq)), quiet_s=DOUBT_S):
            pass

    async def _next(self, run: Run, subscription: Subscription, last: Seq, *, ask_sql: bool) -> Entries:
        try:
            entries = await subscription.read(self.event_log, last)
        except Unavailable:
            return await self._stored_or_wait(run, last)
        if _follow(last, entries):
            unbroken = _up_to_a_hole(entries)
            if len(unbroken) < len(entries):
                # What was stored while Redis took no writes is not in its log: SQL has it.
                subscription.fall_behind()
            return unbroken
        if not entries and not ask_sql:
            return []
        try:
            stored = await self.events.read(run.id, last)
        except Unavailable:
            # What SQL has cannot be said to be gone; the entries that came are read again.
            subscription.fall_behind()
            await asyncio.sleep(AWAY_S)
            return []
        if _follow(last, stored):
            if entries:
                subscription.fall_behind()  # what came from Redis is read again, behind these
            return stored
        return self._across_gap(last, entries) if entries else []

    async def _stored_or_wait(self, run: Run, last: Seq) -> Entries:
        """While Redis is away: what SQL has, or nothing after a pause. The subscription is behind, so it waits for
        nothing itself."""
        try:
            stored = await self.events.read(run.id, last)
        except Unavailable:
            stored = []
        if _follow(last, stored):
            return stored
        await asyncio.sleep(AWAY_S)
        return []

    def _across_gap(self, last: Seq, entries: Entries) -> Entries:
        """What is truly gone is said: one entry stands for all that is missing."""
        first = entries[0][0]
        if first <= last + 1:
            return entries
        at = getattr(decode(entries[0][1]), "at", 0)
        return [(Seq(first - 1), encode(Gap(at=at, first_missing=Seq(last + 1)))), *entries]

    async def _is_over(self, run: Run, last: Seq) -> bool:
        """Whether a reader that hears nothing has in truth read everything: the run is gone, or ended before `last`."""
        try:
            now = await self.runs.look_up(run.id)
        except NotFound:
            return True
        except Unavailable:
            return False
        return now.status in STREAM_ENDED and last >= now.last_seq


def _follow(last: Seq, entries: Entries) -> bool:
    """Whether these are what comes after `last`: the next number, or the word that what was there is gone."""
    if not entries:
        return False
    number, entry = entries[0]
    if number == last + 1:
        return True
    event = decode(entry)
    return isinstance(event, Gap) and event.first_missing <= last + 1


def _up_to_a_hole(entries: Entries) -> Entries:
    """Those before the first number that is missing in between."""
    for position, (number, entry) in enumerate(entries):
        if position and not _follow(entries[position - 1][0], [(number, entry)]):
            return entries[:position]
    return entries
