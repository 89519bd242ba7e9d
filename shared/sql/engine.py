"""The database: its connections and transactions, on SQLite and on Postgres, and the reasons why it does not serve. The
only file that commits.

`HOLDFAST_DATABASE_URL` is parsed here, once, and is never shown with its password.
"""

import asyncio
import copy
import math
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from shared.concurrency import AnswerTimeout
from shared.crash_points import CrashPoint, reach
from shared.domain.errors import HoldfastError, InvalidRequest, Unavailable, Unusable
from shared.sql.connection import AT_A_STANDBY, READ_ONLY, CompiledStatements, Connection, Filled, is_raced, is_unusable

_SETTING = "HOLDFAST_DATABASE_URL"
_EXAMPLES = "use postgresql://role:password@host/database, or sqlite:///path"
_DRIVERS = {"postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}

_PARAMETERS = frozenset(
    {"host", "port", "user", "password", "passfile", "ssl", "sslmode", "target_session_attrs"}
    | {"prepared_statement_cache_size"}
)
"""The parameters that a Postgres URL may have after `?`: asyncpg's own names that take a text, and `sslmode`, the usual
name for asyncpg's `ssl`."""


def database_url(text: str) -> URL:
    """Returns the URL with the names of the product's drivers. Raises `InvalidRequest` if it names neither Postgres nor
    a SQLite file. No message quotes the text, because an invalid URL may have a password anywhere."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # `ValueError` means that the port is not a number.
        raise InvalidRequest(f"{_SETTING} is not a database URL: {_EXAMPLES}") from error
    backend = url.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise InvalidRequest(f"{_SETTING} names {backend!r}; Holdfast runs on Postgres and SQLite: {_EXAMPLES}")
    url = url.set(drivername=_DRIVERS[backend])
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise InvalidRequest(f"{_SETTING} names no file: use sqlite:///path, with a fourth / for an absolute path")
        return url
    return _of_postgres(url)


def _of_postgres(url: URL) -> URL:
    if url.port is not None and not 1 <= url.port <= 65535:
        raise InvalidRequest(f"{_SETTING} names port {url.port}: use one from 1 to 65535, Postgres listens on 5432")
    unknown = sorted(url.query.keys() - _PARAMETERS)
    if unknown:
        raise InvalidRequest(
            f"{_SETTING} has a parameter {unknown[0]!r}, which is unknown: use {', '.join(sorted(_PARAMETERS))}"
        )
    query: Mapping[str, str | tuple[str, ...]] = {
        ("ssl" if name == "sslmode" else name): value for name, value in url.query.items()
    }
    modes = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    if query.get("ssl", "prefer") not in modes:
        raise InvalidRequest(f"{_SETTING}: sslmode is one of {', '.join(modes)}")
    return url.set(query=query)


def shown(url: URL) -> str:
    """Returns the URL for a message, without the password and the parameters after `?`."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    return url.set(drivername="postgresql", query={}).render_as_string()


PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # A crashed process loses nothing with NORMAL; only a power cut may take the last commits.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=10000",
)

MIGRATION_LOCK = 4_819_203_311
"""The number of the advisory lock for migrations; no other program on the database uses it."""

WAIT_S = 3.0
"""Seconds to wait for a connection, a new one or one of the pool. After that, the API answers 503."""

ANSWER_S = 10.0
"""The limit for the wait for a statement's answer, in seconds. After that, the database counts as unavailable."""

TRUSTED_S = 1.0
"""A connection that was used less than this many seconds ago counts as working."""

REPLACED_EVERY_S = 2.0
"""How often, at most, refused writes replace all connections: reads go on while the only server is a standby."""

_USED_AT = "holdfast_used_at"

ALL_PROJECTS = ""
"""Used in place of a project, for processes that serve all of them, such as workers: no filter of rows."""

PROJECT_SETTING = "holdfast.project"
"""The setting that the tables' policies read on Postgres: the project whose rows a session may see and write. Without
it, a session sees the rows of all projects, as workers need."""

_SHOWN = "holdfast_shown"

_REFUSE_LIKE_A_WRITE = (
    "DO $$BEGIN IF current_setting('transaction_read_only')::bool THEN RAISE read_only_sql_transaction; END IF; END$$"
)
"""Postgres answers it on a read-only server with the error of a write, and changes nothing on any server."""


def _set_project(*, until_the_end: bool) -> sa.Select[tuple[str]]:
    return sa.select(sa.func.set_config(PROJECT_SETTING, sa.bindparam("project", type_=sa.Text), until_the_end))


_FOR_THE_SESSION, _FOR_THE_TRANSACTION = _set_project(until_the_end=False), _set_project(until_the_end=True)


