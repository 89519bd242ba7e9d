"""A clock that jumps by an hour, ahead or back, in one process of several: no run gets into two hands, none is lost.

Who holds a run is timed by Redis, and how long something takes by clocks that never jump; the wall clock says when.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shared.concurrency import Clock, SystemClock
from shared.domain.ids import AgentId, ProjectId, RunId, ThreadId
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.run_store import RunStore
from tests.faults.conftest import USUAL_LEASE_S
from tests.kit.clocks import SettableClock
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.product.processes import Processes
from tests.kit.product.waiting_calls import waiting, waiting_calls
from tests.kit.runs.stored_runs import said, some_run
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import LONG_LEASE_S, wait_until
from worker.main import working

JUMPS = pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "back"])
SETTINGS = {"lease_s": LONG_LEASE_S, "sweep_s": 0.05, "max_runs": 20}


@pytest.fixture
def clock() -> SettableClock:
    """The clock that jumps."""
    return SettableClock()


@pytest.fixture
async def product(
    database: Database, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock
) -> AsyncIterator[Product]:
    """The API, by the clock that jumps. Nobody works until the test starts a worker."""
    async with running_product(
        database, private_redis.client(), models, clock=clock, settings=SETTINGS, with_worker=False
    ) as running:
        yield running


@asynccontextmanager
async def worker_by(
    clock: Clock, product: Product, redis: PrivateRedis, *, lease_s: float = LONG_LEASE_S
) -> AsyncGenerator[None]:
    """A worker whose time is this clock's."""
    settings = product.context.settings.model_copy(update={"lease_s": lease_s})
    async with working(replace(product.context, settings=settings, clock=clock, redis=redis.client())):
        yield


