"""A migration of a newer release while processes of this one work: what it holds while it waits, what becomes of it
where Postgres ends it for a worker, and that this release goes on."""

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.domain.errors import Unusable
from shared.domain.lifecycle import RunStatus
from shared.sql.migrate import migrate, require_current
from tests.kit.project.newer_release import NewerRelease
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import answer, said, stored_runs, texts_of
from tests.kit.services.databases import PostgresServer, open_database
from tests.kit.wait_until import wait_until

TABLES = ("approvals", "callbacks", "runs", "steps")

WAITED_FOR = """
    SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
HELD = "SELECT count(*) FROM pg_locks WHERE granted AND mode <> 'AccessShareLock' AND relation = to_regclass(:name)"


def changed(table: str) -> str:
    return f"ALTER TABLE {table} ADD COLUMN tone TEXT"


@pytest.mark.services
@pytest.mark.parametrize("table", TABLES)
async def test_a_migration_kept_the_locks_of_one_table_while_it_waited_for_another(
    postgres_server: PostgresServer, tmp_path: Path, table: str
) -> None:
    """Nobody could read a run for as long as that took. And a worker that had written here and went on there waited for
    the migration, which waited for the worker: Postgres ended one of the two."""
    newer = NewerRelease(tmp_path, [[changed(one)] for one in TABLES])
    url = postgres_server.create_database()
    async with open_database(url) as database, open_database(url) as other:
        await migrate(database)

        async def waits() -> bool:
            async with other.read() as connection:
                return table in (await connection.execute(sa.text(WAITED_FOR))).scalars().all()

        async with asyncio.TaskGroup() as group:
            async with other.write() as worker:
                await worker.execute(sa.text(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
                migrating = group.create_task(newer.migrate(url), name="migrate")
                await wait_until(waits, description="the migration to wait for the worker's transaction")
                held = {one: (await worker.execute(sa.text(HELD), {"name": one})).scalar_one() for one in TABLES}
            assert newer.revision in await migrating
    postgres_server.drop_database(url)

    assert held == {one: int(one == table) for one in TABLES}, "the worker's own lock, and no other"


@pytest.mark.services
async def test_a_migration_that_postgres_ended_for_a_worker_left_the_database_half_migrated(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """`holdfast migrate` said that the database does not answer, and an upgrade stopped there."""
    newer = NewerRelease(tmp_path, [[changed("approvals"), changed("runs")]])
    url = postgres_server.create_database()
    async with open_database(url) as database, open_database(url) as other:
        await migrate(database)

        async def waits() -> bool:
            async with other.read() as connection:
                return "runs" in (await connection.execute(sa.text(WAITED_FOR))).scalars().all()

        async with asyncio.TaskGroup() as group:
            async with other.write() as worker:
                # Who waits longest looks first for whom it waits, and is the one that is ended.
                await worker.execute(sa.text("SET LOCAL deadlock_timeout = '10min'"))
                await worker.execute(sa.text("LOCK TABLE runs IN ROW EXCLUSIVE MODE"))
                migrating = group.create_task(newer.migrate(url), name="migrate")
                await wait_until(waits, description="the migration to wait for the worker's transaction")
                await worker.execute(sa.text("LOCK TABLE approvals IN ROW EXCLUSIVE MODE"))
            said = await migrating
    postgres_server.drop_database(url)
    assert "migration_tried_again" in said
    assert newer.revision in said


async def test_this_release_goes_on_where_a_newer_one_has_migrated(empty_database_url: str, tmp_path: Path) -> None:
    """What runs then goes on, until it is replaced. What starts then does not."""
    newer = NewerRelease(tmp_path, [[changed(one)] for one in (*TABLES, "agents", "messages", "injected_messages")])
    async with open_database(empty_database_url) as database:
        await migrate(database)
    async with stored_runs(empty_database_url) as stores:
        run, waiting = await stores.claimed(said("one")), await stores.submitted(said("two"))
        await newer.migrate(empty_database_url)

        run = await stores.recorded(run, answer("hello"))
        await stores.settle(run)
        assert await stores.status_of(run) is RunStatus.COMPLETED
        assert (await stores.claim(waiting)).turn == 2
        history = await stores.messages.context(PROJECT, run.thread_id)
        assert texts_of(history) == ["one", "hello", "two"]
        with pytest.raises(Unusable, match=newer.revision):
            await require_current(stores.database)
