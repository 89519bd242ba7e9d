"""What a migration holds while it waits, and what it makes of rows that a release before has written."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from shared.sql.engine import Database
from shared.sql.migrate import MIGRATIONS, migrate, newest_revision
from shared.sql.run_tables import callbacks
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.services.databases import PostgresServer, open_database
from tests.kit.wait_until import wait_until

BEFORE_OPERATIONS = "0014"
MICROSECONDS = int(NOW.timestamp() * 1_000_000)

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


async def _at(database: Database, revision: str) -> Database:
    async with database.migrating() as connection:
        await connection.run_sync(_upgrade, revision)
    return database


@pytest.fixture
async def old(empty_database_url: str) -> AsyncGenerator[Database]:
    async with open_database(empty_database_url) as database:
        yield await _at(database, BEFORE_OPERATIONS)


async def _run(database: Database, run_id: str, **columns: Any) -> None:
    """A run that has ended, with its callback, as the release before has left them."""
    defaults: dict[str, Any] = {
        "id": run_id, "project_id": PROJECT, "agent_id": "agent-1", "thread_id": run_id, "status": "completed",
        "background": False, "options": "{}", "input": "[]", "ring": 1, "fence": 1, "stalled_claims": 0, "usage": "{}",
        "step_count": 1, "last_seq": 9, "checkpoint_seq": 9, "reserved_seq": 9, "created_at": MICROSECONDS,
        "updated_at": MICROSECONDS, "completed_at": MICROSECONDS, "callback_sent_at": MICROSECONDS,
    }  # fmt: skip
    callback = {"run_id": run_id, "project_id": PROJECT, "url": "http://127.0.0.1/", "attempts": 3}
    await _insert(database, "runs", defaults | columns)
    await _insert(database, "callbacks", callback)


async def _insert(database: Database, name: str, values: dict[str, Any]) -> None:
    async with database.write() as connection:
        table = await connection.run_sync(lambda sync: sa.Table(name, sa.MetaData(), autoload_with=sync))
        await connection.execute(sa.insert(table).values(values))


async def test_callbacks_that_the_release_before_gave_up_are_listed_as_such(old: Database) -> None:
    await _run(old, "run-given-up", callback_status_code=410, callback_error="HTTP 410")
    await _run(old, "run-delivered", callback_status_code=200)

    await migrate(old)

    async with old.read() as connection:
        rows = (await connection.execute(sa.select(callbacks.c.run_id, callbacks.c.given_up_at))).all()
    given_up: dict[str, datetime | None] = {row.run_id: row.given_up_at for row in rows}
    assert given_up == {"run-given-up": NOW.astimezone(UTC), "run-delivered": None}


@pytest.mark.services
@pytest.mark.parametrize("table", TABLES)
async def test_a_migration_kept_the_locks_of_one_table_while_it_waited_for_another(
    postgres_server: PostgresServer, table: str
) -> None:
    """Nobody could read a run for as long as that took. And a worker that had written here and went on there waited for
    the migration, which waited for the worker: Postgres ended one of the two."""
    url = postgres_server.create_database()
    async with open_database(url) as old, open_database(url) as other:
        await _at(old, BEFORE_OPERATIONS)

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


def test_the_folder_of_migrations_was_read_at_every_look_whether_the_database_is_current() -> None:
    newest_revision()
    before = newest_revision.cache_info()
    newest_revision()
    after = newest_revision.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
