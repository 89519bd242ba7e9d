"""Lists that are read page by page, by a cursor that is the id of a row."""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.errors import NotFound
from shared.domain.ids import ProjectId


class Page(msgspec.Struct, frozen=True):
    """A piece of a list, in the order asked: what follows `after`, or what comes just before `before`."""

    limit: int = 50
    after: str | None = None
    before: str | None = None
    ascending: bool = False


async def rows_of_page(
    connection: AsyncConnection,
    table: sa.Table,
    project_id: ProjectId,
    page: Page,
    *conditions: sa.ColumnElement[bool],
    columns: Sequence[sa.Column[Any]] | None = None,
    owner: tuple[sa.Column[str], str] | None = None,
) -> list[RowMapping]:
    """The page of the project's rows that meet the conditions, with all columns or the named ones. The table has `id`,
    `project_id` and `number`. With `owner`, only rows with this value in this column. The table has an index of that
    column and `number`, and the page is read from there, whatever others have added since.

    The row of a cursor need not meet the conditions: a row that changed meanwhile still marks its place. Raises
    `NotFound` for a cursor that the project does not have, instead of ending the list early.
    """
    number, order = table.c.number, [table.c.number]
    query = sa.select(*(columns or table.c)).where(*conditions).limit(page.limit)
    if owner is None or owner[0] is not table.c.project_id:
        query = query.where(table.c.project_id == project_id)
    if owner is not None:
        query, order = query.where(is_owned_by(connection, *owner)), [owner[0], number]
    if page.after is not None:
        place = await _number_of(connection, table, project_id, page.after)
        query = query.where(number > place if page.ascending else number < place)
    if page.before is not None:
        place = await _number_of(connection, table, project_id, page.before)
        query = query.where(number < place if page.ascending else number > place)
    # With `before` alone the page ends at the cursor: read away from it, then turn the page round.
    backwards = page.before is not None and page.after is None
    is_ascending = page.ascending is not backwards
    found = await connection.execute(query.order_by(*(part if is_ascending else part.desc() for part in order)))
    rows = list(found.mappings())
    return rows[::-1] if backwards else rows


def is_owned_by(connection: AsyncConnection, column: sa.Column[str], value: str) -> sa.ColumnElement[bool]:
    """That the column has this value, for a query that orders by the column and then by `number`.

    Postgres is told a range, because it takes an equal column out of the order. Then the primary key has the order,
    too, and it may walk back over everybody's newer rows to find the owner's. SQLite takes the index of an equal column
    before any other, and its order with it.
    """
    if connection.dialect.name == "sqlite":
        return column == value
    return sa.and_(column >= value, column <= value)


async def _number_of(connection: AsyncConnection, table: sa.Table, project_id: ProjectId, row_id: str) -> Any:
    query = sa.select(table.c.number).where(table.c.id == row_id, table.c.project_id == project_id)
    number = (await connection.execute(query)).scalar_one_or_none()
    if number is None:
        raise NotFound(f"There is no {row_id} to page from")
    return number


async def count_rows(
    connection: AsyncConnection, table: sa.Table, project_id: ProjectId, *conditions: sa.ColumnElement[bool]
) -> int:
    """How many rows of the project meet the conditions."""
    query = sa.select(sa.func.count()).select_from(table).where(table.c.project_id == project_id, *conditions)
    return (await connection.execute(query)).scalar_one()


def contains(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Whether the column's text has `text` in it, whatever the case; `%` and `_` stand for themselves."""
    return column.icontains(text, autoescape=True)


def field_of_document(table: sa.Table, name: str, *, is_sqlite: bool) -> Any:
    """A field of the JSON text in the table's `document`, for conditions that are too rare for a column."""
    document = table.c.document
    # SQLite reads JSON from text as it is, and its CAST would make a number of it; Postgres must be told.
    return (sa.type_coerce(document, sa.JSON) if is_sqlite else sa.cast(document, sa.JSON))[name]
