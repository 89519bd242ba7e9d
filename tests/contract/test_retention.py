"""Retention takes the log and the rest of a run that ended long ago, leaves the run and its conversation, and never
touches a run of which something is still to happen."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, event

from shared.concurrency import SystemClock
from shared.domain.ids import ProjectId, RunId, ThreadId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.runs import CancelRequest, Run, RunOptions, Step, SubmissionKeys
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.engine import Database
from shared.sql.run_tables import OF_A_RUN, RETAINED_FOR_A_WHILE, event_blocks, metadata
from shared.sql.runs.retention import BATCHES_OF_A_ROUND, RUNS_AT_ONCE, Retention
from shared.sql.runs.webhooks import WebhookDeliveryStore, WebhookEndpointStore
from shared.sql.tables import messages
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.ended_runs import fill_with_ended_runs
from tests.kit.runs.stored_runs import (
    AGENT,
    CANCEL,
    IDS,
    THREAD,
    Stores,
    answer,
    approve,
    call,
    callback_of,
    checkpoint,
    found,
    results,
    said,
    second_process,
    some_endpoint,
    some_entry,
    some_run,
    stored_runs,
)
from tests.kit.services.databases import run_locked
from tests.kit.wait_until import HANGS_S, wait_until

ENTRY = b'{"type":"status","at":1,"status":"running"}'
URL = "http://127.0.0.1/called"
WAITS = call("a", needs_approval=True)
MUCH_LATER = NOW + timedelta(days=100)
BEFORE = NOW + timedelta(days=10)
"""All runs of these tests end ten days before this, if they do not end much later."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        await WebhookEndpointStore(stores.database).create(some_endpoint(dialect="any"))
        yield stores


async def whole_run(stores: Stores, thread: str = THREAD, **callback: str) -> Run:
    """A run that has ended, with rows in every table but that of the approvals."""
    submission = some_run(
        thread_id=ThreadId(thread), callback_url=URL, options=RunOptions(dialect="any", background=True)
    )
    await stores.runs.submit(submission, [said("hi")], keys=SubmissionKeys([f"otids:{submission.id}"]))
    run = await stores.claim(submission)
    await stores.inbox.inject(run, [said("psst")], "next")
    await stores.inbox.inject(run, [said("too late")], "refuse")
    await stores.delivered(run, ENTRY)
    await stores.inbox.inject(run, [said("later still")], "refuse")
    step = Step(id=IDS.step(), run_id=run.id, agent_id=AGENT.id, number=1, model="builtin/echo", created_at=NOW)
    fields: dict[str, Any] = {"entries": [ENTRY] * 3, "step": step, "journal": [some_entry()]}
    asking = checkpoint(await stores.runs.look_up(run.id), answer("", call("b")), **fields)
    await stores.checkpoints.record(run, asking, starting=[call("b")])
    run = await stores.recorded(await stores.runs.look_up(run.id), results(found("b")))
    ended = (await stores.settle(run)).run
    await delivered_callback(stores, ended)
    return await stores.runs.look_up(ended.id)


async def delivered_callback(stores: Stores, run: Run) -> None:
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=200, error=None, next_at=None)
    deliveries = WebhookDeliveryStore(stores.database)
    for one in await deliveries.claim_due(NOW):
        await deliveries.record_attempt(one, now=NOW, status_code=200, error=None, next_at=None)


async def rows_of(stores: Stores, run: Run) -> Counter[str]:
    """How many rows hang on the run, by table, messages included; tables that have none are left out."""
    counted = Counter[str]()
    async with stores.database.read() as connection:
        for table in (*OF_A_RUN, messages):
            query = sa.select(sa.func.count()).select_from(table).where(table.c.run_id == run.id)
            counted[table.name] = (await connection.execute(query)).scalar_one()
    return +counted


async def pruned_by(stores: Stores, limit: int = RUNS_AT_ONCE) -> Counter[str]:
    """What one process deletes, in all of its transactions."""
    total = Counter[str]()
    while pruned := await stores.retention.prune(BEFORE, MUCH_LATER, limit):
        total.update(pruned)
    return total


async def test_the_run_and_its_conversation_stay_and_all_else_goes(stores: Stores) -> None:
    run, other = await whole_run(stores), await stores.claimed(thread_id=ThreadId("conv-2"))
    had, others_had = await rows_of(stores, run), await rows_of(stores, other)
    assert {table.name for table in RETAINED_FOR_A_WHILE} | {"messages"} == set(had)
    context = await stores.context()

    deleted = await pruned_by(stores)

    assert deleted - Counter(runs=1) == had - Counter(messages=had["messages"])
    assert await rows_of(stores, run) == Counter(messages=had["messages"])
    assert await stores.runs.look_up(run.id) == msgspec.structs.replace(run, pruned_at=MUCH_LATER)
    assert await stores.runs.input_of(run) == []
    assert await stores.context() == context
    assert await rows_of(stores, other) == others_had


