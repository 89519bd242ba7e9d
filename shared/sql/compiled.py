"""Statements in the database's own SQL, compiled once, for a driver to execute.

This module repeats the part of SQLAlchemy's execution that our statements need: it orders the values by their
placeholders, expands lists to one placeholder per value, converts types, and returns rows with access by name and by
column.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.sql.compiler import ExpandedState, SQLCompiler

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
    """Whether SQLAlchemy must execute it: because it computes values at execution, or is plain text with unknown
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
