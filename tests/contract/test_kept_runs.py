"""A run whose lease Redis has forgotten has one worker, whether it is taken again or dispatched again."""

from collections.abc import AsyncGenerator, Collection

import pytest
from arq.connections import ArqRedis

from shared.concurrency import SystemClock
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.queue import JobLeases, RunQueue
from shared.runs.orphans import OrphanedRuns
from tests.kit.runs.stored_runs import IDS, Stores, stored_runs
from tests.kit.runs.unobserved import unobserved
from worker.maintenance import Sweeper
from worker.run.execute_run import ActiveRuns
from worker.run.publisher import Publisher

RETAKEN_AFTER = 2
"""The sweeper's second look finds that nobody has the run. Then it renews the dispatch in SQL, and looks once more."""


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


class RetakenQueue(RunQueue):
    """Its worker takes a job's lease again right after the second look."""

    def __init__(self, redis: ArqRedis, job_id: str) -> None:
        super().__init__(redis)
        self._leases = JobLeases(redis, worker="living", lease_s=600)
        self._job_id = job_id
        self._looks = 0

    async def queued_among(self, dispatches: Collection[tuple[RunId, int]]) -> set[tuple[RunId, int]]:
        found = await super().queued_among(dispatches)
        self._looks += 1
        if self._looks == RETAKEN_AFTER:
            assert await self._leases.retake(self._job_id)
        return found


async def test_a_run_that_was_left_to_its_worker_is_left_to_it_by_the_next_sweep(
    stores: Stores, redis: ArqRedis
) -> None:
    """SQL had a newer dispatch by then, which was not in the queue: a sweep later, the living worker lost its run."""
    run = await stores.claimed()
    queue, clock = RetakenQueue(redis, keys.job_id(run.id, run.dispatch)), SystemClock()
    orphans = OrphanedRuns(
        runs=stores.runs,
        agents=stores.agents,
        messages=stores.messages,
        checkpoints=stores.checkpoints,
        settlements=stores.settlements,
        events=stores.events,
        event_log=EventLog(redis, ttl_s=3600),
        queue=queue,
        clock=clock,
        ids=IDS,
    )
    sweeper = Sweeper(
        listing=stores.listing, runs=stores.runs, queue=queue, orphans=orphans, clock=clock, quiet_s=1, patience_s=0
    )
    assert await sweeper.sweep() == {}
    assert (await stores.runs.look_up(run.id)).dispatch == run.dispatch + 1
    assert await sweeper.sweep() == {}
    dispatched = {(run.id, run.dispatch + number) for number in range(4)}
    assert await queue.queued_among(dispatched) == {(run.id, run.dispatch)}

    # When that worker dies, its job is claimed, found to be an old one, and removed: then the run is dispatched.
    assert await JobLeases(redis, worker="living", lease_s=600).finish(keys.job_id(run.id, run.dispatch))
    assert await sweeper.sweep() == {"worker_lost": 1}


async def test_an_old_job_is_not_taken_again_because_the_same_worker_has_a_newer_one(
    stores: Stores, redis: ArqRedis
) -> None:
    """SQL was asked about the newer one, and the worker went on with the run twice."""
    run, clock = await stores.claimed(), SystemClock()
    active_runs = ActiveRuns(signal=CancelSignal(redis), runs=stores.runs, clock=clock, look_every_s=9)
    with active_runs.tracking(run.id, run.dispatch) as active:
        active.publisher = Publisher(
            run,
            event_log=EventLog(redis, ttl_s=3600),
            events=stores.events,
            checkpoints=stores.checkpoints,
            clock=clock,
            interruption=active.interruption,
            observation=unobserved(run),
        )
        assert await active_runs.still_owned(run.id, run.dispatch)
        assert not await active_runs.still_owned(run.id, run.dispatch - 1)
        active_runs.lease_lost(run.id, run.dispatch - 1)
        assert active.interruption.error is None, "the lease of the old job says nothing of the newer one"
