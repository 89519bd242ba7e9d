"""Databases for tests: a Postgres server that makes them, databases with the product's schema, and locks on rows.

A lock is a barrier in the middle of a write: the writer of a run or a thread waits until the test releases the lock.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, Pool

from shared.domain.ids import RunId, ThreadId
from shared.sql.engine import Database
from shared.sql.history.thread_queue import thread_lock
from shared.sql.migrate import migrate
from shared.sql.run_tables import runs
from shared.sql.tables import metadata
from tests.kit.wait_until import HANGS_S

CONNECT_S = 60

CLOSE_OTHERS = sa.text(
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

EMPTY_ALL_TABLES = """
    DO $$ BEGIN
        PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid();
        {deletions}
    END $$
""".format(deletions="".join(f'DELETE FROM "{table.name}";' for table in reversed(metadata.sorted_tables)))  # noqa: S608 - our own names
"""No other process may write meanwhile. DELETE is much faster than TRUNCATE on tables with few rows."""

ADVISORY_LOCKS_WAITED_FOR = """
    SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


_NUMBERS = itertools.count(1)
"""Numbers for the databases of this process, on any server."""


class PostgresServer:
    """Makes databases on the server of `admin_url` and drops them again.

    A migrated database takes a second to create and a moment to empty, so tests borrow and release databases. The
    methods are synchronous and work on a thread with its own loop, because the caller's event loop is the test's.
    """

    def __init__(self, admin_url: str) -> None:
        self._admin = make_url(admin_url)
        self._prefix = f"holdfast_test_{os.getpid()}"
        self._free: list[str] = []
        self._free_of_plain_owner: list[str] = []
        self._plain_owner: str | None = None
        self._empties = _Emptying()

    def check(self) -> None:
        """Raises `OSError` or `SQLAlchemyError` if the server does not answer or refuses the role."""
        self._execute("SELECT 1")

    def create_database(self) -> str:
        """Creates an empty database and returns its URL."""
        name = f"{self._prefix}_{next(_NUMBERS)}"
        self._execute(f'CREATE DATABASE "{name}"')
        return self._admin.set(database=name).render_as_string(hide_password=False)

    def create_database_of_plain_owner(self) -> str:
        """Creates an empty database and returns its URL for its owner, who is no superuser: policies bind only such a
        role."""
        if self._plain_owner is None:
            self._plain_owner = f"{self._prefix}_plain"
            password = f" PASSWORD '{self._admin.password}'" if self._admin.password else ""
            self._execute(f'CREATE ROLE "{self._plain_owner}" LOGIN{password}')
        url = make_url(self.create_database()).set(username=self._plain_owner, password=self._admin.password)
        self._execute(f'ALTER DATABASE "{url.database}" OWNER TO "{self._plain_owner}"')
        return url.render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drops a database, and closes connections to it that a test has left open."""
        self._execute(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')

    def lend_migrated(self) -> str:
        """Returns the URL of a migrated database without rows, which no other test gets until its release."""
        if self._free:
            return self._free.pop()
        url = self.create_database()
        on_another_loop(migrate_database(url))
        return url

    def lend_migrated_of_plain_owner(self) -> str:
        """Like `lend_migrated`, for its owner, who is no superuser."""
        if self._free_of_plain_owner:
            return self._free_of_plain_owner.pop()
        url = self.create_database_of_plain_owner()
        on_another_loop(migrate_database(url))
        return url

    def release(self, url: str) -> None:
        """Closes the connections to a lent database and deletes its rows."""
        lent = make_url(url)
        self._empties.empty(self._admin.set(database=lent.database))
        owned = self._plain_owner is not None and lent.username == self._plain_owner
        (self._free_of_plain_owner if owned else self._free).append(url)

    def drop_free(self) -> None:
        self._empties.close()
        for free in (self._free, self._free_of_plain_owner):
            while free:
                self.drop_database(free.pop())
        if self._plain_owner is not None:
            self._execute(f'DROP ROLE "{self._plain_owner}"')

    def cut_connections(self, url: str) -> None:
        """Closes every connection to that database, as a restarted server does. Returns when they are closed."""
        name = make_url(url).database
        self._execute(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608 - our own name
        )

    def _execute(self, statement: str) -> None:
        on_another_loop(_execute(self._admin, statement))


class _Emptying:
    """Empties lent databases over one connection to each. A new connection would read Postgres's catalogue again, which
    is most of the work."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._runner = asyncio.Runner()
        self._connections: dict[URL, AsyncConnection] = {}

    def empty(self, url: URL) -> None:
        self._thread.submit(self._runner.run, self._empty(url)).result()

    def close(self) -> None:
        self._thread.submit(self._runner.run, self._close()).result()
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    async def _empty(self, url: URL) -> None:
        known = self._connections.pop(url, None)
        if known is not None:
            with suppress(DBAPIError):  # a test may have ended the connection
                await known.execute(sa.text(EMPTY_ALL_TABLES))
                self._connections[url] = known
                return
            await known.invalidate()
        made = await _engine(url).connect()
        await made.execute(sa.text(EMPTY_ALL_TABLES))
        self._connections[url] = made

    async def _close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


