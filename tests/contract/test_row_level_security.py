"""The wall behind the stores: on Postgres, a session that acts for a project reads and writes that project's rows only,
whatever it asks for. The statements here name no project at all.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection

from api.access.authentication import act_for, project_of_request
from shared.domain.ids import ProjectId
from shared.domain.runs import SentBody, SubmissionKeys
from shared.sql.engine import Database
from shared.sql.history.message_lists import MessageLists
from shared.sql.run_tables import metadata, runs
from shared.sql.runs.run_store import RunStore
from shared.sql.tables import UtcMoment, VectorNumbers, agents, api_keys, passage_words
from tests.kit.runs.stored_runs import IDS, said, some_run
from tests.kit.services.databases import open_database, statements
from tests.kit.services.sent_statements import sent_statements

WITHOUT_POLICY = {
    *(api_keys.name, "api_key_secrets", "code_agents", "code_agent_versions", "deleted_rows", "passage_words")
}
"""Docs/operations/postgres.md says why."""
PROTECTED = [table for table in metadata.sorted_tables if table.name not in WITHOUT_POLICY]
ORDER = [agents, runs, *(table for table in PROTECTED if table not in (agents, runs) and table is not passage_words)]
PARENTS = {"agent_id": "agents", "archive_id": "archives", "block_id": "blocks", "run_id": "runs", "tool_id": "tools"}
NUMBERS = {"alpha": 1, "beta": 2}
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
async def database(plain_owner_url: str) -> AsyncGenerator[Database]:
    """One connection, so that each use finds what the one before has left in the session."""
    async with open_database(plain_owner_url) as filler, filler.write() as connection:
        for project in NUMBERS:
            for table in sorted(ORDER, key=lambda table: table.name.startswith("passage_")):
                await connection.execute(sa.insert(table).values(row_of(table, project)))
    database = Database(plain_owner_url, connections=1)
    yield database
    await database.aclose()


def row_of(table: sa.Table, project: str) -> dict[str, Any]:
    """A row of the project's, with only what must be there."""
    return {
        column.key: value_of(table, column, project)
        for column in table.columns
        if not column.nullable or column.name == "project_id"
    }


def value_of(table: sa.Table, column: sa.Column[Any], project: str) -> Any:
    kinds: dict[type, Any] = {
        UtcMoment: NOW, VectorNumbers: [1.0], sa.Boolean: True, sa.LargeBinary: b"1", sa.Integer: 1, sa.BigInteger: 1,
    }  # fmt: skip
    if column.name == "project_id":
        return project
    if column.name == "status":
        return "completed"
    if column.name == "id" or column.name in PARENTS:
        return f"{PARENTS.get(column.name, table.name)}-{project}"
    if column.name in ("number", "passage_number", "turn", "position"):
        return NUMBERS[project]
    return next((value for kind, value in kinds.items() if type(column.type) is kind), f"{column.name}-{project}")


def of(database: Database, project: str) -> Database:
    return database.scoped_to(lambda: project)


