"""Connections and transactions, on SQLite and on Postgres. The only file that commits."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from shared.crash_points import CrashPoint, reach
from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable

DATABASE_ERRORS = (DBAPIError, PoolTimeout, ConnectionError, TimeoutError, UnicodeEncodeError)
"""The errors that a statement may raise. A failure to connect is an OSError, because the driver does not wrap it."""

_AWAY = ("08", "40", "53", "57")
"""Classes of SQLSTATE: connection lost, transaction given up, out of resources, shutting down. All of them pass."""
_DATA = "22"
"""The class of values that cannot be stored, such as a NUL in a text."""


def as_ours(error: BaseException) -> HoldfastError | None:
    """The domain error that a database's error means; None when the error means that the code is wrong.

    The database's own text may hold statements and values. So it goes to the log with the cause, never into our
    message.
    """
    if isinstance(error, UnicodeEncodeError):
        return _unstorable()
    if not isinstance(error, DBAPIError) or isinstance(error, (OperationalError, InterfaceError)):
        return Unavailable("the database does not answer; try again")
    # asyncpg's errors carry their SQLSTATE, and SQLAlchemy gives few of them a class of their own.
    state = str(getattr(error.orig, "sqlstate", None))
    if error.connection_invalidated or state.startswith(_AWAY):
        return Unavailable("the database does not answer; try again")
    return _unstorable() if state.startswith(_DATA) else None


@asynccontextmanager
async def database_answers() -> AsyncGenerator[None]:
    """Turns the errors of the database into domain errors."""
    try:
        yield
    except DATABASE_ERRORS as error:
        ours = as_ours(error)
        if ours is None:
            raise
        raise ours from error


def _unstorable() -> InvalidRequest:
    return InvalidRequest("A text contains what cannot be stored, a NUL or half a surrogate pair: remove it")


_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # A crashed process loses nothing with NORMAL; only a power cut may take the last commits.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=10000",
)

MIGRATION_LOCK = 4_819_203_311
"""The number of our advisory lock; no other program on the database uses it."""

WAIT_S = 3.0
"""Seconds to wait for a connection, a new one or one of the pool. After them a request is a 503."""

ANSWER_S = 10.0
"""After so many seconds without an answer to a statement, the database counts as gone."""

TRUSTED_S = 1.0
"""Seconds. A connection that was used so recently counts as working."""

_USED_AT = "holdfast_used_at"

_DRIVERS = {"postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}


def database_url(text: str) -> URL:
    """The URL with our drivers in it. Raises `InvalidRequest` when it names neither Postgres nor a SQLite file."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidRequest(
            f"HOLDFAST_DATABASE_URL is not a database URL: {text!r}. Use postgresql://… or sqlite:///path"
        ) from error
    backend = url.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise InvalidRequest(
            f"HOLDFAST_DATABASE_URL names {backend!r}; Holdfast runs on postgresql://… or sqlite:///path"
        )
    return url.set(drivername=_DRIVERS[backend])


class Database:
    """One process's way to its database.

    SQLite has one writer at a time. A lock keeps the writers of this process from meeting in SQLite's busy handler,
    which sleeps. `BEGIN IMMEDIATE` takes the write lock before anything is read, so that no transaction has to be
    repeated.

    `connections` is the most that the pool opens; it keeps each of them. `wait_s` is how long a caller waits for one
    when all are in use. `answer_s` is how long a statement may take before the database counts as gone; None for work
    that takes its time. Before a connection of Postgres is used that was idle for `trusted_s`, the pool asks it whether
    it works. The pool's own check would ask before every use, which costs a busy process a round trip per transaction.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int = 20,
        answer_s: float | None = ANSWER_S,
        wait_s: float = WAIT_S,
        trusted_s: float = TRUSTED_S,
    ) -> None:
        self.url = database_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
        waits = {"timeout": WAIT_S, "command_timeout": answer_s}
        self._engine: AsyncEngine = create_async_engine(
            self.url,
            # No overflow: it would be closed after use, and a burst would spend its time on opening connections.
            pool_size=connections,
            max_overflow=0,
            # The connection that was used last has the statements prepared.
            pool_use_lifo=True,
            pool_timeout=wait_s,
            # Documents hold secrets; an error that is logged must not show them.
            hide_parameters=True,
            **({"isolation_level": "AUTOCOMMIT"} if self.is_sqlite else {"connect_args": waits}),
        )
        # The whole engine has this level. To set it on each checkout would wait for SQLite's driver thread, and a task
        # that is cancelled there leaves its connection to the garbage collector. `write` begins a transaction itself.
        self._reading = self._engine if self.is_sqlite else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._one_writer = asyncio.Lock()
        if self.is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _set_pragmas)
        else:
            event.listen(self._engine.sync_engine, "checkin", _note_use)
            event.listen(self._engine.sync_engine, "checkout", partial(_ping_if_idle, self._engine.dialect, trusted_s))

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for reading: each statement sees what is committed when it starts."""
        async with database_answers(), self._reading.connect() as connection:
            yield connection

    @asynccontextmanager
    async def write(self, crash_point: CrashPoint | None = None) -> AsyncGenerator[AsyncConnection]:
        """A transaction. Commits at the end of the block, rolls back when it raises."""
        if not self.is_sqlite:
            async with database_answers(), self._engine.begin() as connection:
                yield connection
                reach(crash_point, "before")
            reach(crash_point, "after")
            return
        async with database_answers(), self._one_writer, self._reading.connect() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                await connection.exec_driver_sql("ROLLBACK")
                raise
            reach(crash_point, "before")
            await connection.exec_driver_sql("COMMIT")
            reach(crash_point, "after")

    @asynccontextmanager
    async def migrating(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction for changing the schema; on Postgres only one process at a time has it."""
        async with self.write() as connection:
            if not self.is_sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            yield connection

    async def is_reachable(self) -> bool:
        """Whether the database answers."""
        try:
            async with self.read() as connection:
                await connection.execute(sa.text("SELECT 1"))
        except Unavailable:
            return False
        return True

    async def aclose(self) -> None:
        await self._engine.dispose()


def _note_use(_: Any, entry: ConnectionPoolEntry) -> None:
    entry.info[_USED_AT] = time.monotonic()


def _ping_if_idle(dialect: Dialect, trusted_s: float, connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
    if time.monotonic() - entry.info.get(_USED_AT, math.inf) < trusted_s:
        return
    try:
        dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error as error:
        raise DisconnectionError(str(error)) from error


def _set_pragmas(connection: Any, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()
