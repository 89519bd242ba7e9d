"""Connections that pass statements to the driver directly.

SQLAlchemy builds the statements, compiles them and keeps the pool of connections. Its other work for each execution (a
context, a cursor, a greenlet for every wait; on SQLite four switches to the driver's thread) takes three times as long
as the driver. So a connection compiles a statement when it gets the same object a second time, and from then on passes
it to asyncpg or aiosqlite and turns the answer into SQLAlchemy's rows. SQLAlchemy still executes statements that are
built for one use, and all statements while a listener of its events is registered. On SQLite, quick statements bypass
the driver's thread, too.

Most of a statement's cost for the client and the server is its round trip. So a caller can `defer` writes whose answers
it does not need: Postgres gets them as one statement. A transaction sends its locks in one message with its `BEGIN`.
"""

import re
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast, overload
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import CursorResult, Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.compiler import ExpandedState, SQLCompiler
from sqlalchemy.sql.selectable import TypedReturnsRows

from shared.concurrency import whole

# Statements in the database's own SQL, compiled once, for a driver to execute.
#
# This module repeats the part of SQLAlchemy's execution that our statements need: it orders the values by their
# placeholders, expands lists to one placeholder per value, converts types, and returns rows with access by name and by
# column.


Convert = Callable[[Any], Any]

FORMS_OF_A_STATEMENT = 20
"""An INSERT is compiled once for each set of columns. Keeping more forms than this is not worth it."""


class _Parameter(NamedTuple):
    """The parameter of one placeholder in a compiled statement."""

    name: str
    otherwise: Any
    """The statement's own value, used unless `is_given`."""
    is_given: bool
    """Whether the caller gives the value."""
    convert: Convert | None
    place: int | None = None
    """For a list, the index of this value in it."""


class Answer(IteratorResult[*tuple[Any, ...]]):
    """The rows that a driver returned, and how many rows the statement changed."""

    rowcount = -1