async def count(database: Database, table: sa.Table) -> int:
    async with database.read() as connection:
        return (await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one()


async def test_every_table_has_a_policy_that_binds_its_owner_or_is_named(database: Database) -> None:
    is_bound = sa.text("SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity")
    async with database.read() as connection:
        bound = set((await connection.execute(is_bound)).scalars())
    assert bound == {table.name for table in PROTECTED}


async def test_a_statement_without_a_project_finds_the_callers_rows_alone(database: Database) -> None:
    beta = of(database, "beta")
    for table in PROTECTED:
        assert await count(beta, table) == 1, table.name
        column = next(iter(table.columns))
        async with undone(beta) as connection:
            changed = await connection.execute(sa.update(table).values({column.key: column}))
            assert changed.rowcount == 1, table.name
            deleted = await connection.execute(sa.delete(table))
            assert deleted.rowcount == 1, table.name
            await connection.execute(sa.text("SELECT set_config('holdfast.project', '', true)"))
            left = await connection.execute(sa.select(sa.func.count()).select_from(table))
            assert left.scalar_one() == 1, table.name


async def test_a_row_of_another_project_is_not_written(database: Database) -> None:
    for table in PROTECTED:
        with pytest.raises(ProgrammingError, match="row-level security"):
            async with undone(database) as connection:
                await connection.execute(sa.delete(table))
                await connection.execute(sa.text("SELECT set_config('holdfast.project', 'beta', true)"))
                await connection.execute(sa.insert(table).values(row_of(table, "alpha")))


@asynccontextmanager
async def undone(database: Database) -> AsyncGenerator[AsyncConnection]:
    """A transaction that is rolled back."""
    with suppress(ZeroDivisionError):
        async with database.write() as connection:
            yield connection
            raise ZeroDivisionError


async def test_a_session_goes_from_one_caller_to_the_next_and_back_to_everybody(database: Database) -> None:
    alpha, beta = of(database, "alpha"), of(database, "beta")
    for caller, seen in ((alpha, 1), (beta, 1), (database, 2), (alpha, 1), (database, 2)):
        assert await count(caller, runs) == seen
    with pytest.raises(ZeroDivisionError):
        async with beta.write() as connection:
            await connection.execute(sa.select(runs.c.id))
            raise ZeroDivisionError
    async with alpha.read() as connection:
        assert (await connection.execute(sa.select(runs.c.project_id))).scalars().all() == ["alpha"]
    async with database.write() as connection:
        assert len((await connection.execute(sa.select(runs.c.id))).all()) == 2


async def test_a_session_is_told_once_whose_it_is(database: Database) -> None:
    alpha = of(database, "alpha")
    with statements() as asked:
        for _ in range(3):
            await count(alpha, runs)
        async with alpha.write() as connection:
            await connection.execute(sa.select(runs.c.id))
    assert sum("set_config" in statement for statement in asked) == 1


async def test_a_submission_of_a_project_is_stored_with_all_that_hangs_on_its_run(plain_owner_url: str) -> None:
    """A policy looks for the run of an input and of a key, and one statement does not see what another part of it
    writes. The third time goes the way of all that follow."""
    body = SentBody("body:1", NOW)
    async with open_database(plain_owner_url) as unscoped:
        for store in (RunStore(of(unscoped, "alpha")), RunStore(unscoped)):
            for text in ("first", "second", "third"):
                run, keys = some_run(project_id=ProjectId("alpha")), SubmissionKeys([f"otids:{IDS.run()}"], body=body)
                assert (await store.submit(run, [said(text)], keys=keys)).is_new
                assert await store.of_keys(run.project_id, run.thread_id, keys) is not None
                assert len(await store.input_of(run)) == 1


async def test_a_process_that_says_nothing_sees_all(database: Database) -> None:
    assert [await count(database, table) for table in PROTECTED] == [2] * len(PROTECTED)


async def test_policies_can_be_switched_off(database: Database) -> None:
    assert await count(database.scoped_to(lambda: "beta", policies=False), runs) == 2


async def test_a_superuser_is_bound_by_no_policy(database: Database, postgres_url: str) -> None:
    assert not await database.passes_policies()
    async with open_database(postgres_url) as superusers:
        assert await superusers.passes_policies()


async def test_work_that_is_no_requests_is_refused_the_callers_database(sqlite_url: str) -> None:
    """On every database: what forgets to say for whom it acts reads nothing, instead of everything."""
    async with open_database(sqlite_url) as unscoped:
        bound = unscoped.scoped_to(project_of_request)
        for use in (bound.read, bound.write):
            with pytest.raises(LookupError):
                async with use():
                    pass
        act_for(ProjectId("alpha"))
        assert await count(bound, runs) == 0


async def test_a_search_for_a_frequent_word_did_not_end_in_a_project_of_many_agents(database: Database) -> None:
    """Postgres lends a caller behind policies no statistics of texts and takes each word for a rare one: it looked for
    the agent of every message, and then compared each message that had the word with each agent."""
    fill = (
        "INSERT INTO agents (number, id, project_id, name, document, created_at, updated_at) "
        "SELECT n + 9, 'a' || n, 'alpha', '', '{}', 0, 0 FROM generate_series(0, 1999) n",
        "INSERT INTO messages (id, agent_id, thread_id, turn, position, in_context, body, created_at) "
        """SELECT 'm' || n, 'a' || n % 2000, 'a' || n % 2000, n, 1, true, '{"type":"user","content":"rain"}', n """
        "FROM generate_series(1, 20000) n",
    )
    async with database.write() as connection:
        for statement in (*fill, "ANALYZE"):
            await connection.execute(sa.text(statement))
    with sent_statements() as sent:
        found = await MessageLists(of(database, "alpha")).search(ProjectId("alpha"), ["rain"])
    assert [message.id for message in found[:2]] == ["m20000", "m19999"]
    [search] = [one for one in sent if "messages" in one.text]
    async with of(database, "alpha").read() as connection:
        plan = await connection.exec_driver_sql(f"EXPLAIN {search.text}", tuple(search.parameters))
        said_of_it = " ".join(str(row[0]) for row in plan)
    before_words, _, project = said_of_it.partition("Subquery Scan")
    assert "Join" not in before_words
    assert "hashed SubPlan" in project
