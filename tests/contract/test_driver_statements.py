"""A statement that comes again goes to the driver without SQLAlchemy, and nobody can tell by what it answers."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.ids import ThreadId
from shared.sql.connection import WRITES_AT_ONCE, CompiledStatements, Filled
from shared.sql.engine import Database
from shared.sql.history.thread_queue import thread_lock
from shared.sql.run_tables import run_inputs, runs
from shared.sql.tables import blocks
from tests.kit.runs.definitions import NOW
from tests.kit.services.databases import open_database

BLOCK = {"id": "block-1", "project_id": "p", "label": "human", "document": "{}", "created_at": NOW, "updated_at": NOW}

INSERT = sa.insert(blocks)
NUMBERED = sa.insert(blocks).returning(blocks.c.number, blocks.c.created_at)
ALL = sa.select(blocks).order_by(blocks.c.id)
SOME = sa.select(blocks.c.id).where(blocks.c.id.in_(sa.bindparam("ids", expanding=True))).order_by(blocks.c.id)
RENAME = sa.update(blocks).where(blocks.c.id == sa.bindparam("of_block")).values(label=sa.bindparam("new_label"))
RENAMES = RENAME.returning(blocks.c.id)
RENAME_SOME = (
    sa.update(blocks)
    .where(blocks.c.id.in_(sa.bindparam("ids", expanding=True)), blocks.c.label.in_(["human", "x"]))
    .values(label=sa.bindparam("new_label"))
)
REMOVE = sa.delete(blocks)
NAMELESS = (
    sa.select(blocks.c.id, runs.c.id, sa.func.count(), sa.literal(True))
    .select_from(blocks.outerjoin(runs, sa.false()))
    .group_by(blocks.c.id, runs.c.id)
    .order_by(blocks.c.id)
)
"""Two columns of one name, and two without any."""
RENAMED = sa.select(blocks.c.id, runs.c.dispatch).select_from(blocks.outerjoin(runs, sa.false()))
"""The database calls the second column by another name than we do."""

_FIRST, _SECOND, _THIRD = (blocks.alias(name) for name in "abc")
COUNT_TRIPLES = sa.select(sa.func.count()).select_from(_FIRST.join(_SECOND, sa.true()).join(_THIRD, sa.true()))


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


async def times(database: Database, statement: sa.Executable, count: int = 3, **given: Any) -> list[Any]:
    """What one statement answers, one time after the other: only the first time is SQLAlchemy's."""
    answers = list[Any]()
    async with database.read() as connection:
        for _ in range(count):
            answers.append([dict(row) for row in (await connection.execute(statement, given)).mappings()])
    return answers


async def stored(database: Database, *names: str) -> None:
    async with database.write() as connection:
        for name in names:
            await connection.execute(INSERT, BLOCK | {"id": name})


async def test_a_statement_answers_the_same_each_time(database: Database) -> None:
    await stored(database, "block-1", "block-2", "block-3")
    for statement in (ALL, NAMELESS):
        first, *others = await times(database, statement)
        assert len(first) == 3
        assert others == [first, first]


async def test_a_list_of_any_length_is_looked_for(database: Database) -> None:
    await stored(database, "block-1", "block-2", "block-3")
    for ids in (
        ["block-3", "block-1"],
        ["block-2"],
        [],
        ["block-9", "block-1", "block-2", "block-3"],
        ["block-2", "x"],
    ):
        wanted = [{"id": name} for name in sorted(ids) if name not in ("block-9", "x")]
        assert await times(database, SOME, ids=ids) == [wanted] * 3
    async with database.write() as connection:
        for count in (1, 1, 2):
            ids = [f"block-{number}" for number in range(1, count + 1)]
            assert (await connection.execute(RENAME_SOME, {"ids": ids, "new_label": "x"})).rowcount == count


async def test_times_and_truths_come_back_as_what_they_were(database: Database) -> None:
    await stored(database, "block-1")
    for [row] in await times(database, ALL):
        assert row["created_at"] == NOW
    for [row] in await times(database, NAMELESS):
        assert row["id_1"] is None
        assert list(row.values())[2:] == [1, True]


async def test_a_row_is_asked_by_column_as_well_as_by_name(database: Database) -> None:
    await stored(database, "block-1")
    async with database.read() as connection:
        for _ in range(3):
            row = (await connection.execute(NAMELESS)).mappings().one()
            assert (row[blocks.c.id], row[runs.c.id]) == (row["id"], row["id_1"]) == ("block-1", None)


