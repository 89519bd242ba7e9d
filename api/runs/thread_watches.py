"""Wakes the readers of threads when their threads change.

A thread changes when a run of it begins, is decided, or ends while no worker has it. The process that does this
announces it. Changes within a run's log reach its readers through the log. Announcements may be lost, so a process also
looks into SQL: once every few seconds for all threads with readers together. A waiting reader costs no connection.
"""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager

from shared.concurrency import NewsWait, RoughTimers, repeating
from shared.domain.ids import ProjectId, ThreadId
from shared.redis import keys
from shared.redis.event_log import EventFeed
from shared.sql.runs.turns import ThreadState, TurnStore

LOOK_S = 5.0
"""Seconds between two looks for changes whose announcements were lost."""

GATHER_S = 0.25
"""Seconds in which new subscriptions are collected into one look."""


class ThreadWatch(NewsWait):
    """One reader's wait for changes of a thread, for the length of a block."""

    __slots__ = ("_project_id", "_watches", "is_gone", "thread_id")

    def __init__(
        self, watches: "ThreadWatches", project_id: ProjectId, thread_id: ThreadId, timers: RoughTimers
    ) -> None:
        super().__init__(timers)
        self._watches = watches
        self._project_id = project_id
        self.thread_id = thread_id
        self.is_gone = False
        """The thread was deleted."""

    def __enter__(self) -> "ThreadWatch":
        self._watches.enter(self._project_id, self)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_waiting()
        self._watches.leave(self._project_id, self)


class ThreadWatches:
    """The waiting readers of this process, of all projects. `turns` reads a database that shows all projects."""

    def __init__(self, turns: TurnStore, feed: EventFeed, *, look_s: float = LOOK_S) -> None:
        self._turns = turns
        self._feed = feed
        self._look_s = look_s
        self._timers = RoughTimers()
        self._look_at = 0.0
        """When to look next, by the event loop's clock."""
        self._watches: dict[ThreadId, list[ThreadWatch]] = {}
        self._states: dict[ThreadId, ThreadState] = {}
        """The threads as they were at the last look."""
        self._readers = Counter[ProjectId]()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Looks for changes whose announcements were lost, for as long as the block lasts."""
        return repeating(self._look_if_due, every_s=GATHER_S, name="look at the threads of readers")

    def watch(self, project_id: ProjectId, thread_id: ThreadId) -> ThreadWatch:
        """Watches a thread of this project for one reader, who is woken for each change within the block."""
        return ThreadWatch(self, project_id, thread_id, self._timers)

    def enter(self, project_id: ProjectId, watch: ThreadWatch) -> None:
        """Wakes this reader for changes from now on."""
        self._watches.setdefault(watch.thread_id, []).append(watch)
        self._readers[project_id] += 1
        if self._readers[project_id] == 1:
            self._feed.hear(keys.thread_changes(project_id), self._hear)

    def leave(self, project_id: ProjectId, watch: ThreadWatch) -> None:
        """Ends what `enter` began."""
        self._watches[watch.thread_id].remove(watch)
        if not self._watches[watch.thread_id]:
            del self._watches[watch.thread_id]
            self._states.pop(watch.thread_id, None)
        self._readers[project_id] -= 1
        if not self._readers[project_id]:
            del self._readers[project_id]
            self._feed.stop_hearing(keys.thread_changes(project_id), self._hear)

    def _hear(self, word: bytes | None) -> None:
        if word is None:
            # Announcements may be lost. One query finds the threads that have changed; ten thousand readers with a
            # query each would take the connections of all other requests.
            self._look_at = 0.0
            return
        thread_id, _, _ = word.partition(b" ")
        for watch in self._watches.get(ThreadId(thread_id.decode("utf-8", "replace")), ()):
            watch.tell()

    async def _look_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._look_at or not self._watches:
            return
        self._look_at = now + self._look_s
        await self._look()

    async def _look(self) -> None:
        """Wakes the readers of threads that have changed since the last look."""
        wanted = list(self._watches)
        states = await self._turns.states(wanted)
        for thread_id in wanted:
            watches, state = self._watches.get(thread_id, ()), states.get(thread_id)
            if not watches or (state is not None and state == self._states.get(thread_id)):
                continue
            if state is not None:
                self._states[thread_id] = state
            for watch in watches:
                watch.is_gone = state is None
                watch.tell()