class Database:
    """A process's connections to its database.

    SQLite has one writer at a time. A lock keeps the writers of this process out of SQLite's busy handler, which
    sleeps. `BEGIN IMMEDIATE` takes the write lock before the first read, so that no transaction has to be repeated.

    `connections` is the pool's limit; the pool keeps each connection that it opens. `wait_s` is how long a caller waits
    for a connection while all are in use. `answer_s` is how long a statement may take before the database counts as
    unavailable; None for work without a limit. The pool tests a connection to Postgres before its use if it was idle
    for `trusted_s`. SQLAlchemy's own test would run before every use, which costs a busy process a round trip per
    transaction.
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
            _make_room(Path(self.url.database))
            check_file(Path(self.url.database))
        waits = {"timeout": None, "command_timeout": answer_s}
        self._engine: AsyncEngine = _engine(
            self.url,
            # No overflow: the pool would close it after use, and a burst would spend its time on opening connections.
            pool_size=connections,
            max_overflow=0,
            # The most recently used connection has the statements prepared.
            pool_use_lifo=True,
            pool_timeout=wait_s,
            # `write` ends its transactions itself, and the check below refuses a connection that is still in one.
            pool_reset_on_return=None,
            isolation_level="AUTOCOMMIT",
            # Documents contain secrets, which the logs of errors must not show.
            hide_parameters=True,
            **({} if self.is_sqlite else {"connect_args": waits}),
        )
        self._begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN ISOLATION LEVEL READ COMMITTED"
        self._statements = CompiledStatements(self._engine.dialect)
        self.one_writer = asyncio.Lock()
        """Each writer to SQLite in this process holds it."""
        self.project_of_task: Callable[[], str] = lambda: ALL_PROJECTS
        self.sets_project = not self.is_sqlite
        if self.is_sqlite:
            event.listen(self._engine.sync_engine, "connect", _set_pragmas)
        else:
            event.listen(self._engine.sync_engine, "do_connect", _bound)
            event.listen(self._engine.sync_engine, "checkin", _note_use)
        trusted_s = math.inf if self.is_sqlite else trusted_s
        event.listen(self._engine.sync_engine, "checkout", _check_of(self._engine.dialect, trusted_s))

    def scoped_to(self, project_of_task: Callable[[], str], *, policies: bool = True) -> "Database":
        """Returns a view of the same connections for a caller that acts for one project. Each use calls
        `project_of_task`, which raises if there is none. On Postgres, each use sets its session to that project, so
        that the tables' policies hide all other rows; without `policies`, it does not."""
        bound = copy.copy(self)
        bound.project_of_task = project_of_task
        bound.sets_project = policies and not self.is_sqlite
        return bound

    def connections(self) -> dict[str, int]:
        """The pool's connections: those in use, those that are open and idle, and how many more it may open."""
        pool: Any = self._engine.pool
        in_use, idle = pool.checkedout(), pool.checkedin()
        return {"in_use": in_use, "idle": idle, "free": max(pool.size() - in_use - idle, 0)}

    async def passes_policies(self) -> bool:
        """Returns whether the role of this process bypasses the tables' policies: as a superuser, or with BYPASSRLS.
        False while the database does not answer."""
        passes = sa.text("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
        try:
            async with self.read() as connection:
                return (await connection.execute(passes)).scalar_one()
        except (Unavailable, OSError):
            return False

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Connection]:
        """A connection for reading: each statement sees what is committed when it starts."""
        project = self.project_of_task()
        async with database_answers(), Connection(self._engine, self._statements) as connection:
            if self.sets_project and connection.info.get(_SHOWN, ALL_PROJECTS) != project:
                await connection.execute(_FOR_THE_SESSION, {"project": project})
                connection.info[_SHOWN] = project
            yield connection

    @asynccontextmanager
    async def single(self, crash_point: CrashPoint) -> AsyncGenerator[Connection]:
        """A connection for one statement that writes. It is a transaction by itself, so it costs one round trip."""
        async with self.read() as connection:
            reach(crash_point, "before")
            yield connection
        reach(crash_point, "after")

    @asynccontextmanager
    async def write(self, crash_point: CrashPoint | None = None, *locks: Filled) -> AsyncGenerator[Connection]:
        """A transaction. Commits at the end of the block, and rolls back if the block raises. It begins with these
        locks; on SQLite the write lock makes them unnecessary."""
        project = self.project_of_task()
        turn = self.one_writer if self.is_sqlite else nullcontext()
        async with database_answers(), turn, Connection(self._engine, self._statements) as connection:
            try:
                first = [] if self.is_sqlite else [*locks]
                if self.sets_project and connection.info.get(_SHOWN, ALL_PROJECTS) != project:
                    # Sets it for the transaction only: a rollback would silently undo a setting for the session.
                    first.insert(0, Filled(_FOR_THE_TRANSACTION, {"project": project}))
                await connection.open_transaction(self._begin, first)
                yield connection
                await connection.flush()
                reach(crash_point, "before")
                await connection.tell("COMMIT")
            except BaseException:
                await connection.undo("ROLLBACK")
                raise
            reach(crash_point, "after")

    @asynccontextmanager
    async def migrating(self) -> AsyncGenerator[Connection]:
        """A transaction that changes the schema; on Postgres only one process at a time is in it."""
        async with self.write() as connection:
            # Alembic asks SQLAlchemy whether it is in a transaction, and would begin and commit its own.
            await connection.begin()
            if not self.is_sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            yield connection

    async def greet(self) -> None:
        """Returns when the database has answered. Raises `Unavailable`."""
        async with self.read() as connection:
            await connection.execute(sa.text("SELECT 1"))

    async def try_writing(self) -> None:
        """Returns when the database has answered and its server accepts writes. Raises `Unavailable`. SQLite, which has
        one writer, need only answer."""
        await self.greet()
        if not self.is_sqlite:
            async with self.read() as connection:
                await connection.tell(_REFUSE_LIKE_A_WRITE)

    async def now(self) -> datetime:
        """Returns the database's time, to the second; SQLite uses this machine's clock. Raises `Unavailable`."""
        async with self.read() as connection:
            found: datetime = (await connection.execute(sa.select(sa.func.now()))).scalar_one()
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    async def aclose(self) -> None:
        await self._engine.dispose()


