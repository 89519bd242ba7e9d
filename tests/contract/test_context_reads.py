"""What a step reads of a thread is what is in its context, however much has left it."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from shared.domain.runs import Run
from shared.sql.history.messages import ids_in_context
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.ended_runs import fill_with_ended_runs
from tests.kit.runs.stored_runs import Stores, said, stored_runs
from tests.kit.services.sent_statements import sent_statements

Read = Callable[[Stores, Run], Awaitable[object]]


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def context(stores: Stores, run: Run) -> object:
    return await stores.messages.context(PROJECT, run.thread_id)


async def context_of_run(stores: Stores, run: Run) -> object:
    return await stores.messages.context_of_run(run)


async def ids(stores: Stores, run: Run) -> object:
    async with stores.database.read() as connection:
        return await ids_in_context(connection, [run.thread_id])


@pytest.mark.parametrize("read", [context, context_of_run, ids])
async def test_messages_that_had_left_a_context_were_walked_over_for_each_step(stores: Stores, read: Read) -> None:
    """A hundred thousand of them made twelve milliseconds of each read."""
    await fill_with_ended_runs(stores)
    run = await stores.claimed(said("hi"))
    with sent_statements() as statements:
        await read(stores, run)
    [sent] = statements
    async with stores.database.read() as connection:
        explain = "EXPLAIN QUERY PLAN" if stores.database.is_sqlite else "EXPLAIN"
        plan = await connection.exec_driver_sql(f"{explain} {sent.text}", tuple(sent.parameters))
        assert "ix_messages_in_context" in " ".join(str(part) for row in plan for part in row)
