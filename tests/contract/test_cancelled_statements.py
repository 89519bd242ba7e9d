"""What a cancelled caller leaves of its transaction: nothing, at once."""

import asyncio
import gc
from collections.abc import Generator

import pytest
import sqlalchemy as sa

from shared.domain.ids import AgentId, ThreadId
from shared.sql.engine import Database
from shared.sql.run_tables import runs
from shared.sql.tables import agents

MOST_HOPS = 40
"""Passes of the event loop that a new statement takes on SQLite, and then some."""


@pytest.fixture
def no_collection() -> Generator[None]:
    """The garbage collector tidies up late, as it may."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _cancel_after(hops: int, task: "asyncio.Task[None]", times: int) -> None:
    if hops:
        asyncio.get_running_loop().call_soon(_cancel_after, hops - 1, task, times)
        return
    task.cancel()
    if times > 1:
        asyncio.get_running_loop().call_soon(_cancel_after, 0, task, times - 1)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_cancelled_write_kept_the_database_locked_until_its_cursor_was_collected(
    database_url: str, times: int
) -> None:
    """The next writer of any process waited ten seconds for it, and then the database counted as away."""
    database, tasks = Database(database_url, connections=3), list[asyncio.Task[None]]()

    async def write() -> None:
        # Statements that are new each time: SQLAlchemy executes them, in several steps.
        async with database.write() as connection:
            changed = sa.update(agents).where(agents.c.id == AgentId("none")).values(name="changed")
            await connection.execute(changed.returning(agents.c.id, agents.c.name))
            await connection.execute(sa.select(runs.c.id).where(runs.c.thread_id == ThreadId("none")))

    for hops in range(MOST_HOPS):
        tasks.append(asyncio.create_task(write()))
        _cancel_after(hops, tasks[-1], times)
        await asyncio.wait([tasks[-1]])
        # It kept the exceptions, and they the cursor.
        assert tasks[-1].cancelled() or tasks[-1].exception() is None
        async with asyncio.timeout(5), database.write() as connection:
            await connection.execute(sa.update(agents).values(name="changed"))
    assert database.connections()["in_use"] == 0
    await database.aclose()
