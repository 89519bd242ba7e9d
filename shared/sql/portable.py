"""Expressions that SQLite and Postgres write differently. A caller writes one expression, and the compiler chooses the
form for its database."""

from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class OwnedBy(FunctionElement[bool]):
    """Compares a column with a value (two arguments), for a query that orders by the column and then by `number`.

    Postgres gets a range. It would drop a column that is compared by equality from the order; the primary key would
    then have the same order, and Postgres might scan it through the newer rows of all other owners. SQLite prefers the
    index of a column that is compared by equality, and uses its order.
    """

    # Not Boolean: SQLAlchemy would compare it with 1 on SQLite, which then would not use the index.
    type = cast("sa.types.TypeEngine[bool]", sa.types.NullType())
    inherit_cache = True


@compiles(OwnedBy, "sqlite")
def _equal(element: OwnedBy, compiler: SQLCompiler, **options: Any) -> str:
    column, value = element.clauses
    return compiler.process(column == value, **options)


@compiles(OwnedBy)
def _in_a_range(element: OwnedBy, compiler: SQLCompiler, **options: Any) -> str:
    column, value = element.clauses
    return compiler.process(sa.and_(column >= value, column <= value), **options)


class JsonOf(FunctionElement[Any]):
    """A column of JSON text as a JSON value with fields. SQLite reads JSON from the text itself, and its CAST would
    turn the text into a number; Postgres needs the type."""

    type = sa.JSON()
    inherit_cache = True


@compiles(JsonOf, "sqlite")
def _text(element: JsonOf, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(JsonOf)
def _cast(element: JsonOf, compiler: SQLCompiler, **options: Any) -> str:
    [text] = element.clauses
    return compiler.process(sa.cast(text, sa.JSON), **options)


class PositionOf(FunctionElement[int]):
    """The position of a text (the second argument) in another (the first), from 1; 0 if it does not occur. Unlike LIKE,
    it is sensitive to case on both databases."""

    type = sa.Integer()
    inherit_cache = True


@compiles(PositionOf, "sqlite")
def _instr(element: PositionOf, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(sa.func.instr(*element.clauses), **options)


@compiles(PositionOf)
def _strpos(element: PositionOf, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(sa.func.strpos(*element.clauses), **options)


class AdvisoryLock(FunctionElement[None]):
    """Postgres's advisory lock for a number, which the transaction holds to its end. SQLite has one writer at a time
    and needs no lock."""

    name = "advisory_lock"
    type = sa.types.NullType()
    inherit_cache = True


@compiles(AdvisoryLock, "sqlite")
def _nothing(_element: AdvisoryLock, _compiler: SQLCompiler, **_options: Any) -> str:
    return "NULL"


@compiles(AdvisoryLock)
def _locked(element: AdvisoryLock, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(sa.func.pg_advisory_xact_lock(*element.clauses), **options)
