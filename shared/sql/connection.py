"""Connections that pass statements to the driver directly.

SQLAlchemy builds the statements, compiles them and keeps the pool of connections. Its other work for each execution (a
context, a cursor, a greenlet for every wait; on SQLite four switches to the driver's thread) takes three times as long
as the driver. So a connection compiles a statement when the same object comes a second time, and from then on passes it
to asyncpg or aiosqlite and makes SQLAlchemy's rows of the answer. SQLAlchemy still executes statements that are built
for one use, and all statements while a listener of its events is registered. On SQLite, quick statements bypass the
driver's thread, too.

Most of a statement's cost for the client and the server is its round trip. So a caller can `defer` writes whose answers
it does not need: Postgres gets them as one statement. A transaction sends its locks in one message with its `BEGIN`.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast, overload

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult, Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.selectable import TypedReturnsRows

from shared.sql.compiled import Answer, Compiled, CompiledStatements, as_one

Result = TypeVar("Result")
Columns = TypeVarTuple("Columns")


QUICK_STEPS = 20_000
"""Instructions of SQLite's virtual machine that a query may take on the event loop: about a millisecond."""

_WRITES_OF_FEW_ROWS = ("INSERT", "UPDATE")
"""These writes are executed on the event loop, too; a DELETE is not, because it may delete very many rows."""

WRITES_AT_ONCE = 16
"""The limit for the writes that are joined into one statement. The driver does not cache statements above 15 KiB."""


class Filled(NamedTuple):
    """A statement with the values of its parameters."""

    statement: sa.Executable
    given: Mapping[str, Any]


