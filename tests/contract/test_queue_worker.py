"""The worker's side of the queue: every dispatch is executed once, by one worker, and a deploy hands over at once."""

import asyncio
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import ShutdownRequested
from shared.domain.ids import RunId
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.queue import RunQueue
from tests.kit.clocks import AwakeTime
from tests.kit.runs.waiting_runs import WaitingRuns, make_worker, serving
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import after, wait_until


@pytest.fixture
def queue(redis: ArqRedis) -> RunQueue:
    return RunQueue(redis)


async def keys_left(redis: ArqRedis) -> list[bytes]:
    found = cast("list[bytes]", await cast("Any", redis).keys("*"))
    return [key for key in found if key != keys.WORKER_ALIVE.encode()]


async def until_empty(redis: ArqRedis) -> None:
    async def nothing_left() -> bool:
        return await keys_left(redis) == []

    await wait_until(nothing_left, description="the last key of the jobs to be gone")


async def test_a_run_is_executed_with_its_dispatch_and_leaves_nothing_behind(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    runs = WaitingRuns()
    runs.may_end.set()
    async with serving(make_worker(redis, runs)):
        await queue.dispatch(Dispatch(run_id, 3))
        await wait_until(lambda: runs.completed, description="the run to be completed")
        assert runs.started == [(run_id, 3)]
        await until_empty(redis)


async def test_a_dispatch_is_found_by_a_worker_that_starts_later(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    await queue.dispatch(Dispatch(run_id, 1))
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs)):
        await wait_until(lambda: runs.started, description="the run to start")


async def test_a_dispatch_starts_a_run_without_polling(redis: ArqRedis, queue: RunQueue) -> None:
    """The safety net looks once a second; a hundred and fifty dispatches in a row would take it more than a minute."""
    runs = WaitingRuns()
    runs.may_end.set()
    with AwakeTime() as awake:
        async with serving(make_worker(redis, runs)):
            for number in range(150):
                await queue.dispatch(Dispatch(RunId(f"run-{number}"), 1))
                await wait_until(
                    lambda count=number + 1: len(runs.started) == count, description="the start", every=0.001
                )
    assert awake.seconds() < 60


async def test_no_more_runs_at_once_than_allowed_and_a_free_place_is_used_at_once(
    redis: ArqRedis, queue: RunQueue
) -> None:
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs, max_runs=2)):
        for number in range(3):
            await queue.dispatch(Dispatch(RunId(f"run-{number}"), 1))
        await wait_until(lambda: len(runs.started) == 2, description="two runs to start")
        await after(0.05)
        assert len(runs.started) == 2
        runs.may_end.set()
        await wait_until(lambda: len(runs.completed) == 3, description="the third run to end")


async def test_a_run_that_raises_is_removed_and_the_worker_goes_on(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    runs = WaitingRuns()
    runs.may_end.set()
    runs.failure = ValueError("boom")
    async with serving(make_worker(redis, runs)):
        await queue.dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: len(runs.started) == 1, description="the first run to start")
        await until_empty(redis)
        runs.failure = None
        await queue.dispatch(Dispatch(run_id, 2))
        await wait_until(lambda: runs.completed == [run_id], description="the second run to end")


async def test_a_job_that_redis_forgot_is_removed_and_the_worker_goes_on(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    await queue.dispatch(Dispatch(run_id, 1))
    await redis.delete(keys.job(keys.job_id(run_id, 1)))
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs)):
        await until_empty(redis)
        await queue.dispatch(Dispatch(run_id, 2))
        await wait_until(lambda: runs.started == [(run_id, 2)], description="the next dispatch to be answered")


async def test_workers_share_the_queue_and_no_dispatch_is_answered_twice(
    redis_service: RedisService, queue: RunQueue
) -> None:
    teams = [WaitingRuns(), WaitingRuns()]
    for team in teams:
        team.may_end.set()
    first, second = (make_worker(redis_service.client(), team, max_runs=3) for team in teams)
    async with serving(first), serving(second):
        for number in range(60):
            await queue.dispatch(Dispatch(RunId(f"run-{number}"), 1))
        await wait_until(
            lambda: sum(len(team.completed) for team in teams) == 60, description="all sixty runs to be completed"
        )
    assert len({run_id for team in teams for run_id, _ in team.started}) == 60


