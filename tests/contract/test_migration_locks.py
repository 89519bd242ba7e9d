"""What a migration of a database in use holds while it waits, and what is asked of the migrations all the time."""

import asyncio

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from shared.sql.migrate import MIGRATIONS, migrate, newest_revision, revisions
from tests.kit.services.databases import PostgresServer, open_database
from tests.kit.wait_until import wait_until

BEFORE_OPERATIONS = "0014"
BEFORE_POLICIES = "0010"

TABLES = ("approvals", "callbacks", "runs", "steps")

WAITED_FOR = """
    SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
HELD = "SELECT count(*) FROM pg_locks WHERE granted AND mode <> 'AccessShareLock' AND relation = to_regclass(:name)"


def _upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@pytest.mark.services
@pytest.mark.parametrize("table", TABLES)
async def test_a_migration_kept_the_locks_of_one_table_while_it_waited_for_another(
    postgres_server: PostgresServer, table: str
) -> None:
    """Nobody could read a run for as long as that took. And a worker that had written here and went on there waited for
    the migration, which waited for the worker: Postgres ended one of the two."""
    url = postgres_server.create_database()
    async with open_database(url) as old, open_database(url) as other:
        async with old.migrating() as connection:
            await connection.run_sync(_upgrade, BEFORE_OPERATIONS)

        async def waits() -> bool:
            async with other.read() as connection:
                return table in (await connection.execute(sa.text(WAITED_FOR))).scalars().all()

        async with asyncio.TaskGroup() as group:
            async with other.write() as worker:
                await worker.execute(sa.text(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE"))
                migrating = group.create_task(migrate(old), name="migrate")
                await wait_until(waits, description="the migration to wait for the worker's transaction")
                held = {one: (await worker.execute(sa.text(HELD), {"name": one})).scalar_one() for one in TABLES}
            assert await migrating == newest_revision()
    postgres_server.drop_database(url)

    assert held == {one: int(one == table) for one in TABLES}, "the worker's own lock, and no other"


@pytest.mark.services
async def test_a_migration_that_postgres_ended_for_a_worker_left_the_database_half_migrated(
    postgres_server: PostgresServer,
) -> None:
    """`holdfast migrate` said that the database does not answer, and an upgrade stopped there."""
    url = postgres_server.create_database()
    async with open_database(url) as old, open_database(url) as other:
        async with old.migrating() as connection:
            await connection.run_sync(_upgrade, BEFORE_POLICIES)

        async def waits() -> bool:
            async with other.read() as connection:
                return "runs" in (await connection.execute(sa.text(WAITED_FOR))).scalars().all()

        async with asyncio.TaskGroup() as group:
            async with other.write() as worker:
                # Who waits longest looks first for whom it waits, and is the one that is ended.
                await worker.execute(sa.text("SET LOCAL deadlock_timeout = '10min'"))
                await worker.execute(sa.text("LOCK TABLE runs IN ROW EXCLUSIVE MODE"))
                migrating = group.create_task(migrate(old), name="migrate")
                await wait_until(waits, description="the migration to wait for the worker's transaction")
                await worker.execute(sa.text("LOCK TABLE approvals IN ROW EXCLUSIVE MODE"))
            assert await migrating == newest_revision()
    postgres_server.drop_database(url)


def test_the_folder_of_migrations_was_read_at_every_look_whether_the_database_is_current() -> None:
    revisions()
    before = revisions.cache_info()
    newest_revision()
    after = revisions.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