class Connection(AsyncConnection):
    """A connection of the engine's pool, in autocommit. `async with` takes it from the pool and returns it."""

    def __init__(self, engine: AsyncEngine, statements: CompiledStatements) -> None:
        super().__init__(engine)
        self._statements = statements
        self._deferred: list[Filled] = []
        self._driver: Any = None
        self._driver_errors = _driver_errors(engine.dialect)

    async def __aenter__(self) -> "Connection":
        await self.start(is_ctxmanager=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        # SQLAlchemy uses a task for this, because its rollback may take long; here nothing waits.
        await self.close()

    async def start(self, is_ctxmanager: bool = False) -> AsyncConnection:
        """Takes a connection from the pool."""
        await super().start(is_ctxmanager)
        self._driver = cast("Any", self.sync_connection).connection.driver_connection
        return self

    @overload
    async def execute(
        self, statement: TypedReturnsRows[*Columns], parameters: Any = None, *, execution_options: Any = None
    ) -> CursorResult[*Columns]: ...

    @overload
    async def execute(
        self, statement: sa.Executable, parameters: Any = None, *, execution_options: Any = None
    ) -> CursorResult[*tuple[Any, ...]]: ...

    async def execute(
        self, statement: sa.Executable, parameters: Any = None, *, execution_options: Any = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Like `AsyncConnection.execute`, after the deferred writes. The result has its rows and `rowcount`, and
        nothing else of a cursor's."""
        if self._deferred:
            await self.flush()
        given = _only(parameters)
        if given is not None and not execution_options and not self._is_listened_to():
            compiled = self._statements.get(statement, given)
            if compiled is not None:
                return cast("CursorResult[Any]", await self._execute(compiled, compiled.values(given)))
        return await super().execute(statement, parameters, execution_options=execution_options)

    def defer(self, statement: sa.Executable, *parameters: Mapping[str, Any]) -> None:
        """Defers a write for each of these parameters to the next statement or the end of the transaction, which raises
        its errors. Writes that are deferred together must not depend on each other, not even through a policy of their
        tables, nor write the same row: Postgres executes them at once."""
        self._deferred += [Filled(statement, one) for one in parameters]

    async def execute_with_deferred(
        self, statement: sa.Executable, parameters: Mapping[str, Any]
    ) -> CursorResult[*tuple[Any, ...]]:
        """Executes a write whose answer the caller needs, together with the deferred ones."""
        writes, self._deferred = [*self._deferred, Filled(statement, parameters)], []
        at_once = 1 if self._is_sqlite or self._is_listened_to() else WRITES_AT_ONCE
        parts = [writes[start : start + at_once] for start in range(0, len(writes), at_once)]
        for part in parts[:-1]:
            await self._execute_together(part)
        return await self._execute_together(parts[-1])

    async def flush(self) -> None:
        """Executes the deferred writes."""
        if self._deferred:
            last = self._deferred.pop()
            await self.execute_with_deferred(*last)

    @property
    def insert(self) -> Callable[[sa.Table], sqlite.Insert | postgresql.Insert]:
        """The database's own `INSERT`, which knows `ON CONFLICT`."""
        return sqlite.insert if self._is_sqlite else postgresql.insert

    async def open_transaction(self, command: str, first: Sequence[Filled]) -> None:
        """Begins a transaction with this command, and executes statements without returning their answers, in this
        order. Postgres gets one message, as far as the values can be written into the text."""
        texts, others = [command], list(first)
        while others and not self._is_listened_to() and (text := self._spelled_out(others[0])) is not None:
            texts.append(text)
            del others[0]
        await self.tell("; ".join(texts))
        for statement, given in others:
            await self.execute(statement, given)

    async def tell(self, command: str) -> None:
        """Executes a command that has no parameters and returns nothing."""
        await self._driver_does(self._driver.execute(command))

    async def undo(self, command: str) -> None:
        """Ends the transaction with this command, if one was begun. Closes the connection if it is still in the
        transaction then, because it does not answer or the caller was cancelled again: the server rolls back."""
        self._deferred.clear()
        try:
            await self.tell(command)
        except (SQLAlchemyError, OSError):
            return
        finally:
            # SQLite's driver executes all queued work, even if the caller no longer waits for it.
            if not self._is_sqlite and not self._driver.is_closed() and self._driver.is_in_transaction():
                self._driver.terminate()

    @property
    def _is_sqlite(self) -> bool:
        return self.dialect.name == "sqlite"

    def _is_listened_to(self) -> bool:
        return bool(cast("Any", self.sync_engine.dispatch).before_cursor_execute)

    def _spelled_out(self, filled: Filled) -> str | None:
        compiled = None if self._is_sqlite else self._statements.get(*filled)
        return None if compiled is None else compiled.spelled_out(filled.given)

    async def _execute_together(self, writes: Sequence[Filled]) -> CursorResult[*tuple[Any, ...]]:
        """Returns the answer of the last write."""
        *before, last = writes
        if before:
            forms = [form for write in writes if (form := self._statements.get(*write)) is not None]
            if len(forms) == len(writes):
                values = [form.values(write.given) for form, write in zip(forms, writes, strict=True)]
                return cast("CursorResult[Any]", await self._execute(as_one(tuple(forms)), [*chain(*values)]))
        for write in before:
            await self.execute(*write)
        return await self.execute(*last)

    async def _execute(self, compiled: Compiled, values: Sequence[Any]) -> Answer:
        driver, text = self._driver, compiled.text
        if self._is_sqlite:
            return await self._driver_does(self._execute_on_sqlite(compiled, values))
        if compiled.gives_rows:
            rows: list[Any] = await self._driver_does(driver.fetch(text, *values))
            return compiled.answer(rows, len(rows))
        return compiled.answer((), _changed(await self._driver_does(driver.execute(text, *values))))

    async def _execute_on_sqlite(self, compiled: Compiled, values: Sequence[Any]) -> Answer:
        text, gives_rows, own = compiled.text, compiled.gives_rows, _without_thread(self._driver)
        if text.startswith(_WRITES_OF_FEW_ROWS):
            written = own.execute(text, values)
            rows = written.fetchall()
            return compiled.answer(rows, len(rows) if gives_rows else written.rowcount)
        if text.startswith("SELECT") and (found := _read_quickly(own, text, values)) is not None:
            return compiled.answer(found, len(found))
        if gives_rows:
            rows = cast("list[Any]", await self._driver.execute_fetchall(text, values))
            return compiled.answer(rows, len(rows))
        return compiled.answer((), (await self._driver.execute(text, values)).rowcount)

    async def _driver_does(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except self._driver_errors as error:
            if isinstance(error, sqlite3.Error):
                raise DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True) from error
            is_lost = self._driver.is_closed()
            kind = _kind_of(getattr(error, "sqlstate", None))
            raise kind(None, None, error, hide_parameters=True, connection_invalidated=is_lost) from error


def _without_thread(driver: Any) -> sqlite3.Connection:
    """Returns SQLite's connection for statements that wait neither for a lock nor for the disk: in WAL mode, all but
    the beginning and the end of a transaction. A hand-over to the driver's thread and back takes longer than such a
    statement."""
    return driver._conn  # noqa: SLF001 - the driver's own methods all go to its thread


def _read_quickly(connection: sqlite3.Connection, text: str, values: Sequence[Any]) -> list[Any] | None:
    """Returns a query's answer; None if it takes too long, so that the driver's thread must execute it."""
    connection.set_progress_handler(_give_up, QUICK_STEPS)
    try:
        return connection.execute(text, values).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        return None
    finally:
        connection.set_progress_handler(None, 0)


def _give_up() -> bool:
    return True


def _driver_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    if dialect.name == "sqlite":
        return (sqlite3.Error,)
    asyncpg = cast("Any", dialect.loaded_dbapi).asyncpg
    return asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError


def _kind_of(state: str | None) -> type[DBAPIError]:
    """An error of the server has an SQLSTATE; one of the driver itself has none."""
    if state is None:
        return InterfaceError
    return {"23": IntegrityError, "42": ProgrammingError}.get(state[:2], DBAPIError)


def is_unusable(driver: Any) -> bool:
    """Whether a driver's connection was lost, or a former user left it in a transaction."""
    if isinstance(getattr(driver, "in_transaction", None), bool):  # aiosqlite
        return driver.in_transaction
    return driver.is_closed() or driver.is_in_transaction()


def _only(parameters: Any) -> Mapping[str, Any] | None:
    """Returns the parameters if the statement is executed for one set of them."""
    if isinstance(parameters, list):
        sets = cast("list[Any]", parameters)
        parameters = sets[0] if len(sets) == 1 else sets
    if parameters is None:
        return {}
    return cast("Mapping[str, Any]", parameters) if isinstance(parameters, Mapping) else None


def _changed(status: str) -> int:
    """Returns how many rows changed; Postgres answers with a text such as `UPDATE 3`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdecimal() else -1