async def test_a_column_goes_by_the_name_that_we_give_it(database: Database) -> None:
    """Runs were claimed once in a process, and never again."""
    await stored(database, "block-1")
    async with database.read() as connection:
        for _ in range(3):
            assert (await connection.execute(RENAMED)).mappings().one()["dispatch"] is None
            assert (await connection.execute(RENAMED)).one().dispatch is None


async def test_an_insert_gives_what_it_returns(database: Database) -> None:
    async with database.write() as connection:
        found = [(await connection.execute(NUMBERED, BLOCK | {"id": name})).one() for name in ("a", "b", "c")]
    assert len({row.number for row in found}) == 3
    assert {row.created_at for row in found} == {NOW}


async def test_an_insert_is_compiled_anew_for_other_columns(database: Database) -> None:
    statement = sa.insert(run_inputs)
    compiled = CompiledStatements(sa.create_engine("sqlite://").dialect)
    assert compiled.get(statement, {"run_id": "r", "input": "i"}) is None
    both, one = compiled.get(statement, {"run_id": "r", "input": "i"}), compiled.get(statement, {"run_id": "r"})
    assert both is not None
    assert one is not None
    assert "input" not in one.text.split("run_inputs", 1)[1]
    assert both.values({"run_id": "r", "input": "i"}) == ["r", "i"]
    with pytest.raises(KeyError):
        both.values({"run_id": "r"})


async def test_a_statement_for_one_use_is_not_kept(database: Database) -> None:
    compiled = CompiledStatements(sa.create_engine("sqlite://").dialect)
    for _ in range(3):
        assert compiled.get(sa.select(blocks), {}) is None
    gc.collect()
    assert compiled.kept == 0


async def test_a_transaction_begins_with_its_locks_whatever_they_are_called(postgres_url: str) -> None:
    is_free = sa.select(sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(sa.bindparam("name"), 0)))
    async with open_database(postgres_url) as database, open_database(postgres_url) as others:

        async def locked(name: str) -> bool:
            async with others.write() as connection:
                return not (await connection.execute(is_free, {"name": name})).scalar_one()

        for name in ("agent-1", "it's", "\\'", "$1", "", "; ROLLBACK", "agent-\u00e9") * 3:
            async with database.write(None, thread_lock(ThreadId(name))) as connection:
                await connection.execute(INSERT, BLOCK)
                await connection.execute(REMOVE)
                assert await locked(name)
                assert not await locked(f"{name}2")
            assert not await locked(name)


