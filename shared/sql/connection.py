"""Connections that give statements to the driver themselves.

SQLAlchemy makes the statements, compiles them and keeps the pool of connections. What it does besides for each
execution (a context, a cursor, a greenlet for every wait; on SQLite four hand-overs to the driver's thread) takes four
times as long as the driver. So a statement that comes a second time, the same object, is compiled once and from then on
goes to asyncpg or aiosqlite directly; what they answer is put into SQLAlchemy's rows. Statements that are made for one
use go SQLAlchemy's way, and so do all while somebody listens to its events.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import CursorResult, Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.compiler import SQLCompiler

Result = TypeVar("Result")
Convert = Callable[[Any], Any]

FORMS_OF_A_STATEMENT = 20
"""An INSERT is compiled for each set of columns that it is given. More of them than this are not worth keeping."""


class _Parameter(NamedTuple):
    """What stands at one place of a compiled statement."""

    name: str
    otherwise: Any
    """The value if the caller gives none. Meaningless when `is_required`."""
    is_required: bool
    convert: Convert | None


class Answer(IteratorResult[*tuple[Any, ...]]):
    """The rows that a driver gave, and how many rows the statement changed."""

    rowcount = -1


class Compiled(NamedTuple):
    """A statement in the database's own words."""

    text: str
    parameters: Sequence[_Parameter]
    columns: SimpleResultMetaData
    converted: Sequence[tuple[int, Convert]]
    """The columns whose values are not as the driver gives them."""
    gives_rows: bool

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """The values in the order of their places. Raises `KeyError` for one that is missing."""
        values = list[Any]()
        for name, otherwise, is_required, convert in self.parameters:
            value = given[name] if is_required else given.get(name, otherwise)
            values.append(value if convert is None else convert(value))
        return values

    def answer(self, rows: Iterable[Sequence[Any]], changed: int) -> Answer:
        """The driver's rows, as SQLAlchemy would give them."""
        answer = Answer(self.columns, cast("Any", map(self._row, rows) if self.converted else iter(rows)))
        answer.rowcount = changed
        return answer

    def _row(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for index, convert in self.converted:
            values[index] = convert(values[index])
        return values


class CompiledStatements:
    """The compiled form of every statement that has come more than once, for one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.driver_errors = _driver_errors(dialect)
        self._forms: WeakKeyDictionary[sa.Executable, dict[tuple[str, ...], Compiled | None]] = WeakKeyDictionary()

    @property
    def kept(self) -> int:
        """How many statements there are."""
        return len(self._forms)

    def get(self, statement: sa.Executable, names: Iterable[str]) -> Compiled | None:
        """The statement's form for parameters of these names; None when it is SQLAlchemy that has to execute it."""
        forms = self._forms.get(statement)
        if forms is None:
            self._forms[statement] = {}
            return None
        key = tuple(names)
        if key not in forms:
            forms[key] = _compiled(statement, self._dialect, key) if len(forms) < FORMS_OF_A_STATEMENT else None
        return forms[key]


class Connection(AsyncConnection):
    """A connection of the engine's pool, in autocommit. `async with` takes it and gives it back."""

    def __init__(self, engine: AsyncEngine, statements: CompiledStatements) -> None:
        super().__init__(engine)
        self._statements = statements
        self._driver: Any = None

    async def __aenter__(self) -> "Connection":
        await self.start(is_ctxmanager=True)
        return self

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
        values = compiled.values(given)
        if self._is_sqlite:
            if compiled.gives_rows:
                return compiled.answer(
                    await self._driver_does(self._driver.execute_fetchall(compiled.text, values)), -1
                )
            cursor = await self._driver_does(self._driver.execute(compiled.text, values))
            return compiled.answer((), cursor.rowcount)
        if compiled.gives_rows:
            return compiled.answer(await self._driver_does(self._driver.fetch(compiled.text, *values)), -1)
        return compiled.answer((), _changed(await self._driver_does(self._driver.execute(compiled.text, *values))))

    async def _driver_does(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except self._statements.driver_errors as error:
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


def _compiled(statement: sa.Executable, dialect: Dialect, names: Sequence[str]) -> Compiled | None:
    compiled = cast("sa.ClauseElement", statement).compile(dialect=dialect, column_keys=sorted(names))
    if not isinstance(compiled, SQLCompiler) or compiled.positiontup is None or _is_for_sqlalchemy(compiled):
        return None
    binds = {name: bind for bind, name in compiled.bind_names.items()}
    # An INSERT that is asked for nothing has some columns all the same.
    exported: Any = getattr(statement, "exported_columns", None)
    keys: list[str] = exported.keys() if exported else []
    columns: list[Any] = cast("Any", compiled)._result_columns if keys else []  # noqa: SLF001 - told nowhere else
    names = [column.keyname for column in columns]
    converters = [_result_converter(column.type, dialect) for column in columns]
    return Compiled(
        str(compiled),
        [_parameter(binds[name], dialect) for name in compiled.positiontup],
        SimpleResultMetaData(names, [_also_by(*each, names) for each in zip(columns, keys, strict=True)]),
        [(index, convert) for index, convert in enumerate(converters) if convert is not None],
        gives_rows=bool(keys),
    )


def _also_by(column: Any, key: str, names: Sequence[str]) -> tuple[Any, ...]:
    """By what, besides its name in the database, a row is asked for a value: our own name for it, and the column."""
    columns = [by for by in column.objects if isinstance(by, sa.ClauseElement)]
    return (*columns, *([] if key in names else [key]))


def _is_for_sqlalchemy(compiled: SQLCompiler) -> bool:
    """Whether its text depends on the values that it is given, or values are made as it is executed; or it is text, and
    nobody knows what it gives."""
    is_filled_in = compiled.post_compile_params or compiled.literal_execute_params
    return bool(is_filled_in or compiled.insert_prefetch or compiled.update_prefetch) or isinstance(
        compiled.statement, sa.TextClause
    )


def _parameter(bind: sa.BindParameter[Any], dialect: Dialect) -> _Parameter:
    otherwise = bind.callable() if bind.callable is not None else bind.value
    return _Parameter(bind.key, otherwise, bind.required, bind.type.dialect_impl(dialect).bind_processor(dialect))


def _result_converter(kind: sa.types.TypeEngine[Any], dialect: Dialect) -> Convert | None:
    return kind.dialect_impl(dialect).result_processor(dialect, None)


def _changed(status: str) -> int:
    """How many rows; Postgres says it as `UPDATE 3`."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdecimal() else -1
