"""The migrations and `tables.py` say the same, on both databases."""

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from shared.sql.engine import Database
from shared.sql.migrate import is_current, migrate
from shared.sql.run_tables import metadata


def _differences(connection: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


async def test_a_migrated_database_has_the_shape_of_the_tables(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        assert not await is_current(database)
        await migrate(database)
        assert await is_current(database)
        async with database.read() as connection:
            assert await connection.run_sync(_differences) == []
    finally:
        await database.aclose()


async def test_migrating_twice_changes_nothing(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        assert await migrate(database) == await migrate(database)
    finally:
        await database.aclose()