async def test_a_lock_that_fails_leaves_no_transaction(postgres_url: str) -> None:
    failing = Filled(sa.select(sa.literal(1) // sa.bindparam("by", type_=sa.Integer)), {"by": 0})
    async with open_database(postgres_url) as database:
        for name in ("block-1", "block-2", "block-3"):
            with pytest.raises(InvalidRequest):
                async with database.write(None, thread_lock(ThreadId("agent-1")), failing):
                    pass
            await stored(database, name)


async def test_how_many_rows_were_changed_is_told(database: Database) -> None:
    await stored(database, "block-1")
    async with database.write() as connection:
        for name, changed in (("block-1", 1), ("block-9", 0)) * 2:
            for statement in (RENAME, RENAMES):
                answer = await connection.execute(statement, {"of_block": name, "new_label": "persona"})
                assert answer.rowcount == changed


async def test_a_broken_rule_of_the_database_is_raised_as_one(database: Database) -> None:
    await stored(database, "block-1")
    for _ in range(3):
        with pytest.raises(IntegrityError):
            await stored(database, "block-1")
    assert len((await times(database, ALL, 1))[0]) == 1


async def test_a_writer_that_is_cancelled_leaves_nothing_behind(database_url: str) -> None:
    """Neither its rows nor its transaction: the connection is the only one."""
    database = Database(database_url, connections=1)
    for again in range(3):
        wrote = asyncio.Event()

        async def write(wrote: asyncio.Event = wrote, name: str = f"block-{again}") -> None:
            async with database.write() as connection:
                await connection.execute(INSERT, BLOCK | {"id": name})
                wrote.set()
                await asyncio.Event().wait()

        writing = asyncio.create_task(write())
        await wrote.wait()
        writing.cancel()
        await asyncio.wait([writing])
        assert await times(database, ALL, 1) == [[]]
    await database.aclose()


async def test_a_connection_that_was_left_in_a_transaction_is_not_handed_out(postgres_url: str) -> None:
    database = Database(postgres_url, connections=1)
    async with database.read() as connection:
        first = (await connection.execute(sa.select(sa.func.pg_backend_pid()))).scalar_one()
        await connection.exec_driver_sql("BEGIN")
    async with database.read() as connection:
        assert (await connection.execute(sa.select(sa.func.pg_backend_pid()))).scalar_one() != first
    await database.aclose()


async def test_a_connection_that_is_lost_in_a_transaction_is_a_database_away(postgres_url: str) -> None:
    database, other = Database(postgres_url, connections=1), Database(postgres_url, connections=1)
    with pytest.raises(Unavailable):
        async with database.write() as connection:
            backend = (await connection.execute(sa.select(sa.func.pg_backend_pid()))).scalar_one()
            async with other.read() as ending:
                await ending.execute(sa.select(sa.func.pg_terminate_backend(backend, 5000)))
            await connection.execute(ALL)
    assert await times(database, ALL) == [[], [], []]
    await database.aclose()
    await other.aclose()


async def test_writes_that_wait_for_each_other_are_stored_once_and_in_order(database: Database) -> None:
    """More of them than make one statement, and each kind for the first time as well as later."""
    for again in range(3):
        names = [f"block-{again}-{number:02}" for number in range(WRITES_AT_ONCE * 2 + 1)]
        async with database.write() as connection:
            connection.defer(INSERT, *(BLOCK | {"id": name} for name in names))
            connection.defer(RENAME, {"of_block": f"block-{again - 1}-00", "new_label": "seen"})
            answer = await connection.execute_with_deferred(NUMBERED, BLOCK | {"id": f"last-{again}"})
            assert answer.one().created_at == NOW
        [found] = await times(database, ALL, 1)
        assert [row["id"] for row in found if row["id"].startswith(f"block-{again}-")] == names
        assert len({row["number"] for row in found}) == len(found) == (len(names) + 1) * (again + 1)
    [found] = await times(database, ALL, 1)
    assert [row["id"] for row in found if row["label"] == "seen"] == ["block-0-00", "block-1-00"]


async def test_a_statement_sees_what_was_deferred_before_it(database: Database) -> None:
    for again in range(3):
        async with database.write() as connection:
            connection.defer(INSERT, BLOCK | {"id": f"a-{again}"}, BLOCK | {"id": f"b-{again}"})
            assert len((await connection.execute(ALL)).all()) == 2 * again + 2


async def test_a_deferred_write_that_is_refused_takes_the_others_with_it(database: Database) -> None:
    await stored(database, "block-1")
    for _ in range(3):
        with pytest.raises(IntegrityError):
            async with database.write() as connection:
                connection.defer(INSERT, BLOCK | {"id": "block-2"}, BLOCK)
        async with database.write() as connection:  # the same connection has forgotten them
            await connection.execute(ALL)
    assert len((await times(database, ALL, 1))[0]) == 1


async def test_deferred_writes_are_forgotten_with_their_transaction(database: Database) -> None:
    with pytest.raises(KeyError):
        async with database.write() as connection:
            connection.defer(INSERT, BLOCK)
            raise KeyError
    assert await times(database, ALL, 1) == [[]]


async def test_postgres_gets_deferred_writes_as_one_statement(postgres_url: str) -> None:
    database = Database(postgres_url, connections=1)
    texts = list[str]()

    def note(query: Any) -> None:
        texts.append(query.query)

    for _ in range(3):  # from the second time on they are compiled
        texts.clear()
        async with database.write() as connection:
            driver = cast("Any", connection.sync_connection).connection.driver_connection
            with driver.query_logger(note):
                connection.defer(INSERT, BLOCK, BLOCK | {"id": "block-2"})
                await connection.execute_with_deferred(RENAMES, {"of_block": "block-3", "new_label": "persona"})
                connection.defer(REMOVE, {})
                await connection.flush()
    assert [text.split()[0] for text in texts] == ["WITH", "DELETE"]
    await database.aclose()


async def test_only_what_is_quick_is_asked_on_the_event_loop(sqlite_url: str) -> None:
    """SQLite's statements go past the driver's thread, and one that took long would hold up every stream."""
    turns, loop = 0, asyncio.get_running_loop()

    def count_turn() -> None:
        nonlocal turns, next_turn
        turns += 1
        next_turn = loop.call_soon(count_turn)

    next_turn = loop.call_soon(count_turn)
    async with open_database(sqlite_url) as database:
        names = [f"block-{number}" for number in range(60)]
        async with database.write() as connection:
            for name in names:
                await connection.execute(INSERT, BLOCK | {"id": name})
            await connection.execute(ALL)
            await connection.execute(COUNT_TRIPLES)
            before = turns
            assert len((await connection.execute(ALL)).all()) == 60
            assert turns == before
            assert (await connection.execute(COUNT_TRIPLES)).scalar_one() == 60**3
            assert turns > before
        assert len((await times(database, ALL, 1))[0]) == 60, "what was written before is kept"
    next_turn.cancel()
