"""Projects take turns: what one has queued delays another by a bound that does not depend on how much it is."""

import time
from typing import Any, cast

import pytest
from arq.connections import ArqRedis

from shared.domain.ids import ProjectId, RunId
from shared.domain.runs import Dispatch
from shared.redis import keys
from shared.redis.queue import InFlightLimits, JobLeases, RunQueue

PLACES = 100


@pytest.fixture
def queue(redis: ArqRedis) -> RunQueue:
    return RunQueue(redis)


@pytest.fixture
def worker(redis: ArqRedis) -> JobLeases:
    return JobLeases(redis, worker="worker-1", lease_s=600)


async def queue_runs(queue: RunQueue, project: str, count: int, *, priority: int = 0, name: str = "run") -> None:
    ids = [RunId(f"{project}-{name}-{number:05}") for number in range(count)]
    for start in range(0, count, 1000):
        some = ids[start : start + 1000]
        await queue.dispatch(*[Dispatch(run_id, 1, ProjectId(project), priority) for run_id in some])


async def claim(worker: JobLeases, most: int = 1, *, spare: int = 0) -> list[str]:
    claimed = await worker.claim(most, spare=spare)
    return [job_id.partition(":")[0] for job_id in claimed.job_ids]


async def test_ten_thousand_runs_of_one_project_kept_another_waiting(queue: RunQueue, worker: JobLeases) -> None:
    """They were claimed oldest first: a project waited for all that another had queued before it."""
    await queue_runs(queue, "a", 10_000)
    busy = await claim(worker, PLACES)
    assert len(busy) == PLACES
    await queue_runs(queue, "b", 1)
    await worker.finish(f"{busy[0]}:1")
    assert await claim(worker) == ["b-run-00000"], "the first free place is the other project's"


async def test_a_first_run_waits_for_one_run_of_each_other_project_at_most(queue: RunQueue, worker: JobLeases) -> None:
    others = [f"other-{number}" for number in range(7)]
    for project in others:
        await queue_runs(queue, project, 50)
    await queue_runs(queue, "late", 1)
    before: list[str] = []
    while (first := (await claim(worker))[0]) != "late-run-00000":
        before.append(first.rpartition("-run")[0])
        # Runs that end at once: they count as in flight for nobody.
        await worker.finish(f"{first}:1")
    assert sorted(before) == others


async def test_places_are_shared_alike_by_projects_that_have_enough_to_do(queue: RunQueue, worker: JobLeases) -> None:
    for project, count in (("a", 500), ("b", 500), ("c", 10)):
        await queue_runs(queue, project, count)
    claimed = await claim(worker, PLACES)
    shares = {project: sum(run.startswith(project) for run in claimed) for project in "abc"}
    assert shares == {"a": 45, "b": 45, "c": 10}


async def test_one_project_alone_takes_all_places(queue: RunQueue, worker: JobLeases) -> None:
    await queue_runs(queue, "a", 150)
    assert len(await claim(worker, PLACES)) == PLACES
    assert await claim(worker, 0, spare=10) == [], "it has runs in flight"


async def test_runs_that_never_end_held_every_place(queue: RunQueue, worker: JobLeases) -> None:
    """A project waited until a run of another's ended, which may take an hour."""
    await queue_runs(queue, "a", 150)
    await claim(worker, PLACES)
    await queue_runs(queue, "b", 2)
    assert await claim(worker, 0, spare=10) == ["b-run-00000"], (
        "a spare place, for a project that has nothing in flight"
    )
    claimed = await worker.claim(0, spare=9)
    assert claimed.job_ids == []
    assert claimed.next_in_s != 0, "the worker has nothing to look for at once"


async def test_a_project_has_no_more_runs_in_flight_than_its_limit(queue: RunQueue, redis: ArqRedis) -> None:
    limits = InFlightLimits(each=3, of_project={"big": 5})
    worker = JobLeases(redis, worker="worker-1", lease_s=600, in_flight=limits)
    for project in ("a", "big"):
        await queue_runs(queue, project, 10)
    claimed = await claim(worker, PLACES)
    assert [sum(run.startswith(name) for run in claimed) for name in ("a-", "big-")] == [3, 5]
    assert await claim(worker, PLACES) == []
    await worker.finish("a-run-00000:1")
    assert await claim(worker, PLACES) == ["a-run-00003"]


