"""Where logs end, for readers that hear nothing.

The feed forgets: an end that was published while nobody could hear it is in SQL alone. A thousand silent readers ask
SQL one question together, and a reader of whose log there is no news is not woken.
"""

import asyncio
from collections.abc import Collection, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.concurrency import repeating
from shared.domain.errors import Unavailable
from shared.domain.events import FIRST_SEQ
from shared.domain.ids import RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED
from shared.redis.event_feed import Subscription
from shared.sql.runs.run_store import RunStore

DOUBT_S = 5.0
"""Seconds of silence after which SQL is asked at the latest: an end that was published while the feed was away is
there."""

GATHER_S = 0.25
"""Seconds that the questions of readers wait for one another."""


class LogEnd(NamedTuple):
    """How far a log reaches in SQL, and whether it has ended."""

    last_seq: Seq
    is_over: bool


@dataclass
class _Question:
    """A question that readers ask SQL together."""

    wanted: set[RunId] = field(default_factory=set[RunId])
    is_answered: bool = False
    ends: dict[RunId, LogEnd] | None = None
    """None: the database does not say."""


@dataclass(slots=True, eq=False)
class LogWatch:
    """What one reader of a run that goes on has heard, and what SQL says of its log's end."""

    subscription: Subscription
    last: Seq
    """The last number that the reader has."""
    asked_at: Seq | None = None
    """That number when the last round came by."""
    end: LogEnd | None = None
    """None: nobody was in doubt yet."""

    @property
    def is_over(self) -> bool:
        return self.end is not None and self.end.is_over

    @property
    def is_stored(self) -> bool:
        """Whether SQL has what follows."""
        return self.end is not None and self.last < self.end.last_seq


class LogEnds:
    """Says where logs end, for readers that hear nothing. They ask SQL one question together, so that writers have the
    database's connections, and a reader of whose log there is no news is not woken."""

    def __init__(self, runs: RunStore, *, doubt_s: float = DOUBT_S) -> None:
        self._runs = runs
        self._round_s = doubt_s / 2
        self._watches: set[LogWatch] = set()
        self._next = _Question()
        self._asking = asyncio.Lock()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Looks after readers for as long as the block lasts."""
        return repeating(self._look, every_s=self._round_s, name="look for the ends of logs")

    @contextmanager
    def watch(self, subscription: Subscription, last: Seq) -> Generator[LogWatch]:
        """For one reader: who has heard nothing for a while is told when SQL has more, or the end."""
        watch = LogWatch(subscription, last)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    async def of(self, run_id: RunId) -> LogEnd | None:
        """Where the run's log ends; the log of a deleted run has ended. None: the database does not answer."""
        question = self._next
        question.wanted.add(run_id)
        # The first reader that comes asks for all. If it leaves meanwhile, the next one does.
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
        """One round: asks for those who have heard nothing since the last one."""
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
