"""The migrations and `tables.py` say the same, on both databases, and runs in flight outlive them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from shared.domain.errors import StaleFence
from shared.domain.ids import Fence, IdMaker, RunId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.log_writer import NUMBERS_PER_FENCE, LogTail, first_seq_of
from shared.domain.messages import AssistantMessage
from shared.domain.runs import RunOptions, Usage
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.engine import Database
from shared.sql.migrate import MIGRATIONS, is_current, migrate
from shared.sql.run_tables import callbacks, metadata, runs
from shared.sql.runs.event_blocks import insert_events
from shared.sql.tables import to_json
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import (
    AGENT,
    IDS,
    Stores,
    answer,
    approve,
    call,
    message,
    next_seq,
    request_of,
    said,
    some_run,
    texts_of,
)
from tests.kit.services.databases import open_database

BEFORE_FENCES_OWNED_NUMBERS = "0002"
MICROSECONDS = int(NOW.timestamp() * 1_000_000)
ENTRY = b'{"type":"status","at":1,"status":"running"}'
WAITS = call("a", needs_approval=True)


def _differences(connection: Connection) -> list[Any]:
    def is_compared(_item: Any, name: str | None, kind: str, *_: Any) -> bool:
        # FTS5 keeps its index in tables of its own making, which no metadata describes.
        is_index_of_words = kind == "table" and str(name).startswith("passage_words")
        return not (is_index_of_words and connection.dialect.name == "sqlite")

    context = MigrationContext.configure(connection, opts={"include_object": is_compared})
    return list(compare_metadata(context, metadata))


async def test_a_migrated_database_has_the_shape_of_the_tables(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        assert not await is_current(database)
        await migrate(database)
        assert await is_current(database)
        async with database.read() as connection:
            assert await connection.run_sync(_differences) == []
    finally:
        await database.aclose()


async def test_migrating_twice_changes_nothing(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    try:
        assert await migrate(database) == await migrate(database)
    finally:
        await database.aclose()


class OldRelease:
    """A database as the release left it in which numbers were reserved, and what it writes there."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.stores = Stores(database)

    async def insert(self, table_name: str, **values: Any) -> None:
        async with self.database.write() as connection:
            table = await connection.run_sync(lambda sync: sa.Table(table_name, sa.MetaData(), autoload_with=sync))
            await connection.execute(sa.insert(table).values(values))

    async def run(self, status: RunStatus, thread: str, **columns: Any) -> RunId:
        run = some_run(thread_id=ThreadId(thread))
        is_claimed = status is not RunStatus.CREATED
        defaults: dict[str, Any] = {
            "id": run.id,
            "project_id": run.project_id,
            "agent_id": AGENT.id,
            "thread_id": thread,
            "status": status.value,
            "background": True,
            "options": to_json(RunOptions(background=True)),
            "input": to_json([said("hi")]),
            "turn": 1 if is_claimed else None,
            "ring": 1,
            "fence": 1 if is_claimed else 0,
            "stalled_claims": 1 if is_claimed else 0,
            "usage": to_json(Usage()),
            "step_count": 0,
            "last_seq": 1,
            "checkpoint_seq": 1,
            "reserved_seq": 1,
            "created_at": MICROSECONDS,
            "updated_at": MICROSECONDS,
        }
        await self.insert("runs", **(defaults | columns))
        return run.id

    async def told(self, run_id: RunId, thread: str, *bodies: Any) -> list[str]:
        """Messages of the run's turn; gives their ids."""
        ids = [IDS.message() for _ in bodies]
        for position, (message_id, body) in enumerate(zip(ids, bodies, strict=True), start=1):
            await self.insert(
                "messages",
                id=message_id,
                agent_id=AGENT.id,
                thread_id=thread,
                run_id=run_id,
                turn=1,
                position=position,
                in_context=True,
                body=to_json(body),
                created_at=MICROSECONDS,
            )
        return list(ids)

    async def shown(self, run_id: RunId, first: int, count: int) -> None:
        """Entries of the run's log."""
        async with self.database.write() as connection:
            await insert_events(connection, run_id, LogTail(Seq(first), [ENTRY] * count))


def _upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@asynccontextmanager
async def old_database(url: str) -> AsyncGenerator[OldRelease]:
    async with open_database(url) as database:
        async with database.migrating() as connection:
            await connection.run_sync(_upgrade, BEFORE_FENCES_OWNED_NUMBERS)
        await AgentEditor(database).create(AGENT, system_message_id=IdMaker().message())
        yield OldRelease(database)


@pytest.fixture
async def old(empty_database_url: str) -> AsyncGenerator[OldRelease]:
    async with old_database(empty_database_url) as release:
        yield release


