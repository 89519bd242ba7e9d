"""What one worker may do to a job, and what it may not do to another worker's."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from arq.connections import ArqRedis
from worker.queue.lease_keeper import LeaseKeeper

from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.queue import JobLeases, Renewal, RunQueue, WorkerPresence
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import after, wait_until


def keeper_of(
    worker: str, *, lease_s: float, on_lost: Callable[[str], None], still_ours: Callable[[str], Awaitable[bool]]
) -> LeaseKeeper:
    return LeaseKeeper(worker=worker, lease_s=lease_s, now=time.monotonic, on_lost=on_lost, still_ours=still_ours)


@pytest.fixture
def mine(redis_service: RedisService) -> JobLeases:
    return JobLeases(redis_service.client(), worker="mine", lease_s=10)


@pytest.fixture
def theirs(redis_service: RedisService) -> JobLeases:
    return JobLeases(redis_service.client(), worker="theirs", lease_s=10)


@pytest.fixture
async def job_id(redis: ArqRedis, run_id: RunId) -> str:
    """A job that waits."""
    await RunQueue(redis).dispatch(run_id, 1)
    return keys.job_id(run_id, 1)


async def holder(redis: ArqRedis, job_id: str) -> bytes | None:
    return await redis.get(keys.lease(job_id))


async def test_a_claimed_job_is_out_of_sight_until_its_lease_ends(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    assert (await mine.claim(5)).job_ids == [job_id]
    score_before = await redis.zscore(keys.QUEUE, job_id)
    claimed = await theirs.claim(5)
    assert claimed.job_ids == []
    assert claimed.next_in_s is not None
    assert 9 < claimed.next_in_s <= 10
    assert await redis.zscore(keys.QUEUE, job_id) == score_before, "the claim did not even look at it"


async def test_an_empty_queue_says_so(mine: JobLeases) -> None:
    claimed = await mine.claim(5)
    assert claimed.job_ids == []
    assert claimed.next_in_s is None


async def test_only_the_holder_finishes_a_job(mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis) -> None:
    await mine.claim(1)
    assert not await theirs.finish(job_id)
    assert await holder(redis, job_id) == b"mine"
    assert await redis.exists(keys.job(job_id))
    assert await mine.finish(job_id)
    assert not await redis.exists(keys.QUEUE, keys.lease(job_id), keys.job(job_id))


async def test_only_the_holder_gives_a_job_back(mine: JobLeases, theirs: JobLeases, job_id: str) -> None:
    await mine.claim(1)
    assert not await theirs.release(job_id)
    assert (await theirs.claim(1)).job_ids == []
    assert await mine.release(job_id)
    assert (await theirs.claim(1)).job_ids == [job_id]
    assert not await mine.release(job_id)


async def test_a_renewal_tells_what_became_of_each_lease(mine: JobLeases, theirs: JobLeases, redis: ArqRedis) -> None:
    queue = RunQueue(redis)
    for name in ("run-kept", "run-taken", "run-forgotten"):
        await queue.dispatch(RunId(name), 1)
    await mine.claim(3)
    await redis.delete(keys.lease("run-forgotten:1"))
    await mine.release("run-taken:1")
    await redis.pexpire(keys.lease("run-kept:1"), 500)
    await theirs.claim(1)
    assert await mine.renew(["run-kept:1", "run-taken:1", "run-forgotten:1"]) == {
        "run-kept:1": Renewal.RENEWED,
        "run-taken:1": Renewal.TAKEN,
        "run-forgotten:1": Renewal.FORGOTTEN,
    }
    assert await redis.pttl(keys.lease("run-kept:1")) > 9000


async def test_an_old_holder_does_not_lengthen_the_lease_of_the_next_one(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    await mine.claim(1)
    await mine.release(job_id)
    await theirs.claim(1)
    await redis.pexpire(keys.lease(job_id), 500)
    score_before = await redis.zscore(keys.QUEUE, job_id)
    assert await mine.renew([job_id]) == {job_id: Renewal.TAKEN}
    assert await redis.pttl(keys.lease(job_id)) <= 500
    assert await redis.zscore(keys.QUEUE, job_id) == score_before


async def test_a_forgotten_job_is_taken_again_only_when_nobody_has_it(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    await mine.claim(1)
    await redis.delete(keys.QUEUE, keys.lease(job_id), keys.job(job_id))
    assert await mine.retake(job_id)
    assert await mine.retake(job_id)
    assert not await theirs.retake(job_id)
    assert await holder(redis, job_id) == b"mine"
    assert await mine.release(job_id)
    assert (await theirs.claim(1)).job_ids == [job_id]


@pytest.mark.parametrize("when", ["while SQL is asked", "while Redis is asked"])
async def test_a_job_that_ends_while_its_lease_is_taken_again_is_given_back(
    when: str, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    """The race between a hand-over and a renewal that found the lease gone."""
    lost: list[str] = []

    async def ends_meanwhile(job_id: str) -> bool:
        if when == "while SQL is asked":
            keeper.ending(job_id)
        else:
            asyncio.get_running_loop().call_soon(keeper.ending, job_id)
        return True

    leases = JobLeases(redis, worker="mine", lease_s=0.6)
    keeper = keeper_of("mine", lease_s=0.6, on_lost=lost.append, still_ours=ends_meanwhile)
    await leases.claim(1)
    keeper.hold(job_id, asked_at=time.monotonic())
    await leases.release(job_id)
    keeping = asyncio.ensure_future(keeper.keep(leases, WorkerPresence(redis)))
    await after(0.5)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert (await theirs.claim(1)).job_ids == [job_id]
    assert lost == []


async def test_a_lease_is_lost_in_time_when_sql_cannot_say_whose_the_run_is(
    mine: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    lost: list[str] = []

    async def does_not_answer(job_id: str) -> bool:
        raise Unavailable("SQL does not answer")

    keeper = keeper_of("mine", lease_s=6.0, on_lost=lost.append, still_ours=does_not_answer)
    await mine.claim(1)
    held_since = time.monotonic()
    keeper.hold(job_id, asked_at=held_since)
    await redis.delete(keys.lease(job_id))
    keeping = asyncio.ensure_future(keeper.keep(mine, WorkerPresence(redis)))
    await wait_until(lambda: lost == [job_id], description="the job to be stopped")
    assert time.monotonic() - held_since < 6.0
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_a_lease_that_was_taken_again_is_given_up_when_the_run_was_rung_meanwhile(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    """The sweeper had looked before the lease was back, and another worker may claim the run by its new dispatch."""
    lost: list[str] = []
    answers = [True, False]

    async def rung_meanwhile(job_id: str) -> bool:
        return answers.pop(0)

    keeper = keeper_of("mine", lease_s=0.6, on_lost=lost.append, still_ours=rung_meanwhile)
    await mine.claim(1)
    keeper.hold(job_id, asked_at=time.monotonic())
    await redis.delete(keys.lease(job_id))
    keeping = asyncio.ensure_future(keeper.keep(mine, WorkerPresence(redis)))
    await wait_until(lambda: lost == [job_id], description="the job to be stopped")
    keeping.cancel()
    await asyncio.wait([keeping])
    assert answers == []
    assert (await theirs.claim(1)).job_ids == [job_id]


async def test_a_lease_counts_only_when_sql_has_said_so_after_it_was_taken_again(
    mine: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    """It was renewed from then on as if nothing had happened."""
    lost: list[str] = []
    asked: list[str] = []

    async def answers_once(job_id: str) -> bool:
        asked.append(job_id)
        if len(asked) % 2 == 0:
            raise Unavailable("SQL does not answer")
        return True

    keeper = keeper_of("mine", lease_s=3.0, on_lost=lost.append, still_ours=answers_once)
    await mine.claim(1)
    held_since = time.monotonic()
    keeper.hold(job_id, asked_at=held_since)
    await redis.delete(keys.lease(job_id))
    keeping = asyncio.ensure_future(keeper.keep(mine, WorkerPresence(redis)))
    await wait_until(lambda: lost == [job_id], description="the job to be stopped")
    assert time.monotonic() - held_since < 3.0
    keeping.cancel()
    await asyncio.wait([keeping])
