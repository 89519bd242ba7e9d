"""The sweeper dispatches for orphaned runs, and leaves alone what a living worker holds."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from dataclasses import replace
from datetime import timedelta

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.errors import NotFound
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Dispatch, Run
from shared.redis import keys
from shared.redis.event_log import EventLog
from shared.redis.queue import JobLeases, RunQueue
from shared.runs.orphans import OrphanedRuns
from shared.sql.runs.listing import RunListing
from tests.kit.runs.definitions import NOW, PROJECT
from tests.kit.runs.stored_runs import CANCEL, IDS, Stores, checkpoint, stored_runs
from worker.maintenance import Sweeper


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


class WatchedQueue(RunQueue):
    """Does something right after it was looked at for the nth time: what it has said is out of date then."""

    def __init__(self, redis: ArqRedis, *, after_look: int, do: Callable[[], Awaitable[object]]) -> None:
        super().__init__(redis)
        self._looks_left = after_look
        self._do = do

    async def queued_among(self, dispatches: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        found = await super().queued_among(dispatches)
        self._looks_left -= 1
        if self._looks_left == 0:
            await self._do()
        return found


class OutdatedListing(RunListing):
    """Deletes the first of the runs that it lists."""

    async def cancelled_but_unclaimed(self, limit: int = 100) -> list[Run]:
        found = await super().cancelled_but_unclaimed(limit)
        await self.delete(PROJECT, found[0].id)
        return found


def sweeper_of(stores: Stores, redis: ArqRedis, queue: RunQueue) -> Sweeper:
    orphans = OrphanedRuns(
        runs=stores.runs,
        agents=stores.agents,
        messages=stores.messages,
        checkpoints=stores.checkpoints,
        settlements=stores.settlements,
        events=stores.events,
        event_log=EventLog(redis, ttl_s=3600),
        queue=queue,
        clock=SystemClock(),
        ids=IDS,
    )
    return Sweeper(
        listing=stores.listing,
        runs=stores.runs,
        queue=queue,
        orphans=orphans,
        clock=SystemClock(),
        quiet_s=1,
        patience_s=0,
    )


async def test_an_orphaned_run_is_dispatched_again(stores: Stores, redis: ArqRedis) -> None:
    waiting, running = await stores.submitted(thread_id="thread-1"), await stores.claimed(thread_id="thread-2")
    queue = RunQueue(redis)
    assert await sweeper_of(stores, redis, queue).sweep() == {"not_dispatched": 1, "worker_lost": 1}
    dispatches = {(waiting.id, waiting.dispatch + 1), (running.id, running.dispatch + 1)}
    assert await queue.queued_among(dispatches) == dispatches


async def test_a_run_that_had_not_begun_was_left_to_a_job_that_came_too_late(stores: Stores, redis: ArqRedis) -> None:
    """What dispatched it first was slow: SQL had a newer dispatch by then, so the job was claimed in vain, and the run
    waited for the next sweep."""
    run = await stores.submitted()
    late = RunQueue(redis)
    queue = WatchedQueue(redis, after_look=1, do=lambda: late.dispatch(Dispatch(run.id, run.dispatch)))
    assert await sweeper_of(stores, redis, queue).sweep() == {"not_dispatched": 1}
    newest = {(run.id, run.dispatch + 1)}
    assert await queue.queued_among(newest) == newest


async def test_a_run_that_has_waited_for_its_budget_was_taken_for_one_of_a_lost_worker(
    stores: Stores, redis: ArqRedis
) -> None:
    """An operator was told of lost workers whenever a budget had let some runs wait."""
    run, _lost = await stores.claimed(thread_id="thread-1"), await stores.claimed(thread_id="thread-2")
    await stores.checkpoints.hand_over(run, checkpoint(run).tail, NOW, waits_until=NOW + timedelta(hours=1))

    assert await sweeper_of(stores, redis, RunQueue(redis)).sweep() == {"waited": 1, "worker_lost": 1}


@pytest.mark.parametrize("after_look", [1, 2])
async def test_a_run_whose_worker_takes_its_lease_again_meanwhile_is_left_to_it(
    stores: Stores, redis: ArqRedis, after_look: int
) -> None:
    """Redis had lost everything, and the sweeper was quicker: two workers ran one run until the first wrote again."""
    run = await stores.claimed()
    leases = JobLeases(redis, worker="living", lease_s=600)

    async def retake() -> None:
        assert await leases.retake(keys.job_id(run.id, run.dispatch))

    queue = WatchedQueue(redis, after_look=after_look, do=retake)
    assert await sweeper_of(stores, redis, queue).sweep() == {}
    assert await queue.queued_among([(run.id, run.dispatch), (run.id, run.dispatch + 1)]) == {(run.id, run.dispatch)}


async def test_a_run_that_is_deleted_before_its_cancel_is_finished_leaves_those_of_the_others(
    stores: Stores, redis: ArqRedis
) -> None:
    gone, other = [await stores.submitted(thread_id=f"thread-{number}") for number in (1, 2)]
    for run in (gone, other):
        await stores.runs.request_cancel(run, CANCEL)
    sweeper = replace(sweeper_of(stores, redis, RunQueue(redis)), listing=OutdatedListing(stores.database))
    assert await sweeper.sweep() == {}
    assert (await stores.runs.look_up(other.id)).status is RunStatus.CANCELLED
    with pytest.raises(NotFound):
        await stores.runs.look_up(gone.id)
