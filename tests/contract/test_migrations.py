"""The migrations and `tables.py` say the same, on both databases."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from shared.domain.errors import Unusable
from shared.domain.threads import Conversation
from shared.sql import migrations
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.engine import Database
from shared.sql.migrate import is_current, migrate, newest_revision, require_current, revisions, upgrade
from shared.sql.run_tables import metadata
from shared.sql.tables import document_of
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import AGENT, IDS
from tests.kit.services.databases import open_database

MIGRATIONS = Path(migrations.__file__ or "").parent
OF_AGENT: dict[str, Any] = {"project_id": PROJECT, "agent_id": AGENT.id}


def _differences(connection: Connection) -> list[Any]:
    def is_compared(_item: Any, name: str | None, kind: str, *_: Any) -> bool:
        # FTS5 keeps its index in tables of its own making, which no metadata describes.
        is_index_of_words = kind == "table" and str(name).startswith("passage_words")
        return not (is_index_of_words and connection.dialect.name == "sqlite")

    context = MigrationContext.configure(connection, opts={"include_object": is_compared})
    return list(compare_metadata(context, metadata))


async def test_a_migrated_database_has_the_shape_of_the_tables(empty_database_url: str) -> None:
    async with open_database(empty_database_url) as database:
        assert not await is_current(database)
        await migrate(database)
        assert await is_current(database)
        async with database.read() as connection:
            assert await connection.run_sync(_differences) == []


async def test_migrating_twice_changes_nothing(empty_database_url: str) -> None:
    async with open_database(empty_database_url) as database:
        assert await migrate(database) == await migrate(database)


CONDITIONS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname='public' AND indexdef LIKE '% WHERE %'",
}


async def test_an_index_has_a_condition_in_both_or_in_neither(empty_database_url: str) -> None:
    """Alembic compares the columns of indices and not the conditions of partial ones."""
    async with open_database(empty_database_url) as database:
        await migrate(database)
        dialect = "sqlite" if database.is_sqlite else "postgresql"
        async with database.read() as connection:
            made = {name for name, _ in await connection.execute(sa.text(CONDITIONS[dialect]))}
    said = {
        index.name
        for table in metadata.tables.values()
        for index in table.indexes
        if index.dialect_options[dialect]["where"] is not None
    }
    assert made == said


async def test_conversations_of_the_release_before_have_no_name(empty_database_url: str) -> None:
    """Two of one agent are no two of one name."""
    row = {"project_id": PROJECT, "agent_id": AGENT.id, "created_at": 1, "updated_at": 1}
    async with open_database(empty_database_url) as database:
        async with database.migrating() as connection:
            await connection.run_sync(lambda sync: upgrade(sync, MIGRATIONS, "0007_groups"))
        before = [Conversation(id=IDS.conversation(), created_at=NOW, updated_at=NOW, **OF_AGENT) for _ in range(2)]
        async with database.write() as connection:
            for one in before:
                insert = (
                    "INSERT INTO conversations (id, project_id, agent_id, document, created_at, updated_at)"
                    " VALUES (:id, :project_id, :agent_id, :document, :created_at, :updated_at)"
                )
                await connection.execute(sa.text(insert), {**row, "id": one.id, "document": document_of(one)})

        await migrate(database)

        store = ConversationStore(database)
        found = [await store.get(PROJECT, one.id) for one in before]
        assert [one.name for one in found] == [None, None]


async def _set_revision(database: Database, revision: str) -> None:
    async with database.write() as connection:
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("0001", "from before 0.2.0, which was never released, made the database .* give Holdfast a new, empty"),
        ("0023", "from before 0.2.0, which was never released, made the database .* give Holdfast a new, empty"),
        ("0002_of_a_newer_one", "a newer version has migrated the database, to revision '0002_of_a_newer_one'"),
    ],
)
async def test_a_database_of_another_version_is_refused_and_left_as_it_is(
    empty_database_url: str, revision: str, said: str
) -> None:
    async with open_database(empty_database_url) as database:
        await migrate(database)
        await _set_revision(database, revision)
        for look in (migrate, require_current):
            with pytest.raises(Unusable, match=said):
                await look(database)
        assert not await is_current(database)


def test_the_folder_of_migrations_was_read_at_every_look_whether_the_database_is_current() -> None:
    revisions()
    before = revisions.cache_info()
    newest_revision()
    after = revisions.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