async def test_who_decided_what_stays(stores: Stores) -> None:
    parked = await stores.parked(WAITS)
    await stores.settle(parked, RunTrigger.CANCEL)
    assert (await pruned_by(stores))["runs"] == 1
    [approval] = await stores.asked(parked)
    assert approval.decision is not None
    assert not approval.decision.approve


def test_every_table_of_a_run_is_either_pruned_or_kept_on_purpose() -> None:
    """A new table that has a run's id must be put in one of the lists."""
    of_runs = {table.name for table in metadata.sorted_tables if "run_id" in table.c}
    assert of_runs - {table.name for table in RETAINED_FOR_A_WHILE} == {"messages", "approvals", "settled_effects"}
    assert of_runs - {table.name for table in OF_A_RUN} == {"messages"}


Begin = Callable[[Stores], Awaitable[Run]]


async def a_run_with_a_cancel(stores: Stores) -> Run:
    run = await stores.parked(WAITS)
    return await stores.runs.request_cancel(run, CANCEL)


async def a_run_that_goes_on_after_a_checkpoint(stores: Stores) -> Run:
    return await stores.recorded(await stores.claimed(), answer("", call("b")), starting=[call("b")])


async def a_run_whose_callback_was_not_delivered(stores: Stores) -> Run:
    run = await stores.ended(callback_url=URL)
    await stores.callbacks.record_attempt(callback_of(run), now=NOW, status_code=503, error="busy", next_at=MUCH_LATER)
    return run


async def a_run_that_left_a_message_for_the_next(stores: Stores) -> Run:
    run = await stores.claimed()
    await stores.inbox.inject(run, [said("for later")], "next")
    return (await stores.settle(run, RunTrigger.CANCEL)).run


async def a_run_that_was_parked_long_ago_and_decided_just_now(stores: Stores) -> Run:
    parked = await stores.parked(WAITS)
    continuation = await stores.decide(approve("a"), created_at=MUCH_LATER)
    await stores.settle(await stores.claim(continuation), now=MUCH_LATER)
    return parked


OPEN: dict[str, Begin] = {
    "queued": lambda stores: stores.submitted(callback_url=URL),
    "running": a_run_that_goes_on_after_a_checkpoint,
    "parked": lambda stores: stores.parked(WAITS),
    "parked, to be cancelled": a_run_with_a_cancel,
    "callback due": lambda stores: stores.ended(callback_url=URL),
    "callback to be tried again": a_run_whose_callback_was_not_delivered,
    "message for the next run": a_run_that_left_a_message_for_the_next,
    "decided just now": a_run_that_was_parked_long_ago_and_decided_just_now,
}


@pytest.mark.parametrize("begin", OPEN.values(), ids=OPEN.keys())
async def test_a_run_of_which_something_is_still_to_happen_is_never_touched(stores: Stores, begin: Begin) -> None:
    run = await begin(stores)
    had, stored = await rows_of(stores, run), await stores.runs.look_up(run.id)
    assert await pruned_by(stores) == Counter()
    assert (await rows_of(stores, run), await stores.runs.look_up(run.id)) == (had, stored)


async def test_a_run_is_pruned_when_nothing_is_left_to_happen(stores: Stores) -> None:
    called = await stores.ended(callback_url=URL, thread_id=ThreadId("conv-2"))
    run = await a_run_that_left_a_message_for_the_next(stores)
    assert await pruned_by(stores) == Counter()
    await delivered_callback(stores, called)
    following = await stores.claimed(thread_id=run.thread_id)
    assert (await pruned_by(stores))["runs"] == 2
    assert "for later" in str(await stores.context())
    assert (await stores.runs.look_up(following.id)).status is RunStatus.RUNNING


async def test_a_run_that_ended_a_moment_too_late_stays(stores: Stores) -> None:
    old = await stores.claimed()
    await stores.settle(old, now=BEFORE - timedelta(microseconds=1))
    young = await stores.claimed()
    await stores.settle(young, now=BEFORE)
    assert (await pruned_by(stores))["runs"] == 1
    assert (await stores.runs.look_up(young.id)).pruned_at is None


async def test_the_same_submission_is_a_new_run_once_its_key_was_pruned(stores: Stores) -> None:
    run = await whole_run(stores)
    again = some_run()
    assert not (await stores.runs.submit(again, [said("hi")], keys=SubmissionKeys([f"otids:{run.id}"]))).is_new
    await pruned_by(stores)
    assert (await stores.runs.submit(again, [said("hi")], keys=SubmissionKeys([f"otids:{run.id}"]))).is_new


class TornAway(Exception):
    """No error of a database."""


