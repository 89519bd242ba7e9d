"""Dispatching a run: idempotent, readable by everybody, executable by nobody, and found at once."""

import json
import time
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from arq.constants import job_key_prefix

from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.connection import connect, dedicated_connection
from shared.redis.queue import IntervalLock, JobLeases, RunQueue, encode_job
from tests.kit.runs.stored_runs import some_run
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import wait_until


@pytest.fixture
def queue(redis: ArqRedis) -> RunQueue:
    return RunQueue(redis)


async def test_a_dispatch_puts_the_run_into_the_queue_once(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    await queue.dispatch(Dispatch(run_id, 1))
    await queue.dispatch(Dispatch(run_id, 1))
    assert await redis.zcard(keys.QUEUE) == 1
    await queue.dispatch(Dispatch(run_id, 2))
    assert await redis.zcard(keys.QUEUE) == 2


async def test_a_job_is_json_and_holds_nothing_but_the_run_and_its_dispatch(
    queue: RunQueue, run_id: RunId, redis: ArqRedis
) -> None:
    await queue.dispatch(Dispatch(run_id, 3))
    job = json.loads(cast("bytes", await redis.get(f"{job_key_prefix}{run_id}:3")))
    assert (job["f"], job["a"], job["k"]) == ("execute_run", [run_id, 3], {})


async def test_a_job_may_wait_longer_than_a_day(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    await queue.dispatch(Dispatch(run_id, 1))
    lifetime = cast("int", await cast("Any", redis).ttl(keys.job(keys.job_id(run_id, 1))))
    assert lifetime > 7 * 24 * 3600


async def test_a_dispatch_wakes_the_workers(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    connection = dedicated_connection(redis)
    await connection.connect()
    await connection.send_command("SUBSCRIBE", keys.WAKE_CHANNEL)
    await connection.read_response()
    await queue.dispatch(Dispatch(run_id, 1))
    kind, channel, _ = await connection.read_response(disable_decoding=True)
    await connection.disconnect()
    assert (kind, channel) == (b"message", keys.WAKE_CHANNEL.encode())


async def test_it_is_known_what_still_waits_and_what_is_leased(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    leases = JobLeases(redis_service.client(), worker="worker-1", lease_s=600)
    await queue.dispatch(Dispatch(run_id, 1))
    asked = [(run_id, 1), (run_id, 2)]
    assert await queue.queued_among([]) == set()
    assert await queue.queued_among(asked) == {(run_id, 1)}
    assert not await queue.is_leased(run_id, 1)
    assert (await leases.claim(5)).job_ids == [keys.job_id(run_id, 1)]
    assert await queue.is_leased(run_id, 1)
    assert await queue.queued_among(asked) == {(run_id, 1)}
    await leases.finish(keys.job_id(run_id, 1))
    assert not await queue.is_leased(run_id, 1)
    assert await queue.queued_among(asked) == set()


async def test_a_dispatch_of_a_run_at_work_changes_nothing(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    leases = JobLeases(redis_service.client(), worker="worker-1", lease_s=600)
    await queue.dispatch(Dispatch(run_id, 1))
    await leases.claim(5)
    await queue.dispatch(Dispatch(run_id, 1))
    assert (await leases.claim(5)).job_ids == []


async def test_runs_of_one_sweep_go_into_the_queue_together(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    other = RunId(f"{run_id}-other")
    await queue.dispatch(Dispatch(run_id, 1))
    await queue.dispatch(Dispatch(run_id, 1), Dispatch(other, 2))
    assert await queue.queued_among([(run_id, 1), (other, 1), (other, 2)]) == {(run_id, 1), (other, 2)}
    leases = JobLeases(redis, worker="worker-1", lease_s=600)
    assert set((await leases.claim(5)).job_ids) == {keys.job_id(run_id, 1), keys.job_id(other, 2)}


@pytest.mark.parametrize("status", RunStatus)
async def test_only_a_run_that_no_worker_had_is_dispatched_when_it_was_stored(
    queue: RunQueue, status: RunStatus
) -> None:
    """A submission that is repeated gives its run again, which may be anywhere by now."""
    run = some_run(status=status, dispatch=3)
    await queue.dispatch_stored(run)
    found = await queue.queued_among([(run.id, 3)])
    assert found == ({(run.id, 3)} if status is RunStatus.CREATED else set())


async def test_a_stored_run_is_left_to_the_sweeper_when_redis_is_away() -> None:
    """That it was stored is what was promised."""
    redis = connect("redis://127.0.0.1:1/0")
    await RunQueue(redis).dispatch_stored(some_run())
    await redis.aclose(close_connection_pool=True)


async def test_the_oldest_dispatch_is_claimed_first(queue: RunQueue, redis: ArqRedis) -> None:
    leases = JobLeases(redis, worker="worker-1", lease_s=600)
    for number in range(3):
        await queue.dispatch(Dispatch(RunId(f"run-{number}"), 1))
        await redis.zadd(keys.QUEUE, {keys.job_id(RunId(f"run-{number}"), 1): 1000 - number}, xx=True)
    assert (await leases.claim(2)).job_ids == ["run-2:1", "run-1:1"]
    assert (await leases.claim(2)).job_ids == ["run-0:1"]


async def test_a_score_from_a_clock_that_runs_ahead_is_found_at_once(
    queue: RunQueue, run_id: RunId, redis: ArqRedis
) -> None:
    leases = JobLeases(redis, worker="worker-1", lease_s=600)
    await queue.dispatch(Dispatch(run_id, 1))
    await redis.zadd(keys.QUEUE, {keys.job_id(run_id, 1): time.time() * 1000 + 30_000}, xx=True)
    assert (await leases.claim(2)).job_ids == [keys.job_id(run_id, 1)]


async def test_a_leased_job_stays_leased_when_the_queue_was_written_anew(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    client = redis_service.client()
    holder, other = (JobLeases(client, worker=name, lease_s=600) for name in ("holder", "other"))
    await queue.dispatch(Dispatch(run_id, 1))
    await holder.claim(1)
    await client.delete(keys.QUEUE, keys.job(keys.job_id(run_id, 1)))
    await queue.dispatch(Dispatch(run_id, 1))
    claimed = await other.claim(1)
    assert claimed.job_ids == []
    assert claimed.next_in_s is not None
    assert 500 < claimed.next_in_s <= 600.1


async def test_a_job_survives_its_way_through_json(run_id: RunId) -> None:
    assert json.loads(encode_job({"r": ValueError("boom"), "a": (run_id, 1)})) == {
        "r": "ValueError('boom')",
        "a": [run_id, 1],
    }


async def test_one_process_of_the_fleet_does_what_is_due_once_per_interval(
    redis_service: RedisService,
) -> None:
    every_s = 600.0
    done: list[str] = []

    async def work() -> None:
        done.append("swept")

    async def elsewhere() -> None:
        done.append("elsewhere")

    async with AsyncExitStack() as processes:
        for _ in range(5):
            lock = IntervalLock(redis_service.client())
            await processes.enter_async_context(lock.repeating(work, every_s=every_s, name="sweep"))
        await wait_until(lambda: done, description="the first process to sweep")
        other = IntervalLock(redis_service.client())
        await processes.enter_async_context(other.repeating(elsewhere, every_s=every_s, name="expire"))
        await wait_until(lambda: len(done) > 1, description="other work to be done beside it")
    assert sorted(done) == ["elsewhere", "swept"]
    lock_ms = await redis_service.client().pttl(keys.interval("sweep"))
    assert 0 < lock_ms < every_s * 1000, "it ends before its owner comes again"


async def test_what_is_due_is_done_by_everybody_while_redis_is_away() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    done: list[str] = []

    async def work() -> None:
        done.append("swept")

    async with IntervalLock(redis).repeating(work, every_s=10, name="sweep"):
        await wait_until(lambda: done, description="the sweep")
    await redis.aclose(close_connection_pool=True)


async def test_a_redis_that_is_not_there_is_unavailable(run_id: RunId) -> None:
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await RunQueue(redis).dispatch(Dispatch(run_id, 1))
    await redis.aclose(close_connection_pool=True)
