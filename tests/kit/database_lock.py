"""Holding a run's row or a thread, so that whoever writes to it waits: a barrier in the middle of a checkpoint."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import sqlalchemy as sa

from shared.domain.ids import RunId, ThreadId
from shared.sql.engine import Database
from shared.sql.tables import runs
from shared.sql.thread_line import lock_thread


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


@asynccontextmanager
async def thread_locked(url: str, thread_id: ThreadId) -> AsyncGenerator[Callable[[], Awaitable[bool]]]:
    """On Postgres: keeps those who end runs of the thread waiting. Gives what tells whether somebody waits."""
    database = Database(url)

    async def somebody_waits() -> bool:
        async with database.read() as connection:
            waiting = await connection.execute(
                sa.text(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database ="
                    " (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            )
            return waiting.scalar_one() > 0

    try:
        async with database.write() as connection:
            await lock_thread(connection, thread_id)
            yield somebody_waits
    finally:
        await database.aclose()
