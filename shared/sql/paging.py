"""Lists that clients read page by page; a cursor is the id of a row."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId
from shared.sql.connection import Connection
from shared.sql.portable import JsonOf, OwnedBy
from shared.sql.tables import deleted_rows

MOST_ROWS = 1000
"""The most rows of one page, but for messages."""


class Page(msgspec.Struct, frozen=True):
    """Which page of a list to read, in the requested order: the rows after `after`, or the rows just before
    `before`."""

    limit: int = 50
    after: str | None = None
    before: str | None = None
    ascending: bool = False
    is_whole: bool = False
    """Whether the client wants the whole list, beyond `MOST_ROWS`. Then `limit` is one row more than `MOST_ROWS`."""


def refuse_part(rows: Sequence[object]) -> None:
    """Raises `InvalidRequest` if these rows are only a part of a list that the client takes for the whole."""
    if len(rows) > MOST_ROWS:
        said = f"limit: the list has more rows than a page, {MOST_ROWS}: ask for that many, and for more with `after`"
        raise InvalidRequest(said, field="query.limit")


async def rows_of_page(
    connection: Connection,
    table: sa.Table,
    project_id: ProjectId,
    page: Page,
    *conditions: sa.ColumnElement[bool],
    columns: Sequence[sa.Column[Any]] | None = None,
    owner: tuple[sa.Column[str], str] | None = None,
    keys: Sequence[sa.ColumnElement[Any]] | None = None,
    is_cursor: Callable[[str], sa.ColumnElement[bool]] | None = None,
) -> list[RowMapping]:
    """Returns a page of the project's rows that meet the conditions, with all columns or the named ones.

    The table has `id` and `project_id`, and `number`, which orders the rows unless `keys` does. `keys` are expressions
    that are never null and whose values together differ from row to row. `owner` restricts the list to rows with this
    value in this column; the table needs an index of that column and `number`, with which the cost of a page does not
    depend on the rows of other owners. `is_cursor` selects the row of a cursor that is not a row's `id`.

    The row of a cursor need not meet the conditions: a row that changed meanwhile still marks its place, and so does a
    deleted one if the table remembers it (`remember_place`). Ignores an unknown cursor.
    """
    keys = [table.c.number] if keys is None else keys
    is_cursor = table.c.id.__eq__ if is_cursor is None else is_cursor
    order: list[sa.ColumnElement[Any]] = [*keys]
    query = sa.select(*(columns or table.c)).where(*conditions).limit(page.limit)
    if owner is None or owner[0] is not table.c.project_id:
        query = query.where(table.c.project_id == project_id)
    if owner is not None:
        query, order = (query.where(OwnedBy(*owner)), [owner[0], *keys])
    for cursor, is_behind in ((page.after, page.ascending), (page.before, not page.ascending)):
        place = None if cursor is None else await _place_of(connection, table, keys, project_id, is_cursor, cursor)
        if place is not None:
            row = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
            query = query.where(row > place if is_behind else row < place)
    # With `before` alone the page ends at the cursor, so the query reads backwards from it.
    backwards = page.before is not None and page.after is None
    is_ascending = page.ascending is not backwards
    found = await connection.execute(query.order_by(*(part if is_ascending else part.desc() for part in order)))
    rows = list(found.mappings())
    return rows[::-1] if backwards else rows


def nulls_last(key: sa.ColumnElement[Any], *, ascending: bool) -> sa.ColumnElement[int]:
    """Returns a key for a time that may be null: rows without it come last in either order."""
    missing = _BIGGEST if ascending else -_BIGGEST
    return sa.func.coalesce(sa.type_coerce(key, sa.BigInteger), sa.literal(missing, sa.BigInteger))


_BIGGEST = 2**63 - 1


async def remember_place(connection: Connection, table: sa.Table, row_id: str) -> None:
    """Stores the place of a row that is about to be deleted, for clients that are in the middle of the list.

    A client that deletes each row that it lists asks for the rows after a deleted one. If the list began again from its
    first row, it would never end for a client that creates a new row for each one that it deletes.
    """
    place = sa.select(table.c.id, table.c.project_id, table.c.number).where(table.c.id == row_id)
    kept = await connection.execute(
        sa.insert(deleted_rows).from_select(["id", "project_id", "number"], place).returning(deleted_rows.c.entry)
    )
    newest = kept.scalar_one_or_none()
    if newest is not None:
        await connection.execute(sa.delete(deleted_rows).where(deleted_rows.c.entry <= newest - PLACES_KEPT))


PLACES_KEPT = 100_000
"""The limit for the stored places. After this many later deletions, no client is still in the middle of its list."""


async def _place_of(
    connection: Connection,
    table: sa.Table,
    keys: Sequence[sa.ColumnElement[Any]],
    project_id: ProjectId,
    is_cursor: Callable[[str], sa.ColumnElement[bool]],
    row_id: str,
) -> sa.ColumnElement[Any] | None:
    """Returns the keys of the row with this id; None if the project neither has nor remembers such a row."""
    query = sa.select(*keys).where(is_cursor(row_id), table.c.project_id == project_id)
    found = (await connection.execute(query)).one_or_none()
    if found is None and "number" in table.c and keys[0] is table.c.number:
        gone = (deleted_rows.c.id == row_id, deleted_rows.c.project_id == project_id)
        found = (await connection.execute(sa.select(deleted_rows.c.number).where(*gone))).one_or_none()
    if found is None:
        return None
    place = [sa.literal(value, key.type) for value, key in zip(found, keys, strict=True)]
    return place[0] if len(place) == 1 else sa.tuple_(*place)


async def count_rows(
    connection: Connection, table: sa.Table, project_id: ProjectId, *conditions: sa.ColumnElement[bool]
) -> int:
    """Returns how many rows of the project meet the conditions."""
    query = sa.select(sa.func.count()).select_from(table).where(table.c.project_id == project_id, *conditions)
    return (await connection.execute(query)).scalar_one()


def contains(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Whether the column's text contains `text` in any case; `%` and `_` have no special meaning."""
    return column.icontains(text, autoescape=True)


def field_of_document(table: sa.Table, name: str | tuple[str, ...]) -> Any:
    """Returns a field of the JSON text in the table's `document`, for conditions too rare for a column. A tuple is the
    path to a nested field."""
    return JsonOf(table.c.document)[name]