async def test_a_run_that_had_not_begun_runs_after_the_upgrade(old: OldRelease) -> None:
    run_id = await old.run(RunStatus.CREATED, "conv-1")
    await migrate(old.database)
    stores = old.stores
    run = await stores.runs.look_up(run_id)
    assert (run.status, run.dispatch, run.attempts_without_progress) == (RunStatus.CREATED, 1, 0)
    run = await stores.claim(run)
    assert (run.fence, run.turn, next_seq(run)) == (1, 1, 2)
    run = await stores.recorded(run, answer("hello"))
    await stores.settle(run)
    assert texts_of(await stores.messages.context(PROJECT, run.thread_id)) == ["hi", "hello"]


IN_FLIGHT = [
    # (fence, last_seq, reserved_seq)
    (1, 1, 1),
    (1, 7, 10_007),
    (3, 7, 10_007),
    (3, 40_000, 41_000),
    (1, 1_000_000, 1_000_000),
    (1, 999_990, 1_000_001),
    (1, 1_000_001, 1_000_001),
    (1, 1_000_001, 1),
    (2, 2_500_000, 2_510_000),
    (2, 5, 9_000_000),
]


@pytest.mark.parametrize(("fence", "last_seq", "reserved_seq"), IN_FLIGHT)
async def test_no_number_of_a_run_in_flight_is_given_again_after_the_upgrade(
    old: OldRelease, fence: int, last_seq: int, reserved_seq: int
) -> None:
    """What its worker had reserved may have been shown, whether SQL has it or not."""
    numbers = {"fence": fence, "last_seq": last_seq, "checkpoint_seq": last_seq, "reserved_seq": reserved_seq}
    run_ids = [
        await old.run(RunStatus.RUNNING, thread, reserved_log="log-1", **numbers) for thread in ("conv-1", "conv-2")
    ]
    await migrate(old.database)
    claimed, lost = [await old.stores.runs.look_up(run_id) for run_id in run_ids]
    assert (claimed.last_seq, claimed.checkpoint_seq) == (last_seq, last_seq)
    new_owners = [
        await old.stores.claim(claimed),
        await old.stores.runs.take_over(lost, IDS.claim(), NOW),
    ]
    for run in new_owners:
        assert run.fence > fence
        assert first_seq_of(run.fence) > max(last_seq, reserved_seq)


async def test_a_run_in_flight_goes_on_and_ends_after_the_upgrade(old: OldRelease) -> None:
    thread = "conv-1"
    run_id = await old.run(
        RunStatus.RUNNING, thread, fence=2, last_seq=10_003, checkpoint_seq=10_001, reserved_seq=20_000,
        reserved_log="log-1", started_at=MICROSECONDS,
    )  # fmt: skip
    await old.told(run_id, thread, said("hi").body)
    await old.shown(run_id, 2, 4)
    await old.shown(run_id, 10_001, 3)
    queued = await old.run(RunStatus.CREATED, thread)
    await old.insert("injected_messages", run_id=run_id, message=to_json(said("psst")), if_ended="next")
    await migrate(old.database)

    stores = old.stores
    lost = await stores.runs.look_up(run_id)
    run = await stores.claim(lost)
    assert run.fence == 3
    await stores.checkpoints.adopt(run, [(Seq(10_004), ENTRY)], NOW)
    assert [waiting.body for waiting in await stores.delivered(run, ENTRY)] == [said("psst").body]
    run = await stores.recorded(await stores.runs.look_up(run_id), answer("hello"))
    with pytest.raises(StaleFence):
        await stores.settle(lost)
    settled = await stores.settle(run)

    assert texts_of(await stores.messages.context(PROJECT, run.thread_id)) == ["hi", "psst", "hello"]
    numbers = [seq for seq, _ in await stores.events.read(run_id, Seq(1))]
    old_numbers = [2, 3, 4, 5, 10_001, 10_002, 10_003, 10_004]
    assert numbers == [*old_numbers, *range(2_000_001, settled.run.last_seq + 1)]
    assert settled.next is not None
    assert settled.next.run_id == queued
    assert (await stores.claim(await stores.runs.look_up(queued))).turn == 2


async def test_a_message_for_a_run_that_ended_before_the_upgrade_is_the_next_runs(old: OldRelease) -> None:
    ended = await old.run(RunStatus.COMPLETED, "conv-1", completed_at=MICROSECONDS)
    await old.insert("injected_messages", run_id=ended, message=to_json(said("keep me")), if_ended="next")
    queued = await old.run(RunStatus.CREATED, "conv-1")
    await migrate(old.database)
    # An API of the old release that is still there names no thread.
    await old.insert("injected_messages", run_id=ended, message=to_json(said("me too")), if_ended="next")
    await old.stores.claim(await old.stores.runs.look_up(queued))
    assert texts_of(await old.stores.messages.context(PROJECT, ThreadId("conv-1"))) == ["keep me", "me too", "hi"]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["decided", "cancelled"])