@asynccontextmanager
async def new_database(admin_url: str) -> AsyncGenerator[str]:
    """Yields the URL of a new, empty database of the Postgres server, and drops it after the block."""
    server = PostgresServer(admin_url)
    url = server.create_database()
    try:
        yield url
    finally:
        server.drop_database(url)


def on_another_loop(work: Coroutine[Any, Any, None]) -> None:
    """Completes the work on a separate thread, whatever loop the calling thread has."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, work).result()


async def migrate_database(url: str) -> None:
    """Applies all migrations to the empty database of `url`."""
    async with open_database(url) as database:
        await migrate(database)


def patient_database(url: str, *, connections: int = 20) -> Database:
    """Returns the database of `url` with limits that no standstill of the machine exceeds."""
    return Database(url, connections=connections, answer_s=HANGS_S, wait_s=HANGS_S)


@asynccontextmanager
async def open_database(url: str) -> AsyncGenerator[Database]:
    """Yields the database of `url`, and closes it after the block."""
    database = patient_database(url)
    try:
        yield database
    finally:
        await database.aclose()


@asynccontextmanager
async def run_locked(url: str, run_id: RunId) -> AsyncGenerator[None]:
    """Keeps every other writer from the run (on SQLite: from the database) for as long as the block lasts."""
    async with open_database(url) as database, database.write() as connection:
        await connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id).with_for_update())
        yield


@asynccontextmanager
async def thread_locked(url: str, thread_id: ThreadId) -> AsyncGenerator[Callable[[], Awaitable[bool]]]:
    """On Postgres: makes processes wait that end runs of the thread. Yields a function that tells whether one waits."""
    async with open_database(url) as database:

        async def somebody_waits() -> bool:
            async with database.read() as connection:
                return (await connection.execute(sa.text(ADVISORY_LOCKS_WAITED_FOR))).scalar_one() > 0

        async with database.write(None, thread_lock(thread_id)):
            yield somebody_waits


async def _execute(url: URL, statement: str) -> None:
    engine = _engine(url)
    async with engine.connect() as connection:
        await connection.execute(sa.text(statement))
    await engine.dispose()


def _engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",  # CREATE DATABASE refuses to run in a transaction
        connect_args={"timeout": CONNECT_S},
    )


_IS_ASKED_FOR_THE_TEST: ContextVar[bool] = ContextVar("is asked for the test", default=False)


@contextmanager
def statements() -> Generator[list[str]]:
    """Every statement of the test or on its behalf in the block, without those of background loops."""
    asked: list[str] = []
    belongs = _IS_ASKED_FOR_THE_TEST.set(True)

    def note(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if _IS_ASKED_FOR_THE_TEST.get():
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        _IS_ASKED_FOR_THE_TEST.reset(belongs)


@contextmanager
def round_trips() -> Generator[list[str]]:
    """The statements sent to Postgres over connections made in the block: one text for each round trip, of as
    many statements as go together."""
    sent: list[str] = []

    def note(logged: Any) -> None:
        sent.append(logged.query)

    def listen(connection: Any, _entry: Any) -> None:
        connection.driver_connection.add_query_logger(note)

    event.listen(Pool, "connect", listen)
    try:
        yield sent
    finally:
        event.remove(Pool, "connect", listen)


@asynccontextmanager
async def read_only(url: str) -> AsyncGenerator[None]:
    """For the block, every connection to this Postgres database refuses writes, as at a standby since a failover. The
    connections that were open at its beginning are closed."""
    await _alter(url, "SET default_transaction_read_only = on")
    async with open_database(url) as database, database.read() as connection:
        await connection.execute(CLOSE_OTHERS)
    try:
        yield
    finally:
        await _alter(url, "RESET default_transaction_read_only")


async def _alter(url: str, how: str) -> None:
    async with open_database(url) as database, database.read() as connection:
        await connection.execute(sa.text("SET default_transaction_read_only = off"))
        await connection.execute(sa.text(f'ALTER DATABASE "{make_url(url).database}" {how}'))
