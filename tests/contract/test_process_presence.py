"""Which processes show themselves in Redis, for how long it is believed, and what the queue holds."""

from arq.connections import ArqRedis

from shared.domain.ids import ProjectId, RunId
from shared.domain.operations import ApiState, QueueState, WorkerState
from shared.domain.runs import Dispatch
from shared.domain.tools import SandboxTier
from shared.redis import keys
from shared.redis.process_presence import ProcessPresence
from shared.redis.queue import JobLeases, RunQueue
from tests.kit.runs.definitions import NOW
from tests.kit.wait_until import wait_until


def worker(name: str, *, runs: int = 0) -> WorkerState:
    return WorkerState(
        name=name, version="1", started_at=NOW, seen_at=NOW, runs=runs, max_runs=9, sandbox=SandboxTier.TWO
    )


def api(name: str, *, readers: int = 0) -> ApiState:
    return ApiState(name=name, version="1", started_at=NOW, seen_at=NOW, readers=readers)


async def test_processes_are_shown_by_kind_as_they_were_last(redis: ArqRedis) -> None:
    presence = ProcessPresence(redis)
    assert (await presence.workers(), await presence.api_processes()) == ([], [])
    for state in (worker("b"), worker("a"), api("c"), worker("b", runs=3)):
        await presence.show(state, for_s=600)
    assert await presence.workers() == [worker("a"), worker("b", runs=3)]
    assert await presence.api_processes() == [api("c")]
    assert 500_000 < await redis.pttl(keys.process("worker", "a")) <= 600_000
    assert 500_000 < await redis.pttl(keys.processes("worker")) <= 600_000


async def test_a_process_that_shows_itself_no_more_is_forgotten(redis: ArqRedis) -> None:
    presence = ProcessPresence(redis)
    await presence.show(worker("short"), for_s=0.01)

    async def is_forgotten() -> bool:
        await presence.show(worker("long"), for_s=600)
        return await redis.zcard(keys.processes("worker")) == 1

    await wait_until(is_forgotten, description="the dead worker to leave the list")
    assert await presence.workers() == [worker("long")]


async def test_a_process_that_ends_is_gone_at_once(redis: ArqRedis) -> None:
    presence = ProcessPresence(redis)

    async def is_shown() -> bool:
        return await presence.api_processes() == [api("a", readers=2)]

    async with presence.showing(lambda: api("a", readers=2)):
        await wait_until(is_shown, description="the process to be shown")
    assert await presence.api_processes() == []
    assert not await redis.exists(keys.processes("api"), keys.process("api", "a"))


async def test_what_a_newer_release_says_is_passed_over(redis: ArqRedis) -> None:
    presence = ProcessPresence(redis)
    for name in ("a", "b"):
        await presence.show(worker(name))
    await redis.set(keys.process("worker", "a"), b'{"name":{"text":"a"}}')
    assert await presence.workers() == [worker("b")]


async def test_the_queue_says_what_waits_and_what_is_at_work(redis: ArqRedis) -> None:
    queue = RunQueue(redis)
    assert await queue.state() == QueueState(waiting=0, oldest_wait_s=None, in_flight=0)
    for project, priority in (("a", 0), ("a", 10), ("b", 0)):
        await queue.dispatch(Dispatch(RunId(f"{project}-{priority}"), 1, ProjectId(project), priority))
    seen = await queue.state()
    assert (seen.waiting, seen.in_flight) == (3, 0)
    assert seen.oldest_wait_s is not None
    assert 0 <= seen.oldest_wait_s < 60

    leases = JobLeases(redis, worker="worker-1", lease_s=600)
    claimed = await leases.claim(2)
    seen = await queue.state()
    assert (seen.waiting, seen.in_flight) == (1, 2)
    await leases.finish(claimed.job_ids[0])
    assert (await queue.state()).in_flight == 1


async def test_what_lost_its_lease_waits_again(redis: ArqRedis) -> None:
    queue = RunQueue(redis)
    await queue.dispatch(Dispatch(RunId("a"), 1, ProjectId("a"), 0))
    await JobLeases(redis, worker="worker-1", lease_s=0.01).claim(1)

    async def waits() -> bool:
        return (await queue.state()).waiting == 1

    await wait_until(waits, description="the lease to end")
    seen = await queue.state()
    assert seen.in_flight == 0
    assert seen.oldest_wait_s is not None
    assert 0 <= seen.oldest_wait_s < 60
