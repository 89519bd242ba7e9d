"""Connections that give statements to the driver themselves.

SQLAlchemy makes the statements, compiles them and keeps the pool of connections. What it does besides for each
execution (a context, a cursor, a greenlet for every wait; on SQLite four hand-overs to the driver's thread) takes three
times as long as the driver. So a statement that comes a second time, the same object, is compiled once and from then on
goes to asyncpg or aiosqlite directly; what they answer is put into SQLAlchemy's rows. Statements that are made for one
use go SQLAlchemy's way, and so do all while somebody listens to its events.
"""

import sqlite3
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import CursorResult, Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from shared.sql.compiled import Answer, Compiled, CompiledStatements

Result = TypeVar("Result")


class Connection(AsyncConnection):
    """A connection of the engine's pool, in autocommit. `async with` takes it and gives it back."""

    def __init__(self, engine: AsyncEngine, statements: CompiledStatements) -> None:
        super().__init__(engine)
        self._statements = statements
        self._driver: Any = None
        self._driver_errors = _driver_errors(engine.dialect)

    async def __aenter__(self) -> "Connection":
        await self.start(is_ctxmanager=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Not in a task of its own, as SQLAlchemy does it for a rollback that may take long: here nothing is waited for.
        await self.close()

    async def start(self, is_ctxmanager: bool = False) -> AsyncConnection:
        """Takes a connection from the pool."""
        await super().start(is_ctxmanager)
        self._driver = cast("Any", self.sync_connection).connection.driver_connection
        return self

    async def execute(
        self, statement: sa.Executable, parameters: Any = None, *, execution_options: Any = None
    ) -> CursorResult[Any]:
        """As `AsyncConnection.execute`. The result has its rows and `rowcount`, and nothing else of a cursor's."""
        given = _only(parameters)
        if given is not None and not execution_options and not self._is_listened_to():
            compiled = self._statements.get(statement, given)
            if compiled is not None:
                return cast("CursorResult[Any]", await self._execute(compiled, given))
        return await super().execute(statement, parameters, execution_options=execution_options)

    async def tell(self, command: str) -> None:
        """Executes a command that has no parameters and gives nothing back."""
        await self._driver_does(self._driver.execute(command))

    async def undo(self, command: str) -> None:
        """Ends the transaction with this command, if one was begun. A connection that is still in it then, because it
        does not answer or because the caller was cancelled once more, is cut off: the server undoes it."""
        try:
            await self.tell(command)
        except (SQLAlchemyError, OSError):
            return
        finally:
            # What SQLite's driver was given to do, it does, whoever waits for that.
            if not self._is_sqlite and self._driver.is_in_transaction():
                self._driver.terminate()

    @property
    def _is_sqlite(self) -> bool:
        return self.dialect.name == "sqlite"

    def _is_listened_to(self) -> bool:
        return bool(cast("Any", self.sync_engine.dispatch).before_cursor_execute)

    async def _execute(self, compiled: Compiled, given: Mapping[str, Any]) -> Answer:
        driver, text, values = self._driver, compiled.text, compiled.values(given)
        if compiled.gives_rows:
            asked = driver.execute_fetchall(text, values) if self._is_sqlite else driver.fetch(text, *values)
            rows: list[Any] = await self._driver_does(asked)
            return compiled.answer(rows, len(rows))
        if self._is_sqlite:
            cursor = await self._driver_does(driver.execute(text, values))
            return compiled.answer((), cursor.rowcount)
        return compiled.answer((), _changed(await self._driver_does(driver.execute(text, *values))))

    async def _driver_does(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except self._driver_errors as error:
            if isinstance(error, sqlite3.Error):
                raise DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True) from error
            is_lost = self._driver.is_closed()
            kind = _kind_of(getattr(error, "sqlstate", None))
            raise kind(None, None, error, hide_parameters=True, connection_invalidated=is_lost) from error


def _driver_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    if dialect.name == "sqlite":
        return (sqlite3.Error,)
    asyncpg = cast("Any", dialect.loaded_dbapi).asyncpg
    return asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError


def _kind_of(state: str | None) -> type[DBAPIError]:
    """What the server says has an SQLSTATE; what the driver itself refuses has none."""
    if state is None:
        return InterfaceError
    return {"23": IntegrityError, "42": ProgrammingError}.get(state[:2], DBAPIError)


def is_unusable(driver: Any) -> bool:
    """Whether a driver's connection was lost, or left in a transaction by somebody who could not end it."""
    if isinstance(getattr(driver, "in_transaction", None), bool):  # aiosqlite
        return driver.in_transaction
    return driver.is_closed() or driver.is_in_transaction()


def _only(parameters: Any) -> Mapping[str, Any] | None:
    """The parameters, if the statement is executed for one set of them."""
    if isinstance(parameters, list):
        sets = cast("list[Any]", parameters)
        parameters = sets[0] if len(sets) == 1 else sets
    if parameters is None:
        return {}
    return cast("Mapping[str, Any]", parameters) if isinstance(parameters, Mapping) else None


def _changed(status: str) -> int:
    """How many rows; Postgres says it as `UPDATE 3`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdecimal() else -1
