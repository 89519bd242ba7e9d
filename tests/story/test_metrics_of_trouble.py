"""What a scrape says of trouble: workers that lose runs, logs that Redis forgets, runs that nobody has, callbacks that
fail. Each is counted by what happened, not by what was meant to be counted."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from arq.connections import ArqRedis

from api.access.authentication import act_for
from api.access.callers import DEFAULT_PROJECT
from shared.concurrency import SystemClock
from shared.domain.ids import AgentId, RunId, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.listing import QuietRun
from tests.kit.clocks import SettableClock
from tests.kit.exposition import Figures, scraped
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.product.callback_receiver import CallbackReceiver
from tests.kit.product.frame_reader import FrameReader, reading
from tests.kit.wait_until import wait_until


async def figures_when(product: Product, is_so: Callable[[Figures], bool], description: str) -> Figures:
    """A scrape of which `is_so` holds."""

    async def look() -> Figures | None:
        figures = await scraped(product.http)
        return figures if is_so(figures) else None

    return await wait_until(look, description=description)


async def begun(product: Product, turn: Turn) -> RunId:
    """A run in token mode whose model has begun to answer."""
    agent = await product.agent()
    product.models.play(turn)
    asked = {"input": "Hello", "stream_tokens": True}
    run_id = RunId((await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=asked)).json()["id"])
    async with reading(product.http, run_id) as reader:
        await reader.reach(2)
    return run_id


async def test_a_run_that_another_worker_has_taken_is_a_lost_lease_and_a_step_that_begins_again(
    product: Product,
) -> None:
    run_id = await begun(product, Turn(text="word " * 1000, pace=0.05))
    act_for(DEFAULT_PROJECT)
    run = await product.services.runs.look_up(run_id)
    product.models.say("It has ended.")

    # What SQL and Redis look like when the worker was lost. Its next words are refused, and tell it so.
    seen = QuietRun(run.id, RunStatus.RUNNING, run.dispatch, run.fence, run.created_at)
    await RunQueue(product.context.redis).dispatch(*await product.services.runs.dispatch_again([seen]))

    await product.ended(run_id)
    figures = await figures_when(product, lambda one: one.of("runs_in_hand") == 0, "both owners to let the run go")
    assert figures.of("leases_lost_total") == 1
    assert figures.of("step_restarts_total") == 1
    assert figures.of("runs_ended_total", status="completed", stop_reason="end_turn") == 1
    assert figures.of("queue_wait_seconds_count") == 1, "the second claim waited for nobody"


async def test_a_log_that_redis_forgot_under_its_run_is_counted(product: Product) -> None:
    run_id = await begun(product, Turn(text="word " * 300, pace=0.01))

    await cast("Any", product.context.redis).flushdb()

    figures = await figures_when(product, lambda one: one.of("log_gaps_total") > 0, "the log to be sent again")
    assert figures.of("log_gaps_total") == 1
    assert (await product.ended(run_id))["status"] == "completed"


async def test_a_run_that_no_worker_was_told_of_is_counted_when_the_sweeper_finds_it(product: Product) -> None:
    act_for(DEFAULT_PROJECT)
    agent = await product.agent()
    product.models.say("Found.")
    stored = Run(
        id=product.context.ids.run(),
        project_id=DEFAULT_PROJECT,
        agent_id=AgentId(agent.id),
        thread_id=ThreadId(agent.id),
        created_at=SystemClock().now() - timedelta(hours=1),
    )
    said = NewMessage(id=product.context.ids.message(), created_at=stored.created_at, body=UserMessage("Hello"))
    await product.services.runs.submit(stored, [said])

    assert (await product.ended(stored.id))["status"] == "completed"
    figures = await figures_when(product, lambda one: one.of("runs_in_hand") == 0, "the run to be let go")
    assert figures.of("sweeper_found_total", reason="not_dispatched") == 1
    assert figures.of("sweeper_found_total", reason="worker_lost") == 0


async def test_each_attempt_at_a_callback_is_counted_by_what_came_of_it(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    clock = SettableClock()
    async with CallbackReceiver() as receiver, running_product(database, redis, models, clock=clock) as product:
        agent = await product.agent(model="builtin/echo")
        receiver.answer(500)
        await product.client.agents.messages.create_async(agent.id, input="Hello", callback_url=receiver.url)
        await figures_when(product, lambda one: one.of("callbacks_total", outcome="failed") == 1, "a failed attempt")
        clock.advance(seconds=3600)
        figures = await figures_when(
            product, lambda one: one.of("callbacks_total", outcome="delivered") == 1, "the callback to be delivered"
        )
    assert figures.of("callbacks_total", outcome="failed") == 1


async def test_a_reader_of_a_log_that_is_gone_is_counted(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    clock = SettableClock()
    async with running_product(database, redis, models, clock=clock) as product:
        agent = await product.agent(model="builtin/echo")
        run_id = (await product.client.agents.messages.create_async(agent.id, input="Hello")).id
        await product.ended(run_id)

    clock.advance(seconds=3 * 24 * 3600)
    async with running_product(database, redis, models, clock=clock, settings={"retain_days": 2}) as product:

        async def pruned() -> bool:
            return (await product.run(run_id))["metadata"].get("pruned_at") is not None

        await wait_until(pruned, description="the run to be pruned")
        await FrameReader(product.http, run_id).read()
        assert (await scraped(product.http)).of("reader_gaps_total") == 1
