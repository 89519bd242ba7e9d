"""Ringing for a run: idempotent, readable by everybody, executable by nobody, and heard at once."""

import json
import time
from typing import Any, cast

import pytest
from arq.connections import ArqRedis
from arq.constants import job_key_prefix

from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.connection import connect, dedicated_connection, encode_job
from shared.redis.queue import JobLeases, RunQueue
from tests.kit.services.redis_servers import RedisService


@pytest.fixture
def queue(redis: ArqRedis) -> RunQueue:
    return RunQueue(redis)


async def test_a_ring_puts_the_run_into_the_queue_once(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    await queue.dispatch(run_id, 1)
    await queue.dispatch(run_id, 1)
    assert await redis.zcard(keys.QUEUE) == 1
    await queue.dispatch(run_id, 2)
    assert await redis.zcard(keys.QUEUE) == 2


async def test_a_job_is_json_and_holds_nothing_but_the_run_and_its_ring(
    queue: RunQueue, run_id: RunId, redis: ArqRedis
) -> None:
    await queue.dispatch(run_id, 3)
    job = json.loads(cast("bytes", await redis.get(f"{job_key_prefix}{run_id}:3")))
    assert (job["f"], job["a"], job["k"]) == ("execute_run", [run_id, 3], {})


async def test_a_job_may_wait_longer_than_a_day(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    await queue.dispatch(run_id, 1)
    lifetime = cast("int", await cast("Any", redis).ttl(keys.job(keys.job_id(run_id, 1))))
    assert lifetime > 7 * 24 * 3600


async def test_a_ring_wakes_the_workers(queue: RunQueue, run_id: RunId, redis: ArqRedis) -> None:
    connection = dedicated_connection(redis)
    await connection.connect()
    await connection.send_command("SUBSCRIBE", keys.WAKE_CHANNEL)
    await connection.read_response()
    await queue.dispatch(run_id, 1)
    kind, channel, _ = await connection.read_response(disable_decoding=True)
    await connection.disconnect()
    assert (kind, channel) == (b"message", keys.WAKE_CHANNEL.encode())


async def test_it_is_known_what_still_waits_and_what_is_held(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    leases = JobLeases(redis_service.client(), worker="worker-1", lease_s=10)
    await queue.dispatch(run_id, 1)
    asked = [(run_id, 1), (run_id, 2)]
    assert await queue.queued_among([]) == set()
    assert await queue.queued_among(asked) == {(run_id, 1)}
    assert not await queue.held(run_id, 1)
    assert (await leases.claim(5)).job_ids == [keys.job_id(run_id, 1)]
    assert await queue.held(run_id, 1)
    assert await queue.queued_among(asked) == {(run_id, 1)}
    await leases.finish(keys.job_id(run_id, 1))
    assert not await queue.held(run_id, 1)
    assert await queue.queued_among(asked) == set()


async def test_a_ring_for_a_run_at_work_changes_nothing(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    leases = JobLeases(redis_service.client(), worker="worker-1", lease_s=10)
    await queue.dispatch(run_id, 1)
    await leases.claim(5)
    await queue.dispatch(run_id, 1)
    assert (await leases.claim(5)).job_ids == []


async def test_the_oldest_ring_is_claimed_first(queue: RunQueue, redis: ArqRedis) -> None:
    leases = JobLeases(redis, worker="worker-1", lease_s=10)
    for number in range(3):
        await queue.dispatch(RunId(f"run-{number}"), 1)
        await redis.zadd(keys.QUEUE, {keys.job_id(RunId(f"run-{number}"), 1): 1000 - number}, xx=True)
    assert (await leases.claim(2)).job_ids == ["run-2:1", "run-1:1"]
    assert (await leases.claim(2)).job_ids == ["run-0:1"]


async def test_a_ring_from_a_clock_that_runs_ahead_is_found_at_once(
    queue: RunQueue, run_id: RunId, redis: ArqRedis
) -> None:
    leases = JobLeases(redis, worker="worker-1", lease_s=10)
    await queue.dispatch(run_id, 1)
    await redis.zadd(keys.QUEUE, {keys.job_id(run_id, 1): time.time() * 1000 + 30_000}, xx=True)
    assert (await leases.claim(2)).job_ids == [keys.job_id(run_id, 1)]


async def test_a_held_job_stays_held_when_the_queue_was_written_anew(
    queue: RunQueue, run_id: RunId, redis_service: RedisService
) -> None:
    client = redis_service.client()
    holder, other = (JobLeases(client, worker=name, lease_s=10) for name in ("holder", "other"))
    await queue.dispatch(run_id, 1)
    await holder.claim(1)
    await client.delete(keys.QUEUE, keys.job(keys.job_id(run_id, 1)))
    await queue.dispatch(run_id, 1)
    claimed = await other.claim(1)
    assert claimed.job_ids == []
    assert claimed.next_in_s is not None
    assert 8 < claimed.next_in_s <= 10.1


async def test_a_job_survives_its_way_through_json(run_id: RunId) -> None:
    assert json.loads(encode_job({"r": ValueError("boom"), "a": (run_id, 1)})) == {
        "r": "ValueError('boom')",
        "a": [run_id, 1],
    }


async def test_a_redis_that_is_not_there_is_unavailable(run_id: RunId) -> None:
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await RunQueue(redis).dispatch(run_id, 1)
    await redis.aclose(close_connection_pool=True)