class Store:
    """Reads and writes the rows of one noun. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database


def _engine(url: URL, **given: Any) -> AsyncEngine:
    try:
        return create_async_engine(url, **given)
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"HOLDFAST_DATABASE_URL asks for the Python package {error.name!r}, which is not installed. In "
            "a checkout of Holdfast, `pip install -e '.[postgres]' -c constraints.txt` adds it"
        ) from error


def _bound(dialect: Dialect, _entry: Any, _arguments: Any, settings: dict[str, Any]) -> None:
    """Limits the wait for a new connection to Postgres. asyncpg's own limit also expires while the process is
    suspended, and then a starting worker would exit."""
    settings["async_creator_fn"] = partial(_connect, cast("Any", dialect.loaded_dbapi).asyncpg.connect)


async def _connect(connect: Callable[..., Awaitable[Any]], **settings: Any) -> Any:
    async with AnswerTimeout(WAIT_S):
        connection = await connect(**settings)
        try:
            # The policies' subqueries look expensive to the planner, but compiling such a query costs most of all.
            await connection.execute("SET jit = off")
        except BaseException:
            connection.terminate()  # no other code has it yet
            raise
        return connection


def _make_room(path: Path) -> None:
    """Creates the folder and the file of a SQLite database, with permissions for the process's user alone. The files
    that SQLite adds beside it get the same permissions. Existing files keep theirs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unusable(f"the folder {path.parent} cannot be made: {error.strerror}") from error
    if path.name != ":memory:":
        with suppress(OSError):  # it exists, or cannot be made; in that case the connect fails
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _note_use(_: Any, entry: ConnectionPoolEntry) -> None:
    entry.info[_USED_AT] = time.monotonic()


