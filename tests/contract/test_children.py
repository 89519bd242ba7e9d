"""The wait of a run for runs that it has started, as the store keeps it."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.errors import CancelMode
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import LogTail
from shared.domain.run_trees import ParentCall, SeenChild
from shared.domain.runs import Run, RunOptions
from shared.redis.connection import CancelSignal
from shared.redis.queue import RunQueue
from shared.runs.started_runs import RunTrees
from shared.sql.runs.listing import RunListing
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import IDS, Stores, stored_runs

NOTHING_NEW = LogTail(Seq(2), ())
UNTIL = NOW + timedelta(hours=1)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


async def child_of(stores: Stores, run: Run, call_id: str) -> Run:
    """A run at work that a call of this run has started, in a thread of its own."""
    parent = ParentCall(run_id=run.id, call_id=call_id, root_id=run.id, depth=1)
    return await stores.claimed(options=RunOptions(parent=parent), thread_id=IDS.run())


async def test_a_run_waits_until_the_last_of_its_children_has_ended(stores: Stores) -> None:
    run = await stores.claimed()
    children = [await child_of(stores, run, f"call-{number}") for number in (1, 2)]
    seen = [SeenChild(child.id, is_parked=False) for child in children]
    assert await stores.children.let_wait(run, NOTHING_NEW, seen, until=UNTIL, now=NOW) is None
    waiting = await stores.runs.look_up(run.id)
    assert (waiting.status, waiting.waits_for, waiting.waits_until) == (RunStatus.RUNNING, "runs", UNTIL)
    for child in children:
        assert await stores.children.wake(child, NOW) is None
        await stores.settle(child)
    woken = await stores.children.wake(children[1], NOW)
    assert woken is not None
    claimed = await stores.runs.claim(run.id, woken.number, IDS.claim(), NOW)
    assert claimed is not None
    assert (claimed.follows_wait, claimed.follows_lost_owner, claimed.waits_until) == (True, False, None)


async def test_a_child_whose_call_had_an_unknown_outcome_kept_the_next_wait_from_its_end(stores: Stores) -> None:
    run = await stores.claimed()
    forgotten, child = [await child_of(stores, run, f"call-{number}") for number in (1, 2)]
    seen = [SeenChild(child.id, is_parked=False)]
    assert await stores.children.let_wait(run, NOTHING_NEW, seen, until=UNTIL, now=NOW) is None
    await stores.settle(child)
    assert await stores.children.wake(child, NOW) is not None
    assert (await stores.runs.look_up(forgotten.id)).status is RunStatus.RUNNING


async def test_a_run_whose_waking_was_not_heard_of_was_left_without_a_dispatch(stores: Stores) -> None:
    run = await stores.claimed()
    child = await child_of(stores, run, "call-1")
    seen = [SeenChild(child.id, is_parked=False)]
    await stores.children.let_wait(run, NOTHING_NEW, seen, until=UNTIL, now=NOW)
    assert await stores.children.wake(child, NOW, again=True) is None
    await stores.settle(child)
    unheard = await stores.children.wake(child, NOW)
    woken = await stores.children.wake(child, NOW, again=True)
    assert unheard is not None
    assert woken is not None
    assert woken.number > unheard.number
    claimed = await stores.runs.claim(run.id, woken.number, IDS.claim(), NOW)
    assert claimed is not None
    assert await stores.children.wake(child, NOW, again=True) is None


async def test_a_run_whose_waker_died_is_found(stores: Stores) -> None:
    run = await stores.claimed()
    child = await child_of(stores, run, "call-1")
    seen = [SeenChild(child.id, is_parked=False)]
    await stores.children.let_wait(run, NOTHING_NEW, seen, until=UNTIL, now=NOW)
    assert await stores.children.wake_forgotten(NOW) == []
    await stores.settle(child)
    assert [dispatch.run_id for dispatch in await stores.children.wake_forgotten(NOW)] == [run.id]
    assert await stores.children.wake_forgotten(NOW) == []


async def test_the_end_of_a_run_raised_because_a_child_was_deleted_meanwhile(stores: Stores, redis: ArqRedis) -> None:
    """A client that had cancelled the run was told that there is no such run."""
    run = await stores.claimed()
    deleted, child = [await child_of(stores, run, f"call-{number}") for number in (1, 2)]
    queue, signal = RunQueue(redis), CancelSignal(redis)
    trees = RunTrees(children=stores.children, runs=stores.runs, queue=queue, signal=signal, clock=SystemClock())
    await RunListing(stores.database).delete(PROJECT, deleted.id)
    for one in (deleted, child):
        await trees.end_child(one, CancelMode.INTERRUPT)
    assert await stores.runs.cancels_among([deleted.id, child.id]) == {child.id: CancelMode.INTERRUPT}