async def test_a_question_is_still_answered_after_the_upgrade(old: OldRelease, is_cancelled: bool) -> None:
    thread = "conv-1"
    run_id = await old.run(
        RunStatus.AWAITING_APPROVAL, thread, fence=2, last_seq=10_003, checkpoint_seq=10_003, reserved_seq=1_200_000,
        stop_reason="requires_approval", completed_at=MICROSECONDS,
    )  # fmt: skip
    [_, asking_id] = await old.told(run_id, thread, said("hi").body, AssistantMessage("may I?", tool_calls=[WAITS]))
    await old.shown(run_id, 10_001, 3)
    asking = message(AssistantMessage("may I?", tool_calls=[WAITS]), id=asking_id)
    asked = request_of(some_run(id=run_id, thread_id=ThreadId(thread)), asking, WAITS)
    columns = {name: getattr(asked, name) for name in asked.__struct_fields__}
    del columns["asked_at"], columns["tool_version"]
    await old.insert("approvals", **columns, number=1, asked_at=MICROSECONDS)
    await migrate(old.database)

    stores = old.stores
    parked = await stores.runs.look_up(run_id)
    assert [one.tool_call_id for one in await stores.approvals.waiting_on_thread(PROJECT, parked.thread_id)] == ["a"]
    if is_cancelled:
        settled = await stores.settle(parked, RunTrigger.CANCEL, denial_reason="no")
        assert (settled.run.status, settled.run.last_seq) == (RunStatus.CANCELLED, parked.last_seq)
        return
    continuation = await stores.claim(await stores.decide(approve("a"), thread_id=ThreadId(thread)))
    assert (continuation.fence, continuation.continues, next_seq(continuation)) == (1, run_id, 2)
    await stores.settle(continuation)
    assert await stores.status_of(parked) is RunStatus.COMPLETED


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_has_ended_is_read_as_before_the_upgrade(old: OldRelease, status: RunStatus) -> None:
    run_id = await old.run(
        status, "conv-1", fence=2, last_seq=10_001, checkpoint_seq=10_001, reserved_seq=20_000, stop_reason="end_turn",
        completed_at=MICROSECONDS,
    )  # fmt: skip
    await old.shown(run_id, 2, 3)
    await old.shown(run_id, 10_001, 1)
    await migrate(old.database)
    stores = old.stores
    run = await stores.runs.look_up(run_id)
    assert (run.status, run.fence, run.last_seq, run.stop_reason) == (status, 2, 10_001, "end_turn")
    assert [seq for seq, _ in await stores.events.read(run_id, Seq(1))] == [2, 3, 4, 10_001]
    assert await stores.runs.input_of(run_id) != []
    assert await stores.runs.claim(run_id, run.dispatch, IDS.claim(), NOW) is None


async def test_callbacks_that_were_given_up_before_the_upgrade_are_listed_as_such(old: OldRelease) -> None:
    given_up, delivered, waiting = [
        await old.run(RunStatus.COMPLETED, thread, callback_sent_at=MICROSECONDS, callback_error=error)
        for thread, error in (("conv-1", "HTTP 410"), ("conv-2", None), ("conv-3", "HTTP 503"))
    ]
    for run_id in (given_up, delivered, waiting):
        callback = {"run_id": run_id, "project_id": PROJECT, "url": "http://127.0.0.1/", "attempts": 3}
        next_attempt = MICROSECONDS if run_id == waiting else None
        await old.insert("callbacks", next_attempt_at=next_attempt, **callback)
    await migrate(old.database)
    async with old.database.read() as connection:
        rows = (await connection.execute(sa.select(callbacks.c.run_id, callbacks.c.given_up_at))).all()
    assert {row.run_id: row.given_up_at for row in rows} == {given_up: NOW, delivered: None, waiting: None}


async def test_a_worker_of_the_old_release_goes_on_behind_what_a_new_one_may_have_shown(old: OldRelease) -> None:
    """During an upgrade both are there, and the old one looks for reserved numbers."""
    await migrate(old.database)
    stores = old.stores
    run = await stores.claim(await stores.claimed())

    async def reserved() -> int:
        async with old.database.read() as connection:
            return (await connection.execute(sa.select(runs.c.reserved_seq).where(runs.c.id == run.id))).scalar_one()

    assert await reserved() == first_seq_of(Fence(run.fence + 1)) - 1 == run.fence * NUMBERS_PER_FENCE
    renewed = await stores.checkpoints.take_new_fence(run, LogTail(next_seq(run), []), NOW)
    assert await reserved() == renewed.fence * NUMBERS_PER_FENCE
    taken = await stores.runs.take_over(renewed, IDS.claim(), NOW)
    assert await reserved() == taken.fence * NUMBERS_PER_FENCE
