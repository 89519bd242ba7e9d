"""Group commit on SQLite: concurrent writes of many callers become one transaction.

The driver that all other callers use executes one statement at a time on its own thread, and the caller waits twice
for each. A commit per token cannot afford that. Here a transaction is one call, on the event loop itself: a commit in
WAL mode writes to the page cache and waits for no disk. Only the checkpoint of the WAL waits for a disk, and the
driver's thread executes it. Writes that arrive while another writer has the database are committed together afterwards.
There is no timer.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from shared.concurrency import background
from shared.domain.errors import Unavailable
from shared.sql.engine import PRAGMAS, Database, unavailable

Result = TypeVar("Result")

AT_ONCE = 100
"""The limit for one transaction, in writes: the event loop does nothing else during it."""

COMMITS_PER_CHECKPOINT = 250
"""After this many commits the WAL has about a thousand pages, which is SQLite's own limit before a checkpoint."""

BUSY_S = 0.01
BUSY_TRIES = 1000
"""How long and how often a transaction waits for another process that writes: as long as the driver does."""


class _Write(NamedTuple):
    """One caller's part of a transaction, and the future for its result."""

    work: Callable[[sqlite3.Connection], Any]
    outcome: "asyncio.Future[Any]"


class GroupCommit:
    """Writes to a database of SQLite over a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Write] = deque()
        self._awake, self._checkpoint_due = asyncio.Event(), asyncio.Event()
        self._commits = 0
        self._is_running = False
        self._connection: sqlite3.Connection | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["GroupCommit"]:
        """Commits the writes of callers during the block."""
        try:
            async with (
                background(self._commit_all(), name="group commit"),
                background(self._checkpoint_all(), name="checkpoint of the WAL"),
            ):
                self._is_running = True
                yield self
        finally:
            self._is_running = False
            _fail(self._waiting, _closed())
            if self._connection is not None:
                self._connection.close()

    async def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Runs `work` in a transaction and returns its result after the commit. `work` must not raise for reasons of
        its own, because the transaction may contain the work of other callers.

        Raises `Unavailable` for all of these callers if the transaction fails.
        """
        if not self._is_running:
            raise _closed()
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(work, outcome))
        self._awake.set()
        return await outcome

    async def _commit_all(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                async with self._database.one_writer:
                    group = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                    await self._commit(group)
                await asyncio.sleep(0)  # lets other tasks run

    async def _commit(self, group: Sequence[_Write]) -> None:
        failure: Unavailable | None = None
        try:
            results = await self._results([write.work for write in group])
            for write, result in zip(group, results, strict=True):
                if not write.outcome.done():
                    write.outcome.set_result(result)
        except sqlite3.Error as error:
            failure = unavailable(error)
            failure.__cause__ = error
        finally:
            if unanswered := [write for write in group if not write.outcome.done()]:
                _fail(unanswered, failure or _closed())
        self._commits += 1
        if self._commits % COMMITS_PER_CHECKPOINT == 0:
            self._checkpoint_due.set()

    async def _results(self, works: Sequence[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
        for _ in range(BUSY_TRIES):
            try:
                return self._transact(works)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY":
                    raise
            await asyncio.sleep(BUSY_S)
        return self._transact(works)

    def _transact(self, works: Sequence[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
        connection = self._connection = self._connection or self._connected()
        with connection:
            return [work(connection) for work in works]

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(str(self._database.url.database), timeout=0, isolation_level="IMMEDIATE")
        try:
            for pragma in (*PRAGMAS, "PRAGMA busy_timeout=0", "PRAGMA wal_autocheckpoint=0"):
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _checkpoint_all(self) -> None:
        while True:
            await self._checkpoint_due.wait()
            self._checkpoint_due.clear()
            try:
                async with self._database.read() as connection:
                    await connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            except Unavailable:
                continue  # the next checkpoint copies more pages


def _fail(writes: Iterable[_Write], failure: Unavailable) -> None:
    """Each waiting caller gets its own error object: one object raised in several places would collect the tracebacks
    of all."""
    for write in writes:
        if not write.outcome.done():
            error = type(failure)(failure.message)
            error.__cause__ = failure.__cause__
            write.outcome.set_exception(error)


def _closed() -> Unavailable:
    return Unavailable("This process is stopping and stores no more events")