@contextmanager
def failing(beginning: str) -> Generator[None]:
    """The first statement that begins so fails, as if the process were torn away there."""

    def fail(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith(beginning):
            raise TornAway

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", fail)


STATEMENTS = [*(" ".join(("DELETE FROM", table.name)) for table in RETAINED_FOR_A_WHILE), "UPDATE runs"]


@pytest.mark.parametrize("beginning", STATEMENTS)
async def test_a_crash_in_the_middle_leaves_each_run_whole_or_pruned(stores: Stores, beginning: str) -> None:
    ended = [await whole_run(stores, f"conv-{number}") for number in range(4)]
    had = await rows_of(stores, ended[0])
    assert (await stores.retention.prune(BEFORE, NOW, limit=2))["runs"] == 2

    with failing(beginning), pytest.raises(TornAway):
        await stores.retention.prune(BEFORE, NOW, limit=2)
    left = [sum((await rows_of(stores, run)).values()) for run in ended]
    assert sorted(left) == sorted([had["messages"]] * 2 + [sum(had.values())] * 2)

    async with second_process(stores) as other:
        assert (await pruned_by(other))["runs"] == 2
    assert [await rows_of(stores, run) for run in ended] == [Counter(messages=had["messages"])] * 4


async def test_two_at_once_prune_each_run_once(stores: Stores) -> None:
    ended = [await whole_run(stores, f"conv-{number}") for number in range(12)]
    had = sum([await rows_of(stores, run) for run in ended], Counter[str]())
    async with second_process(stores) as other:
        mine, others = await asyncio.gather(pruned_by(stores, limit=2), pruned_by(other, limit=2))
    both = mine + others + await pruned_by(stores)
    assert both == had - Counter(messages=had["messages"]) + Counter(runs=12)


async def test_a_run_that_somebody_has_in_hand_is_left_for_later(postgres_url: str) -> None:
    async with stored_runs(postgres_url) as stores:
        first, second = await whole_run(stores), await whole_run(stores, "conv-2")
        async with run_locked(postgres_url, first.id), asyncio.timeout(HANGS_S):
            assert (await pruned_by(stores))["runs"] == 1
        assert (await stores.runs.look_up(second.id)).pruned_at is not None
        assert (await pruned_by(stores))["runs"] == 1


async def _somebody_waits(database: Database) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.read() as connection:
        return (await connection.execute(sa.text(waiting))).scalar_one() > 0


async def _delete_run(stores: Stores, run_id: RunId) -> None:
    await stores.listing.delete(PROJECT, run_id)


async def _delete_agent(stores: Stores, _run_id: RunId) -> None:
    await AgentEditor(stores.database).delete(ProjectId(PROJECT), AGENT.id)


@pytest.mark.parametrize("delete", [_delete_run, _delete_agent])
async def test_a_deletion_and_the_pruning_of_one_run_waited_for_each_other(
    postgres_url: str, delete: Callable[[Stores, RunId], Coroutine[Any, Any, None]]
) -> None:
    """The deletion had some of the rows and wanted the run; the pruning had the run and wanted those rows."""
    async with stored_runs(postgres_url) as stores, second_process(stores) as other:
        run = await whole_run(stores)
        async with asyncio.timeout(HANGS_S), asyncio.TaskGroup() as group, stores.database.write() as connection:
            of_run = sa.select(event_blocks.c.first_seq).where(event_blocks.c.run_id == run.id)
            await connection.execute(of_run.with_for_update())
            group.create_task(delete(other, run.id))
            await wait_until(lambda: _somebody_waits(other.database), description="the deletion to wait")
            assert await pruned_by(other) == Counter()
        assert await rows_of(stores, run) == Counter()


async def test_a_round_ends_and_the_next_one_goes_on(sqlite_url: str) -> None:
    """A worker that is told to end waits for its round."""
    async with stored_runs(sqlite_url) as stores:
        await fill_with_ended_runs(stores, BATCHES_OF_A_ROUND * RUNS_AT_ONCE + 10)
        retention = Retention(store=stores.retention, clock=SystemClock(), keep=timedelta(days=1))
        assert await retention.prune_some() == BATCHES_OF_A_ROUND * RUNS_AT_ONCE
        async with aclosing(retention.prune()) as pruning:
            rest = [pruned["runs"] async for pruned in pruning]
        assert rest == [10]
        assert await retention.prune_some() == 0


async def test_counting_says_what_pruning_deletes(stores: Stores) -> None:
    for number in range(3):
        await whole_run(stores, f"conv-{number}")
    await stores.submitted(callback_url=URL)
    async with aclosing(stores.retention.count(BEFORE)) as counting:
        counted = Counter({name: count async for name, count in counting})
    assert counted["runs"] == 3
    assert await pruned_by(stores) == counted


async def test_a_cancel_that_was_asked_for_after_the_end_holds_nothing_back(stores: Stores) -> None:
    run = await stores.ended()
    await stores.runs.request_cancel(run, CancelRequest(requested_at=NOW, actor="ada"))
    assert (await pruned_by(stores))["runs"] == 1