async def submit(product: Product, agent_id: str | None = None) -> str:
    agent_id = agent_id or (await product.agent()).id
    answer = await product.http.post(
        f"/v1/agents/{agent_id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    assert answer.status_code == 200
    return answer.json()["id"]


async def orphaned_run(product: Product, *, created_at: datetime) -> RunId:
    """A run that was stored, and whose dispatch was lost."""
    agent = await product.agent()
    run = some_run(
        project_id=ProjectId("default"),
        agent_id=AgentId(agent.id),
        thread_id=ThreadId(agent.id),
        created_at=created_at,
    )
    await RunStore(product.context.database).submit(run, [said("hi")])
    return run.id


async def swept(product: Product) -> None:
    """Returns when a sweeper has made a whole round: it has found what only sweepers find."""
    run_id = await orphaned_run(product, created_at=datetime.now(UTC) - timedelta(days=1))
    await product.ended(run_id)


async def fence_of(product: Product, run_id: str) -> int:
    return (await RunStore(product.context.database).look_up(RunId(run_id))).fence


async def assert_one_owner(product: Product, run_id: str) -> None:
    """One worker had it, and its stream is whole."""
    assert (await product.ended(run_id))["status"] == "completed"
    assert await fence_of(product, run_id) == 1
    whole = await read_whole(product.http, run_id)
    whole.assert_complete()
    assert not whole.notes("step_restarted")


@JUMPS
async def test_a_run_stays_with_its_worker_whose_clock_jumps(
    product: Product, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock, hours: int
) -> None:
    models.play(Turn(text="word " * 300, pace=0.01))
    async with worker_by(clock, product, private_redis):
        run_id = await submit(product)
        async with reading(product.http, run_id) as reader:
            await reader.reach(20)
            clock.advance(hours=hours)
            async with worker_by(SystemClock(), product, private_redis):
                await swept(product)
                await reader.end()
        await assert_one_owner(product, run_id)
    assert models.requests[0].finished


@JUMPS
async def test_a_worker_whose_clock_jumps_leaves_the_runs_of_others_alone(
    product: Product, private_redis: PrivateRedis, models: ModelServer, hours: int
) -> None:
    models.play(Turn(text="word " * 300, pace=0.01))
    jumping = SettableClock()
    async with worker_by(SystemClock(), product, private_redis):
        run_id = await submit(product)
        async with reading(product.http, run_id) as reader:
            await reader.reach(20)
            async with worker_by(jumping, product, private_redis):
                jumping.advance(hours=hours)
                await swept(product)
                await reader.end()
        await assert_one_owner(product, run_id)


@JUMPS
async def test_runs_that_are_submitted_around_a_jump_are_each_executed_once(
    product: Product, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock, hours: int
) -> None:
    """A sweeper that is an hour ahead takes each of them for forgotten, also between its store and its dispatch."""
    models.answer_with(lambda _: Turn(text="Here I am."))
    jumping = SettableClock()
    async with worker_by(jumping, product, private_redis), worker_by(SystemClock(), product, private_redis):
        run_ids: list[str] = []
        for number in range(20):
            if number == 5:
                jumping.advance(hours=hours)
            if number == 10:
                clock.advance(hours=hours)
            run_ids.append(await submit(product))
        for run_id in run_ids:
            await assert_one_owner(product, run_id)
    assert len(models.requests) == len(run_ids)


@JUMPS
async def test_a_run_of_a_dead_worker_is_taken_up_by_one_whose_clock_has_jumped(
    product: Product,
    processes: Processes,
    private_redis: PrivateRedis,
    models: ModelServer,
    clock: SettableClock,
    hours: int,
) -> None:
    """Redis says when a lease is over."""
    models.say("one two three four", silent_after=3)
    models.say("All of it.")
    dying = await processes.worker()
    run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await wait_until(lambda: len(reader.of_type("assistant_message")) == 3, description="the first words")
        await dying.kill()
        await end_leases(private_redis.client())
        clock.advance(hours=hours)
        async with worker_by(clock, product, private_redis):
            await reader.end()

    reader.assert_complete()
    assert (await product.ended(run_id))["status"] == "completed"
    assert len(models.requests) == 2


@JUMPS
async def test_a_run_whose_dispatch_was_lost_before_the_clock_jumped_is_found(
    product: Product, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock, hours: int
) -> None:
    """After a jump back, what happened just before it is in the future."""
    models.say("Here I am.")
    run_id = await orphaned_run(product, created_at=clock.now() - timedelta(seconds=10))
    clock.advance(hours=hours)
    async with worker_by(clock, product, private_redis):
        assert (await product.ended(run_id))["status"] == "completed"
    assert len(models.requests) == 1


@JUMPS
async def test_a_run_that_redis_forgot_with_its_dead_worker_is_found_by_a_clock_that_jumped(
    product: Product,
    processes: Processes,
    private_redis: PrivateRedis,
    models: ModelServer,
    clock: SettableClock,
    hours: int,
) -> None:
    models.say("one two three four", silent_after=3)
    models.answer_with(lambda _: Turn(text="All of it."))
    dying = await processes.worker()
    run_id = await submit(product)
    await wait_until(lambda: models.requests and models.requests[0].pieces_sent == 3, description="the first words")
    await dying.kill()
    await private_redis.kill()
    await private_redis.start()
    assert not await RunQueue(private_redis.client()).is_leased(RunId(run_id), 0)

    clock.advance(hours=hours)

    # A sweeper gives the dead worker half a lease to take its run again, so this one has a usual lease.
    async with worker_by(clock, product, private_redis, lease_s=USUAL_LEASE_S):
        assert (await product.ended(run_id))["status"] == "completed"
    assert len(models.requests) >= 2


@JUMPS
async def test_a_cancel_stops_a_run_across_a_jump(
    product: Product, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock, hours: int
) -> None:
    models.say("one two three", silent_after=2)
    async with worker_by(SystemClock(), product, private_redis):
        run_id = await submit(product)
        async with reading(product.http, run_id) as reader:
            await wait_until(lambda: reader.of_type("assistant_message"), description="the first words")
            clock.advance(hours=hours)
            receipt = (await product.http.post(f"/v1/runs/{run_id}/cancel")).json()
            await reader.end()

    assert receipt["status"] == "cancelled"
    reader.assert_complete()
    await wait_until(lambda: models.requests[0].client_left, description="the model's connection to be closed")


@JUMPS
async def test_a_cancel_of_a_dead_workers_run_is_settled_across_a_jump(
    product: Product, processes: Processes, models: ModelServer, clock: SettableClock, hours: int
) -> None:
    models.say("one two three", silent_after=2)
    dying = await processes.worker()
    run_id = await submit(product)
    async with reading(product.http, run_id) as reader:
        await wait_until(lambda: reader.of_type("assistant_message"), description="the first words")
        await dying.kill()
        await end_leases(product.context.redis)
        clock.advance(hours=hours)
        receipt = (await product.http.post(f"/v1/runs/{run_id}/cancel")).json()
        await reader.end()

    assert receipt["status"] == "cancelled"
    reader.assert_complete()


async def test_a_call_does_not_expire_because_the_clock_went_back_and_forth(
    product: Product, private_redis: PrivateRedis, models: ModelServer, clock: SettableClock
) -> None:
    async with worker_by(clock, product, private_redis):
        asked = await waiting_calls(product, "moon", approval_expires_s=3600, on_approval_expiry="deny")
        for hours in (-1, -1, 1, 1):
            clock.advance(hours=hours)
            await a_round_of_expiry(product, clock)
            assert await waiting(product, agent_id=asked.agent_id) == asked.approvals

        models.say("It flies.")
        status, decided = await asked.decide()
        assert (status, decided["status"]) == (200, "approved")
        (continuation,) = await wait_until(asked.continuations, description="the continuation")
        await product.ended(continuation["id"])
        assert await asked.results() == ["moon"]


async def a_round_of_expiry(product: Product, clock: SettableClock) -> None:
    """Returns when the expiry has looked: a call whose time is over has been denied."""
    over = await waiting_calls(product, "mars", approval_expires_s=60, on_approval_expiry="deny")
    clock.advance(minutes=1)
    await wait_until(over.results, description="a call to expire")
