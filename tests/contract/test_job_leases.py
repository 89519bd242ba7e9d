"""What one worker may do to a job, and what it may not do to another worker's."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.errors import Unavailable
from shared.domain.ids import RunId
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.embedded import connect_embedded
from shared.redis.queue import JobLeases, Renewal, RunQueue, WorkerPresence
from tests.kit.clocks import FrozenClock, PlayedLoop, embedded_redis_follows
from tests.kit.services.redis_servers import RedisService
from tests.kit.wait_until import LONG_LEASE_S, wait_until
from worker.queue.leases import LeaseRenewer


def renewer_of(
    redis: ArqRedis,
    *,
    lease_s: float,
    lost: list[str],
    still_ours: Callable[[str], Awaitable[bool]],
    now: Callable[[], float] = time.monotonic,
) -> LeaseRenewer:
    """Renews for the worker "mine", on this event loop. What it loses is noted in `lost`."""
    return LeaseRenewer(
        redis,
        worker="mine",
        lease_s=lease_s,
        is_embedded=True,
        now=now,
        on_lost=lost.append,
        still_ours=still_ours,
    )


@pytest.fixture
def mine(redis_service: RedisService) -> JobLeases:
    return JobLeases(redis_service.client(), worker="mine", lease_s=600)


@pytest.fixture
def theirs(redis_service: RedisService) -> JobLeases:
    return JobLeases(redis_service.client(), worker="theirs", lease_s=600)


@pytest.fixture
async def job_id(redis: ArqRedis, run_id: RunId) -> str:
    """A job that waits."""
    await RunQueue(redis).dispatch(Dispatch(run_id, 1))
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
    assert 500 < claimed.next_in_s <= 600
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
        await queue.dispatch(Dispatch(RunId(name), 1))
    await mine.claim(3)
    await redis.delete(keys.lease("run-forgotten:1"))
    await mine.release("run-taken:1")
    await redis.pexpire(keys.lease("run-kept:1"), 100_000)
    await theirs.claim(1)
    assert await mine.renew(["run-kept:1", "run-taken:1", "run-forgotten:1"]) == {
        "run-kept:1": Renewal.RENEWED,
        "run-taken:1": Renewal.TAKEN,
        "run-forgotten:1": Renewal.FORGOTTEN,
    }
    assert await redis.pttl(keys.lease("run-kept:1")) > 500_000


async def test_an_old_holder_does_not_lengthen_the_lease_of_the_next_one(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    await mine.claim(1)
    await mine.release(job_id)
    await theirs.claim(1)
    await redis.pexpire(keys.lease(job_id), 100_000)
    score_before = await redis.zscore(keys.QUEUE, job_id)
    assert await mine.renew([job_id]) == {job_id: Renewal.TAKEN}
    assert await redis.pttl(keys.lease(job_id)) <= 100_000
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


async def test_a_living_worker_is_seen_until_a_lease_after_its_death(redis: ArqRedis) -> None:
    presence = WorkerPresence(redis)
    assert not await presence.is_any_alive()
    await presence.show("mine", for_s=600)
    assert await presence.is_any_alive()
    assert 500_000 < await redis.pttl(keys.WORKER_ALIVE) <= 600_000


async def test_a_worker_that_renews_shows_that_it_lives(redis: ArqRedis) -> None:
    async def never_asked(job_id: str) -> bool:
        raise AssertionError(job_id)

    async with renewer_of(redis, lease_s=6.0, lost=[], still_ours=never_asked).renewing():
        await wait_until(WorkerPresence(redis).is_any_alive, description="the worker to be seen")


@pytest.mark.parametrize("when", ["while SQL is asked", "when SQL is asked again"])
async def test_a_job_that_ends_while_its_lease_is_taken_again_is_released(
    when: str, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    """The race between a hand-over and a renewal that found the lease gone."""
    lost: list[str] = []
    asked: list[bytes | None] = []

    async def ends_meanwhile(job_id: str) -> bool:
        asked.append(await holder(redis, job_id))
        if len(asked) == (1 if when == "while SQL is asked" else 2):
            assert renewer.release(job_id)
        return True

    leases = JobLeases(redis, worker="mine", lease_s=LONG_LEASE_S)
    renewer = renewer_of(redis, lease_s=LONG_LEASE_S, lost=lost, still_ours=ends_meanwhile)
    await leases.claim(1)
    renewer.hold(job_id, asked_at=time.monotonic())
    await leases.release(job_id)

    async def released() -> bool:
        return asked != [] and renewer.leases.to_renew() == {} and await holder(redis, job_id) is None

    async with renewer.renewing():
        await wait_until(released, description="the job to be released")
    assert asked == ([None] if when == "while SQL is asked" else [None, b"mine"])
    assert (await theirs.claim(1)).job_ids == [job_id]
    assert lost == []


def stopped_after_ms(still_ours: Callable[[str], Awaitable[bool]], *, lease_s: float) -> int:
    """Milliseconds of a played clock until a job is stopped whose lease Redis has forgotten."""
    clock = FrozenClock()

    async def played() -> int:
        loop = cast("PlayedLoop", asyncio.get_running_loop())
        lost: list[str] = []
        redis = connect_embedded()
        renewer = renewer_of(redis, lease_s=lease_s, lost=lost, still_ours=still_ours, now=clock.monotonic)
        await RunQueue(redis).dispatch(Dispatch(RunId("run-1"), 1))
        [job_id] = (await JobLeases(redis, worker="mine", lease_s=lease_s).claim(1)).job_ids
        began = clock.ms
        renewer.hold(job_id, asked_at=clock.monotonic())
        await redis.delete(keys.lease(job_id))
        async with renewer.renewing():
            while not lost:
                clock.advance(10)
                await loop.until_quiet()
            assert lost == [job_id]
            return clock.ms - began

    with embedded_redis_follows(clock), asyncio.Runner(loop_factory=lambda: PlayedLoop(clock)) as runner:
        return runner.run(played())


def test_a_lease_is_lost_in_time_when_sql_cannot_say_whose_the_run_is() -> None:
    async def does_not_answer(job_id: str) -> bool:
        raise Unavailable("SQL does not answer")

    assert 2_500 <= stopped_after_ms(does_not_answer, lease_s=3.0) < 3_000, "up to a sixth of a lease before its end"


async def test_a_lease_that_was_taken_again_is_given_up_when_the_run_was_dispatched_meanwhile(
    mine: JobLeases, theirs: JobLeases, job_id: str, redis: ArqRedis
) -> None:
    """The sweeper had looked before the lease was back, and another worker may claim the run by its new dispatch."""
    lost: list[str] = []
    answers = [True, False]

    async def dispatched_meanwhile(job_id: str) -> bool:
        return answers.pop(0)

    renewer = renewer_of(redis, lease_s=LONG_LEASE_S, lost=lost, still_ours=dispatched_meanwhile)
    await mine.claim(1)
    renewer.hold(job_id, asked_at=time.monotonic())
    await redis.delete(keys.lease(job_id))

    async def claimed_by_them() -> list[str]:
        return (await theirs.claim(1)).job_ids

    async with renewer.renewing():
        await wait_until(lambda: lost == [job_id], description="the job to be stopped")
        assert answers == []
        await wait_until(claimed_by_them, description="the job to be claimed by somebody else")


def test_a_lease_counts_only_when_sql_has_said_so_after_it_was_taken_again() -> None:
    """It was renewed from then on as if nothing had happened."""
    asked: list[str] = []

    async def answers_once(job_id: str) -> bool:
        asked.append(job_id)
        if len(asked) % 2 == 0:
            raise Unavailable("SQL does not answer")
        return True

    assert 2_500 <= stopped_after_ms(answers_once, lease_s=3.0) < 3_000, "up to a sixth of a lease before its end"
    assert len(asked) >= 2


class SilentRedis(ArqRedis):
    """A server inside this process that does not answer once `is_silent` is set."""

    is_silent = False

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.is_silent:
            await asyncio.Event().wait()
        return await cast("Any", super()).execute_command(*args, **options)


def test_a_job_that_began_just_after_a_renewal_was_stopped_after_its_lease() -> None:
    """Redis did not answer from then on. The thread reported when the renewal before that job had to be repeated, found
    the job young enough, and waited another sixth of a lease for an answer."""
    clock = FrozenClock()

    async def ours(_: str) -> bool:
        return True

    async def stopped_after_ms() -> int:
        loop = cast("PlayedLoop", asyncio.get_running_loop())
        lost: list[str] = []
        redis = SilentRedis(cast("Any", connect_embedded()).connection_pool)
        renewer = renewer_of(redis, lease_s=9.0, lost=lost, still_ours=ours, now=clock.monotonic)
        async with renewer.renewing():
            await loop.until_quiet()  # the first renewal, of no job
            clock.advance(20)
            began = clock.ms
            renewer.hold("run-1:1", asked_at=clock.monotonic())
            redis.is_silent = True
            while not lost:
                clock.advance(10)
                await loop.until_quiet()
            return clock.ms - began

    with embedded_redis_follows(clock), asyncio.Runner(loop_factory=lambda: PlayedLoop(clock)) as runner:
        assert 7_500 <= runner.run(stopped_after_ms()) <= 7_600, "a sixth of a lease before its end"
