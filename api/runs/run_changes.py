"""Streams for dashboards: the runs of a project or an agent that have not ended, and each change of a run's status or
of the number of its waiting calls.

They carry no texts and have no cursors: a client that reconnects gets the present state again. All readers of a project
or an agent share its queries. This process makes them at most four times a second, and only for announced runs; every
few seconds it also looks for changes whose announcements were lost.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from api.event_stream import EventStream
from api.runs.streaming import StreamService
from shared.concurrency import repeating
from shared.domain.ids import RunId
from shared.domain.lifecycle import ACTIVE
from shared.domain.threads import RunGlance, RunScope
from shared.redis import keys
from shared.redis.event_log import EventFeed
from shared.sql.runs.turns import AT_ONCE, RunChangeStore

LOOK_S = 5.0
"""Seconds between two looks for changes whose announcements were lost."""

GATHER_S = 0.25
"""Seconds in which announcements are collected into one query."""

MOST_WAITING = 5000
"""Changes that may wait for a slow reader. If there are more, the reader gets the present state instead."""


class RunProjection(Protocol):
    """A dashboard's view in a dialect."""

    def changed(self, run: RunGlance) -> bytes:
        """Renders a run's state."""
        ...

    def caught_up(self, runs: int, *, is_whole: bool) -> bytes:
        """Renders the mark after the runs that have not ended, with their number; `is_whole`: all were shown."""
        ...

    def over(self) -> bytes:
        """Renders the end of the stream."""
        ...


@dataclass(slots=True, eq=False)
class _Reader:
    """The changes that wait for one reader: the newest of each run."""

    waiting: dict[RunId, RunGlance] = field(default_factory=dict[RunId, RunGlance])
    is_behind: bool = True
    """The reader gets the present state next."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, run: RunGlance) -> None:
        self.waiting[run.id] = run
        if len(self.waiting) > MOST_WAITING:
            self.waiting.clear()
            self.is_behind = True
        self.news.set()


@dataclass(eq=False)
class _Board:
    """The runs of a scope as this process knows them."""

    scope: RunScope
    readers: list[_Reader] = field(default_factory=list[_Reader])
    active: dict[RunId, RunGlance] = field(default_factory=dict[RunId, RunGlance])
    """The runs that have not ended, oldest first."""
    newest: int | None = None
    """The number of the newest known run. None: nothing is known yet."""
    named: set[RunId] = field(default_factory=set[RunId])
    """Runs that were announced since the last look."""
    look_at: float = 0.0
    is_known: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, word: bytes | None) -> None:
        if word is None:
            self.look_at = 0.0
        elif len(parts := word.decode("utf-8", "replace").split(" ")) >= 3:
            self.named.add(RunId(parts[2]))

    def learn(self, run: RunGlance) -> None:
        known = self.active.get(run.id)
        if run.status in ACTIVE:
            self.active[run.id] = run
        else:
            self.active.pop(run.id, None)
        if known is None or (known.status, known.waiting) != (run.status, run.waiting):
            for reader in self.readers:
                reader.take(run)


class RunChanges:
    """The boards of this process. `store` reads a database that shows all projects."""

    def __init__(self, store: RunChangeStore, feed: EventFeed, streaming: StreamService) -> None:
        self._store = store
        self._feed = feed
        self._streaming = streaming
        self._boards: dict[RunScope, _Board] = {}

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Keeps the boards up to date for as long as the block lasts."""
        return repeating(self._round, every_s=GATHER_S, name="look at the runs of dashboards")

    def stream(self, scope: RunScope, projection: RunProjection, *, follow: bool) -> EventStream:
        """Returns the response that streams a scope. Without `follow` it ends with the present state."""
        streaming = self._streaming
        return EventStream(
            lambda: self.batches(scope, projection, follow=follow),
            streaming.ending,
            cut=None,
            entrance=lambda scope_: streaming.quotas.reading_of(scope.project_id, scope_),
        )

    async def batches(self, scope: RunScope, projection: RunProjection, *, follow: bool) -> AsyncGenerator[bytes]:
        """Yields the stream's bytes as they are ready. Empty bytes mean a silence: the sender sends a comment."""
        with self._reading(scope) as (board, reader):
            quiet_s = self._streaming.keepalive_s
            while not await _is_set(board.is_known, quiet_s):
                yield b""
            yield _next(board, reader, projection)
            while follow:
                yield _next(board, reader, projection) if await _is_set(reader.news, quiet_s) else b""
            yield projection.over()

    @contextmanager
    def _reading(self, scope: RunScope) -> Generator[tuple[_Board, _Reader]]:
        board, reader, channel = self._boards.get(scope), _Reader(), keys.thread_changes(scope.project_id)
        if board is None:
            board = self._boards[scope] = _Board(scope)
            self._feed.hear(channel, board.hear)
        board.readers.append(reader)
        try:
            yield board, reader
        finally:
            board.readers.remove(reader)
            if not board.readers:
                del self._boards[scope]
                self._feed.stop_hearing(channel, board.hear)

    async def _round(self) -> None:
        now = asyncio.get_running_loop().time()
        for board in list(self._boards.values()):
            is_due = now >= board.look_at
            if is_due:
                board.look_at = now + LOOK_S
            if is_due or board.named:
                await self._look(board, whole=is_due)

    async def _look(self, board: _Board, *, whole: bool) -> None:
        named, board.named = board.named, set()
        store, scope = self._store, board.scope
        if board.newest is None:
            newest = await store.newest_number(scope)
            board.active = {run.id: run for run in reversed(await store.active(scope))}
            board.newest = newest  # after both queries, or a board whose second one failed would never be known
            board.is_known.set()
            return
        if whole:
            named |= board.active.keys()
            for run in await store.since(scope, board.newest):
                board.newest = max(board.newest, run.number)
                board.learn(run)
        found = await store.among(scope, named)
        for run in found:
            board.learn(run)
        for gone in named.difference(run.id for run in found):
            board.active.pop(gone, None)  # deleted, or of another agent


async def _is_set(event: asyncio.Event, within_s: float) -> bool:
    """Waits for the event. Returns False if it is not set in `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def _next(board: _Board, reader: _Reader, projection: RunProjection) -> bytes:
    """Renders the reader's changes, or the present state if it is behind."""
    reader.news.clear()
    changes, reader.waiting = reader.waiting, {}
    if not reader.is_behind:
        return b"".join(map(projection.changed, changes.values()))
    reader.is_behind = False
    shown = list(board.active.values())[-AT_ONCE:]
    mark = projection.caught_up(len(shown), is_whole=len(board.active) < AT_ONCE)
    return b"".join([*map(projection.changed, shown), mark])
