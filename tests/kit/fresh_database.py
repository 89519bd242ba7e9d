"""A database with our tables in it, open for the length of a test."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from shared.sql.engine import Database
from shared.sql.tables import metadata


@asynccontextmanager
async def fresh_database(url: str) -> AsyncGenerator[Database]:
    """Makes the tables in the empty database of `url`."""
    database = Database(url)
    try:
        async with database.write() as connection:
            await connection.run_sync(metadata.create_all)
        yield database
    finally:
        await database.aclose()
