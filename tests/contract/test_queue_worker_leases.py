"""A lease holds as long as its worker lives, ends with it, and is never missed for long."""

import asyncio
import time
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from redis import Redis
from structlog.testing import capture_logs

from shared.domain.errors import LeaseLost
from shared.domain.ids import RunId
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.queue import JobLeases, RunQueue
from tests.kit.runs.waiting_runs import WaitingRuns, make_worker, serving
from tests.kit.services.redis_servers import PrivateRedis, RedisService
from tests.kit.services.told_again import told_while_awake
from tests.kit.wait_until import after, wait_until

LEASE_S = 1.2

UNHURRIED_LEASE_S = 3.0
"""Not to be lost before a test wants it to be. That a job is stopped in time is shown in `test_job_leases.py`, where no
machine is busy."""


@pytest.fixture
def queue(redis: ArqRedis) -> RunQueue:
    return RunQueue(redis)


def now() -> float:
    return asyncio.get_running_loop().time()


async def stand_still(seconds: float) -> None:
    """Keeps the event loop busy, as a run with a bug might."""
    end = now() + seconds
    while now() < end:
        pass


async def until_started(runs: WaitingRuns, count: int = 1) -> None:
    await wait_until(lambda: len(runs.started) == count, description=f"{count} runs to start")


async def until_interrupted(runs: WaitingRuns, run_id: RunId) -> None:
    await wait_until(lambda: runs.interrupted == [(run_id, LeaseLost)], description="the run to lose its lease")


def client_that_blocks(service: PrivateRedis) -> Redis:
    """A client that works while this test keeps the event loop busy."""
    return cast("Any", Redis).from_url(service.url)


async def test_a_dead_workers_run_is_picked_up_when_its_lease_ends(
    redis_service: RedisService, queue: RunQueue, run_id: RunId
) -> None:
    await queue.dispatch(Dispatch(run_id, 1))
    dead = JobLeases(redis_service.client(), worker="dead", lease_s=LEASE_S)
    claimed_at = now()
    assert (await dead.claim(1)).job_ids == [keys.job_id(run_id, 1)]
    runs = WaitingRuns()
    async with serving(make_worker(redis_service.client(), runs)):
        await until_started(runs)
    assert now() - claimed_at >= LEASE_S - 0.05