async def test_a_level_of_priority_is_worth_ten_minutes_of_waiting(
    queue: RunQueue, worker: JobLeases, redis: ArqRedis
) -> None:
    await queue_runs(queue, "a", 1, name="old")
    twenty_minutes = 20 * 60_000
    await redis.zincrby(keys.WAITING_PREFIX + "a", -twenty_minutes, "a-old-00000:1")
    await queue_runs(queue, "a", 1, priority=3, name="high")
    await queue_runs(queue, "a", 1, priority=1, name="raised")
    await queue_runs(queue, "a", 1, priority=-1, name="low")
    await queue_runs(queue, "a", 1, name="plain")
    assert await claim(worker, 5) == [f"a-{name}-00000" for name in ("high", "old", "raised", "plain", "low")]


async def test_priorities_of_one_project_mean_nothing_to_another(queue: RunQueue, worker: JobLeases) -> None:
    await queue_runs(queue, "a", 3, priority=10)
    await queue_runs(queue, "b", 1, priority=-10)
    assert (await claim(worker, 2))[1] == "b-run-00000"


async def test_what_a_dead_worker_had_counts_as_in_flight_for_nobody(
    queue: RunQueue, worker: JobLeases, redis: ArqRedis
) -> None:
    await queue_runs(queue, "a", 2)
    await claim(worker, 2)
    for job_id in ("a-run-00000:1", "a-run-00001:1"):
        await redis.delete(keys.lease(job_id))
        await redis.zadd(keys.QUEUE, {job_id: 1}, xx=True)
    assert sorted(await claim(worker, 0, spare=1)) == ["a-run-00000"]


async def test_a_run_that_lost_its_worker_waited_for_all_that_had_not_begun(
    queue: RunQueue, worker: JobLeases, redis: ArqRedis
) -> None:
    """It went to the end of its project's queue, with its readers. Found by chaos at the limit of runs in flight."""
    await queue_runs(queue, "a", 2)
    assert await claim(worker, 2) == ["a-run-00000", "a-run-00001"]
    await queue_runs(queue, "a", 3, priority=10, name="later")
    await worker.release("a-run-00001:1")
    await redis.delete(keys.lease("a-run-00000:1"))
    await redis.zadd(keys.QUEUE, {"a-run-00000:1": 1}, xx=True)
    assert sorted(await claim(worker, 2)) == ["a-run-00000", "a-run-00001"]
    assert await claim(worker, 1) == ["a-later-00000"]


async def test_a_job_whose_description_is_gone_is_found(queue: RunQueue, worker: JobLeases, redis: ArqRedis) -> None:
    """Its lease has ended, and nothing says any more of which project it is."""
    await queue_runs(queue, "a", 3)
    assert await claim(worker) == ["a-run-00000"]
    await redis.delete(keys.job("a-run-00000:1"), keys.lease("a-run-00000:1"))
    await redis.zadd(keys.QUEUE, {"a-run-00000:1": time.time() * 1000}, xx=True)
    assert sorted(await claim(worker, 3)) == ["a-run-00000", "a-run-00001", "a-run-00002"]


async def test_what_a_loss_has_left_is_put_right(queue: RunQueue, worker: JobLeases, redis: ArqRedis) -> None:
    client = cast("Any", redis)
    await queue_runs(queue, "a", 3)
    await client.sadd(keys.IN_FLIGHT_PREFIX + "a", "gone:1")
    await client.zpopmin(keys.WAITING_PREFIX + "a")
    assert sorted(await claim(worker, 5)) == ["a-run-00001", "a-run-00002"]
    await queue_runs(queue, "a", 1, name="then")
    await queue.recount()
    assert await claim(worker, 5) == ["a-run-00000", "a-then-00000"]
    assert await client.scard(keys.IN_FLIGHT_PREFIX + "a") == 4


async def test_a_run_that_is_handed_over_keeps_its_project(queue: RunQueue, worker: JobLeases, redis: ArqRedis) -> None:
    await queue_runs(queue, "a", 1)
    await claim(worker)
    assert await cast("Any", redis).scard(keys.IN_FLIGHT_PREFIX + "a") == 1
    await worker.release("a-run-00000:1")
    assert await cast("Any", redis).scard(keys.IN_FLIGHT_PREFIX + "a") == 0
    assert await claim(worker) == ["a-run-00000"]
