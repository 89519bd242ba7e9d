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
) -> list[RowMapping]:
    """The page of the project's rows that meet the conditions, with all columns or the named ones. The table has `id`,
    `project_id` and `number`.

    The row of a cursor need not meet the conditions: a row that changed meanwhile still marks its place. Raises
    `NotFound` for a cursor that the project does not have, instead of ending the list early.
    """
    number = table.c.number
    query = sa.select(*(columns or table.c)).where(table.c.project_id == project_id, *conditions).limit(page.limit)
    if page.after is not None:
        place = await _number_of(connection, table, project_id, page.after)
        query = query.where(number > place if page.ascending else number < place)
    if page.before is not None:
        place = await _number_of(connection, table, project_id, page.before)
        query = query.where(number < place if page.ascending else number > place)
    # With `before` alone the page ends at the cursor: read away from it, then turn the page round.
    backwards = page.before is not None and page.after is None
    found = await connection.execute(query.order_by(number if page.ascending is not backwards else number.desc()))
    rows = list(found.mappings())
    return rows[::-1] if backwards else rows


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