def _check_of(dialect: Dialect, trusted_s: float) -> Callable[[Any, ConnectionPoolEntry, object], None]:
    """Tests a connection that leaves the pool. The pool replaces one for which the test raises `DisconnectionError`.
    `InvalidatePoolError` has it replace all older ones, too, before their next use."""
    replaced_at = -math.inf

    def check(connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
        nonlocal replaced_at
        now = time.monotonic()
        if AT_A_STANDBY in entry.info and now - replaced_at > REPLACED_EVERY_S:
            replaced_at = now
            raise InvalidatePoolError("its server is a standby")
        if is_unusable(connection.driver_connection):
            raise DisconnectionError("lost, or in a transaction")
        if now - entry.info.get(_USED_AT, math.inf) < trusted_s:
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            raise DisconnectionError(str(error)) from error

    return check


def _set_pragmas(connection: Any, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


# Translates a database's errors into one sentence with the reason and the person who must act.
#
# The sentences reach clients as well, so none of them names an address, a role or a value. The command line adds those.


_SILENT = "the database does not answer; try again"
_FULL = "the disk of the database is full"

_POOLED = Unusable(
    "a pooler before the database gives each transaction another session, and the statements that were prepared in "
    "one are missing in the next: let it pool sessions (docs/operations/postgres.md)"
)

_SQLSTATES: Mapping[str, Unavailable] = {
    "26000": _POOLED,
    "42P05": _POOLED,
    "28": Unusable("the database refuses the role or its password"),
    "3D": Unusable("the server of the database has no database of this name; `createdb` makes one"),
    "23505": Unavailable("another request stores the same at this moment; try again"),
    READ_ONLY: Unavailable("the database refuses writes: its server is a standby, or is set to be read-only"),
    "40P01": Unavailable("the database ended a deadlock; try again"),
    "53100": Unavailable(_FULL),
    "55P03": Unavailable("the database waited for a lock for longer than its `lock_timeout` allows"),
    "57014": Unavailable("the database stopped a statement, after its `statement_timeout` if one is set; try again"),
    "53300": Unavailable(
        "the database has no connection left: raise its `max_connections`, or lower HOLDFAST_DATABASE_CONNECTIONS"
    ),
}
"""The errors by a whole SQLSTATE, or by its class (the first two characters)."""

_SQLITE: Mapping[str, Unavailable] = {
    "SQLITE_FULL": Unavailable(_FULL),
    "SQLITE_CANTOPEN": Unusable(
        "the database's file cannot be opened; it must be a file in a folder that this process may write"
    ),
    "SQLITE_READONLY": Unusable("the database's file or its folder may not be written"),
    "SQLITE_NOTADB": Unusable("the database's file is not a SQLite database; name another file"),
    "SQLITE_CORRUPT": Unusable("the database's file is damaged; restore a back-up (docs/operations/back-up.md)"),
}
"""The errors by the name of a primary error; `SQLITE_CANTOPEN_ISDIR` belongs to `SQLITE_CANTOPEN`."""


DATABASE_ERRORS = (DBAPIError, PoolTimeout, OSError, UnicodeEncodeError)
"""The errors that a statement may raise. A failed connect, DNS lookup or route is an OSError, because the driver does
not wrap it."""

_AWAY = ("08", "40", "53", "57", READ_ONLY, "55P03", "58030", "26000", "42P05")
"""SQLSTATEs or their classes: connection lost, transaction aborted, out of resources, shutting down, read-only, a lock
that the server's own timeout denied and a failed disk are temporary; the last two mean that a prepared statement is
missing or exists already."""
_DATA = "22"
"""The SQLSTATE class of values that the database cannot store, such as a NUL in a text."""


def as_ours(error: BaseException) -> HoldfastError | None:
    """Returns the domain error for a database's error; None if the error shows a defect in our code.

    The database's own text may hold statements and values. So it goes to the log with the cause, never into our
    message.
    """
    if isinstance(error, UnicodeEncodeError):
        return _unstorable()
    if not isinstance(error, DBAPIError) or isinstance(error, (OperationalError, InterfaceError)):
        return unavailable(error)
    # asyncpg's errors have their SQLSTATE, and SQLAlchemy has its own classes for few of them.
    state = str(getattr(error.orig, "sqlstate", None))
    if error.connection_invalidated or state.startswith(_AWAY) or is_damaged(error) or is_raced(error):
        return unavailable(error)
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


def unavailable(error: BaseException) -> Unavailable:
    """Returns the domain error for an error that means that no statement can be executed now."""
    if isinstance(error, PoolTimeout):
        return Unavailable("every connection to the database is in use (HOLDFAST_DATABASE_CONNECTIONS); try again")
    known = _known(error.orig if isinstance(error, DBAPIError) else error)
    # A new one each time: a raised error collects a traceback.
    return type(known)(known.message) if known else Unavailable(_SILENT)


def check_file(file: Path) -> None:
    """Raises `Unusable` if the path cannot be a SQLite database. The driver works on its own thread, which would still
    report the error after the process has ended."""
    if not file.exists():
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise Unusable(_SQLITE["SQLITE_CANTOPEN"].message)
        return
    try:
        with closing(sqlite3.connect(file, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        known = _known(error)
        if isinstance(known, Unusable):
            raise Unusable(known.message) from error


def is_damaged(error: DBAPIError) -> bool:
    """Whether the error means that the file is not a database or is damaged. SQLite's driver has no exception class for
    that."""
    return isinstance(_known(error.orig), Unusable)


def _unstorable() -> InvalidRequest:
    return InvalidRequest("A text contains a NUL or half a surrogate pair, which cannot be stored: remove it")


def _known(said: BaseException | None) -> Unavailable | None:
    if isinstance(said, sqlite3.Error):
        name = str(getattr(said, "sqlite_errorname", ""))
        return _SQLITE.get("_".join(name.split("_")[:2]))
    state = str(getattr(said, "sqlstate", None))
    return _SQLSTATES.get(state) or _SQLSTATES.get(state[:2])