async def test_a_drain_hands_the_runs_over_at_once(redis_service: RedisService, queue: RunQueue) -> None:
    """The lease is longer than the test has patience for: what is waited for here is the release."""
    leaving_runs, staying_runs = WaitingRuns(), WaitingRuns()
    leaving = make_worker(redis_service.client(), leaving_runs, lease_s=600)
    async with serving(leaving):
        for number in range(5):
            await queue.dispatch(Dispatch(RunId(f"run-{number}"), 4))
        await wait_until(lambda: len(leaving_runs.started) == 5, description="the runs to start")
        async with serving(make_worker(redis_service.client(), staying_runs)):
            await leaving.drain(0, hand_over_s=5)
            await wait_until(lambda: len(staying_runs.started) == 5, description="the hand-over")
    assert sorted(staying_runs.started) == sorted(leaving_runs.started)
    assert {reason for _, reason in leaving_runs.interrupted} == {ShutdownRequested}


async def test_a_draining_worker_claims_nothing(redis: ArqRedis, queue: RunQueue, run_id: RunId) -> None:
    runs = WaitingRuns()
    worker = make_worker(redis, runs)
    async with serving(worker):
        await worker.drain(0, hand_over_s=5)
        await queue.dispatch(Dispatch(run_id, 1))
        await after(0.05)
    assert runs.started == []
    assert await queue.queued_among([(run_id, 1)])
    assert not await queue.is_leased(run_id, 1)


async def test_a_run_that_does_not_listen_is_cancelled_when_the_drain_is_over(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    runs = WaitingRuns(ignore_shutdown=True)
    worker = make_worker(redis, runs)
    async with serving(worker):
        await queue.dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: runs.started, description="the run to start")
        await worker.drain(0, hand_over_s=0.05)
        assert not await queue.is_leased(run_id, 1)
        assert await queue.queued_among([(run_id, 1)])


async def test_a_worker_that_is_stopped_lets_its_runs_end(redis: ArqRedis, queue: RunQueue, run_id: RunId) -> None:
    runs = WaitingRuns()
    worker = make_worker(redis, runs)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.serve())
        await queue.dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: runs.started, description="the run to start")
        worker.stop()
        await after(0.02)
        assert runs.interrupted == []
        runs.may_end.set()
    assert runs.completed == [run_id]
    assert await keys_left(redis) == []


async def test_a_worker_that_is_cancelled_gives_its_runs_back(redis: ArqRedis, queue: RunQueue, run_id: RunId) -> None:
    runs = WaitingRuns()
    task = asyncio.ensure_future(make_worker(redis, runs).serve())
    await queue.dispatch(Dispatch(run_id, 1))
    await wait_until(lambda: runs.started, description="the run to start")
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not await queue.is_leased(run_id, 1)
    assert await queue.queued_among([(run_id, 1)])


async def test_long_runs_elsewhere_do_not_hide_those_that_wait(
    redis_service: RedisService, queue: RunQueue, run_id: RunId
) -> None:
    """arq's own worker reads the first hundred entries only, and running jobs stay in front."""
    busy_runs, runs = WaitingRuns(), WaitingRuns()
    async with serving(make_worker(redis_service.client(), busy_runs, max_runs=150)):
        for number in range(150):
            await queue.dispatch(Dispatch(RunId(f"run-{number}"), 1))
        await wait_until(lambda: len(busy_runs.started) == 150, description="all places to be taken")
        async with serving(make_worker(redis_service.client(), runs, max_runs=1)):
            await queue.dispatch(Dispatch(run_id, 1))
            await wait_until(lambda: runs.started, description="the waiting run to start")