class Compiled(NamedTuple):
    """A statement in the database's own SQL."""

    text: str
    parameters: Sequence[_Parameter]
    columns: SimpleResultMetaData
    converted: Sequence[tuple[int, Convert]]
    """The columns whose values must be converted from the driver's."""
    gives_rows: bool

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """Returns the values in the order of their placeholders. Raises `KeyError` for a missing one."""
        values = list[Any]()
        for name, otherwise, is_given, convert, place in self.parameters:
            value = given[name] if is_given else otherwise
            value = value if place is None else value[place]
            values.append(value if convert is None else convert(value))
        return values

    def spelled_out(self, given: Mapping[str, Any]) -> str | None:
        """Returns the text for Postgres with the values written into it; None if a value could change its meaning."""
        spelled = [_spelled(value) for value in self.values(given)]
        if None in spelled:
            return None
        return _PLACE.sub(lambda found: str(spelled[int(found[1]) - 1]), self.text)

    def answer(self, rows: Iterable[Sequence[Any]], changed: int) -> Answer:
        """Returns the driver's rows as SQLAlchemy would."""
        answer = Answer(self.columns, cast("Any", map(self._row, rows) if self.converted else iter(rows)))
        answer.rowcount = changed
        return answer

    def _row(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for index, convert in self.converted:
            values[index] = convert(values[index])
        return values


_PLACE = re.compile(r"\$(\d+)")
"""A placeholder of Postgres. Our statements have no literal text that contains one."""


_HARMLESS = re.compile(r"[A-Za-z0-9._-]*")
"""A text that needs no escaping between quotes under any settings of the server. All ids that we make are such
texts."""


def _spelled(value: Any) -> str | None:
    """Returns the value as a literal; None for a value that must be passed as a parameter."""
    match value:
        case bool() | int():
            return str(value).lower()
        case str() if _HARMLESS.fullmatch(value):
            return f"'{value}'"
        case _:
            return None


def as_one(several: tuple[Compiled, ...]) -> Compiled:
    """Joins writes into one Postgres statement with all their values. It returns the rows of the last write."""
    text = _text_of(tuple((one.text, len(one.parameters)) for one in several))
    return several[-1]._replace(text=text, parameters=[])


@lru_cache(maxsize=200)
def _text_of(several: tuple[tuple[str, int], ...]) -> str:
    texts, places = list[str](), 0
    for text, count in several:
        texts.append(_PLACE.sub(lambda found, behind=places: f"${int(found[1]) + behind}", text))
        places += count
    *before, last = texts
    return f"WITH {', '.join(f'write_{n} AS ({text})' for n, text in enumerate(before))} {last}"


class CompiledStatements:
    """The compiled forms of all statements that were executed more than once, for one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._forms: WeakKeyDictionary[sa.Executable, dict[tuple[Any, ...], Compiled | None]] = WeakKeyDictionary()

    @property
    def kept(self) -> int:
        """The number of compiled statements."""
        return len(self._forms)

    def get(self, statement: sa.Executable, given: Mapping[str, Any]) -> Compiled | None:
        """Returns the statement's form for such parameters; None if SQLAlchemy must execute it."""
        forms = self._forms.get(statement)
        if forms is None:
            self._forms[statement] = {}
            return None
        lengths = [(name, len(cast("list[Any]", value))) for name, value in given.items() if isinstance(value, list)]
        key = (*given, *lengths)
        if key not in forms:
            forms[key] = _compiled(statement, self._dialect, given) if len(forms) < FORMS_OF_A_STATEMENT else None
        return forms[key]


def _compiled(statement: sa.Executable, dialect: Dialect, given: Mapping[str, Any]) -> Compiled | None:
    compiled = cast("sa.ClauseElement", statement).compile(dialect=dialect, column_keys=sorted(given))
    if not isinstance(compiled, SQLCompiler) or _is_for_sqlalchemy(compiled):
        return None
    # An INSERT without RETURNING has result columns all the same.
    exported: Any = getattr(statement, "exported_columns", None)
    keys: list[str] = exported.keys() if exported else []
    columns: list[Any] = cast("Any", compiled)._result_columns if keys else []  # noqa: SLF001 - no public name
    names = [column.keyname for column in columns]
    converters = [_result_converter(column.type, dialect) for column in columns]
    # With one placeholder for each value of the lists.
    expanded = compiled.construct_expanded_state(dict(given))
    return Compiled(
        expanded.statement,
        _parameters(compiled, expanded, dialect, given),
        SimpleResultMetaData(names, [_also_by(*each, names) for each in zip(columns, keys, strict=True)]),
        [(index, convert) for index, convert in enumerate(converters) if convert is not None],
        gives_rows=bool(keys),
    )


def _also_by(column: Any, key: str, names: Sequence[str]) -> tuple[Any, ...]:
    """Returns the keys for a value of a row besides its name in the database: our own name for it, and the column."""
    columns = [by for by in column.objects if isinstance(by, sa.ClauseElement)]
    return (*columns, *([] if key in names else [key]))


def _is_for_sqlalchemy(compiled: SQLCompiler) -> bool:
    """Whether SQLAlchemy must execute a statement: it computes values at execution, or is plain text with unknown
    columns."""
    is_text = isinstance(compiled.statement, sa.TextClause)
    return bool(is_text or compiled.insert_prefetch or compiled.update_prefetch)


def _parameters(
    compiled: SQLCompiler, expanded: ExpandedState, dialect: Dialect, given: Mapping[str, Any]
) -> list[_Parameter]:
    binds = {name: bind for bind, name in compiled.bind_names.items()}
    places = {
        name: (of_list, place)
        for of_list, names in expanded.parameter_expansion.items()
        for place, name in enumerate(names)
    }
    parameters = list[_Parameter]()
    for name in expanded.positiontup or ():
        of_list, place = places.get(name, (name, None))
        bind = binds[of_list]
        convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
        parameters.append(_Parameter(bind.key, bind.effective_value, bind.key in given, convert, place))
    return parameters


def _result_converter(kind: sa.types.TypeEngine[Any], dialect: Dialect) -> Convert | None:
    return kind.dialect_impl(dialect).result_processor(dialect, None)


# Connections pass these statements to the driver.


Result = TypeVar("Result")
Columns = TypeVarTuple("Columns")


QUICK_STEPS = 20_000
"""Instructions of SQLite's virtual machine that a query may take on the event loop: about a millisecond."""

_WRITES_OF_FEW_ROWS = ("INSERT", "UPDATE")
"""These writes are executed on the event loop, too; a DELETE is not, because it may delete very many rows."""

WRITES_AT_ONCE = 16
"""The limit for the writes that are joined into one statement. The driver does not cache statements above 15 KiB."""


READ_ONLY = "25006"
"""The SQLSTATE of a write to a read-only server."""
AT_A_STANDBY = "holdfast_at_a_standby"
"""Marks a connection whose server has refused a write so."""


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

    async def __aexit__(self, _kind: object, error: object, _trace: object) -> None:
        # The server is a standby since a failover: the pool must open new connections, to the new primary.
        if getattr(getattr(error, "orig", None), "sqlstate", None) == READ_ONLY:
            self.info[AT_A_STANDBY] = True
            self._driver.terminate()
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
        return await self._whole(super().execute(statement, parameters, execution_options=execution_options))

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
            await self._whole(self.tell(command))
        except (SQLAlchemyError, OSError):
            return
        finally:
            if not self._is_sqlite and not self._driver.is_closed() and self._driver.is_in_transaction():
                self._driver.terminate()

    async def _whole(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Awaits a statement. On SQLite, a cancellation of the caller takes effect after the statement, because an
        unfinished cursor keeps the write lock until it is collected."""
        return await (whole(work) if self._is_sqlite else work)

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


_RACED = ("injected_messages", "submission_keys")
"""Tables in which two transactions may store one key: each looks for it first, but not under a lock of the other."""


def is_raced(error: DBAPIError) -> bool:
    """Whether another transaction has just stored the same key, so that this one finds it when it is repeated."""
    is_taken = getattr(error.orig, "sqlstate", None) == "23505"
    return is_taken and getattr(error.driver_exception, "table_name", None) in _RACED


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
