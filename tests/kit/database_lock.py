"""Holding a run's row, so that whoever writes to it waits: a barrier in the middle of a checkpoint."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.sql.engine import Database
from shared.sql.tables import runs


@asynccontextmanager
async def run_locked(url: str, run_id: RunId) -> AsyncGenerator[None]:
    """Keeps every other writer from the run (on SQLite: from the database) for as long as the block lasts."""
    database = Database(url)
    try:
        async with database.write() as connection:
            await connection.execute(sa.select(runs.c.id).where(runs.c.id == run_id).with_for_update())
            yield
    finally:
        await database.aclose()