@told_while_awake
async def test_a_lease_is_renewed_for_as_long_as_the_run_lasts(
    redis_service: RedisService, queue: RunQueue, run_id: RunId
) -> None:
    runs, idle_runs = WaitingRuns(), WaitingRuns()
    async with serving(make_worker(redis_service.client(), runs, lease_s=LEASE_S)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        async with serving(make_worker(redis_service.client(), idle_runs, lease_s=LEASE_S)):
            await after(2.5 * LEASE_S)
        assert await queue.is_leased(run_id, 1)
    assert idle_runs.started == []


@told_while_awake
async def test_a_lease_of_another_worker_is_noticed_and_its_job_left_alone(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    runs = WaitingRuns()
    job_id = keys.job_id(run_id, 1)
    async with serving(make_worker(redis, runs, lease_s=LEASE_S)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await redis.set(keys.lease(job_id), "somebody else")
        await until_interrupted(runs, run_id)
    assert await redis.get(keys.lease(job_id)) == b"somebody else"
    assert await queue.queued_among([(run_id, 1)])
    assert await redis.exists(keys.job(job_id))


@told_while_awake
async def test_a_lease_that_redis_forgot_is_taken_again(redis: ArqRedis, queue: RunQueue, run_id: RunId) -> None:
    runs = WaitingRuns()
    job_id = keys.job_id(run_id, 1)
    async with serving(make_worker(redis, runs, lease_s=LEASE_S)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await redis.delete(keys.QUEUE, keys.lease(job_id), keys.job(job_id), keys.attempts(job_id))

        async def leased_again() -> bool:
            return await queue.is_leased(run_id, 1) and await queue.queued_among([(run_id, 1)]) == {(run_id, 1)}

        await wait_until(leased_again, description="the lease to be taken again")
        assert await redis.exists(keys.job(job_id))
        assert runs.interrupted == []
        runs.may_end.set()
        await wait_until(lambda: runs.completed, description="the run to end")

        async def gone() -> bool:
            return not await redis.exists(keys.QUEUE, keys.lease(job_id), keys.job(job_id))

        await wait_until(gone, description="the job to be removed")


@told_while_awake
async def test_a_lease_that_redis_forgot_is_lost_when_the_run_was_claimed_meanwhile(
    redis: ArqRedis, queue: RunQueue, run_id: RunId
) -> None:
    runs = WaitingRuns()
    runs.owned = False
    async with serving(make_worker(redis, runs, lease_s=LEASE_S)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await redis.delete(keys.QUEUE, keys.lease(keys.job_id(run_id, 1)))
        await until_interrupted(runs, run_id)
    assert not await queue.is_leased(run_id, 1)


@told_while_awake
async def test_a_process_that_stood_still_goes_on(redis: ArqRedis, queue: RunQueue, run_id: RunId) -> None:
    runs = WaitingRuns()
    async with serving(make_worker(redis, runs, lease_s=LEASE_S)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await stand_still(2 * LEASE_S)

        async def leased() -> bool:
            return await queue.is_leased(run_id, 1)

        await wait_until(leased, description="the run to be leased")
        assert runs.started == [(run_id, 1)]
        assert runs.interrupted == []


@told_while_awake
async def test_a_busy_run_does_not_cost_the_others_their_leases(private_redis: PrivateRedis, run_id: RunId) -> None:
    runs = WaitingRuns()
    watching = client_that_blocks(private_redis)
    async with serving(make_worker(private_redis.client(), runs, lease_s=LEASE_S)):
        await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        looks = 0
        end = now() + 3 * LEASE_S
        while time.monotonic() < end:  # keeps the event loop busy
            assert watching.exists(keys.lease(keys.job_id(run_id, 1))), "the lease ended under a busy loop"
            looks += 1
        assert looks > 1
        await after()  # the loop goes on, and reads all that the thread has reported meanwhile
        runs.may_end.set()
        await wait_until(lambda: runs.completed or runs.interrupted, description="the run to end")
    assert runs.interrupted == []
    watching.close()


@told_while_awake
async def test_a_process_that_never_moves_again_gives_its_leases_up(private_redis: PrivateRedis, run_id: RunId) -> None:
    runs = WaitingRuns()
    watching = client_that_blocks(private_redis)
    async with serving(make_worker(private_redis.client(), runs, lease_s=0.3)):
        await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        end = time.monotonic() + 60
        while watching.exists(keys.lease(keys.job_id(run_id, 1))):  # keeps the event loop busy
            assert time.monotonic() < end, "the lease was renewed for ever"
        await until_interrupted(runs, run_id)
    watching.close()


@told_while_awake
async def test_a_worker_that_cannot_renew_stops_its_runs(private_redis: PrivateRedis, run_id: RunId) -> None:
    runs = WaitingRuns()
    async with serving(make_worker(private_redis.client(), runs, lease_s=UNHURRIED_LEASE_S)):
        await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await private_redis.kill()
        await until_interrupted(runs, run_id)


@told_while_awake
async def test_a_worker_that_gets_no_answer_stops_its_runs(private_redis: PrivateRedis, run_id: RunId) -> None:
    """A server that hangs is worse than one that is gone: nothing ever fails."""
    runs = WaitingRuns()
    async with serving(make_worker(private_redis.client(), runs, lease_s=UNHURRIED_LEASE_S)):
        await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        async with private_redis.hanging():
            await until_interrupted(runs, run_id)


async def test_a_worker_outlives_the_server_and_works_on_the_next(private_redis: PrivateRedis, run_id: RunId) -> None:
    runs = WaitingRuns()
    runs.may_end.set()
    async with serving(make_worker(private_redis.client(), runs)):
        await private_redis.kill()
        await after(0.3)
        await private_redis.start()
        await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, 1))
        await wait_until(lambda: runs.completed == [run_id], description="the run to end")


async def test_a_worker_wrote_five_lines_a_second_while_redis_was_away(
    private_redis: PrivateRedis, run_id: RunId
) -> None:
    runs = WaitingRuns()
    runs.may_end.set()
    with capture_logs() as logged:

        def count(event: str) -> int:
            return len([line for line in logged if line["event"] == event])

        async with serving(make_worker(private_redis.client(), runs)):
            for outage in (1, 2):
                await private_redis.kill()
                await wait_until(lambda said=outage: count("queue_unreachable") >= said, description="the line")
                tries = count("listener_disconnected") + 3  # one a second, so the queue was asked ten times
                await wait_until(lambda tries=tries: count("listener_disconnected") >= tries, description="tries")
                assert count("queue_unreachable") == outage
                await private_redis.start()
                await RunQueue(private_redis.client()).dispatch(Dispatch(run_id, outage))
                await wait_until(lambda ends=outage: len(runs.completed) == ends, description="the run to end")


@told_while_awake
async def test_a_run_goes_on_while_a_server_that_lost_everything_comes_back(
    private_redis: PrivateRedis, run_id: RunId
) -> None:
    runs = WaitingRuns()
    queue = RunQueue(private_redis.client())
    async with serving(make_worker(private_redis.client(), runs, lease_s=6)):
        await queue.dispatch(Dispatch(run_id, 1))
        await until_started(runs)
        await private_redis.kill()
        await private_redis.start()

        async def leased() -> bool:
            return await queue.is_leased(run_id, 1)

        await wait_until(leased, description="the lease to be taken again")
        assert runs.interrupted == []
        assert runs.started == [(run_id, 1)]
