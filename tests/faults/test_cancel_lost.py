"""A cancel that nobody heard, nobody announced, or whose run's worker is dead: the run stops all the same."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from shared.concurrency import background
from shared.domain.ids import RunId
from shared.domain.runs import CancelRequest
from shared.sql.runs.run_store import RunStore
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.product.processes import Processes
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until

SILENT = Turn(text="one two three", silent_after=2)
WAIT_FOR_PERSON = 'def launch() -> str:\n    """Launches."""\n    return "gone"\n'


async def submit(product: Product, agent_id: str) -> str:
    answer = await product.http.post(
        f"/v1/agents/{agent_id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    return answer.json()["id"]


async def record_cancel(product: Product, run_id: str) -> None:
    """What an API process does first, and all that is left of it when it dies then."""
    request = CancelRequest(requested_at=datetime.now(UTC), actor="api", reason="enough")
    runs = RunStore(product.context.database)
    await runs.request_cancel(await runs.look_up(RunId(run_id)), request)


@asynccontextmanager
async def nobody_hears(redis: PrivateRedis) -> AsyncGenerator[None]:
    """For the block, pub/sub connections are cut as soon as they are there."""

    async def cut() -> None:
        await redis.cut_subscribers()

    async def keep_cutting() -> None:
        await wait_until(cut, description="the end of the block", timeout=3600, every=0.005)

    await redis.cut_subscribers()
    async with background(keep_cutting(), name="cut subscribers"):
        yield


async def test_a_cancel_whose_announcement_nobody_heard_is_found_by_its_flag(
    working_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    models.answer_with(lambda _: SILENT)
    run_id = await submit(working_product, (await working_product.agent()).id)
    async with reading(working_product.http, run_id) as reader:
        await wait_until(lambda: reader.of_type("assistant_message"), description="the first words")
        async with nobody_hears(private_redis):
            receipt = (await working_product.http.post(f"/v1/runs/{run_id}/cancel")).json()
        await reader.end()

    assert receipt["status"] == "cancelled"
    await wait_until(lambda: all(one.client_left for one in models.requests), description="the worker to hang up")
    reader.assert_complete()


async def test_a_cancel_that_was_recorded_and_never_announced_reaches_the_running_run(
    working_product: Product, models: ModelServer
) -> None:
    models.answer_with(lambda _: SILENT)
    run_id = await submit(working_product, (await working_product.agent()).id)
    async with reading(working_product.http, run_id) as reader:
        await wait_until(lambda: reader.of_type("assistant_message"), description="the first words")
        await record_cancel(working_product, run_id)
        await reader.end()

    run = await working_product.ended(run_id)
    assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")
    await wait_until(lambda: all(one.client_left for one in models.requests), description="the worker to hang up")


async def test_a_cancel_that_was_recorded_and_never_announced_reaches_a_run_that_waits_for_a_person(
    working_product: Product, models: ModelServer
) -> None:
    tool = await working_product.tool(WAIT_FOR_PERSON, default_requires_approval=True)
    agent = await working_product.agent(tools=[tool])
    models.call("launch")
    run_id = await submit(working_product, agent.id)
    (await read_whole(working_product.http, run_id)).assert_complete()

    await record_cancel(working_product, run_id)

    async def is_cancelled() -> bool:
        return (await working_product.run(run_id))["status"] == "cancelled"

    await wait_until(is_cancelled, description="the sweeper to finish the cancel")
    models.say("Nothing was launched.")
    answer = await working_product.client.agents.messages.create(agent_id=agent.id, input="And?")
    assert answer.stop_reason.stop_reason == "end_turn"


async def test_a_cancel_that_was_recorded_and_never_announced_reaches_a_run_that_nobody_began(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    run_id = await submit(product, (await product.agent()).id)
    await record_cancel(product, run_id)

    await processes.worker()

    assert (await product.ended(run_id))["status"] == "cancelled"
    assert not models.requests
    (await read_whole(product.http, run_id)).assert_complete()


async def test_a_cancel_of_a_run_whose_worker_is_dead_is_settled_by_the_api(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("one two three", silent_after=2)
    worker = await processes.worker()
    agent = await product.agent()
    run_id = await submit(product, agent.id)
    async with reading(product.http, run_id) as reader:
        await wait_until(lambda: len(reader.of_type("assistant_message")) == 2, description="the first words")
        await worker.kill()
        await end_leases(product.context.redis)
        receipt = (await product.http.post(f"/v1/runs/{run_id}/cancel")).json()
        await reader.end()

    assert receipt["status"] == "cancelled"
    reader.assert_complete()
    assert (await product.history(agent.id))[-1]["content"].strip() == "one two"
    assert (await read_whole(product.http, run_id)).raw == reader.raw


async def test_many_cancels_of_one_run_agree(working_product: Product, models: ModelServer) -> None:
    models.answer_with(lambda _: SILENT)
    run_id = await submit(working_product, (await working_product.agent()).id)
    await wait_until(lambda: models.requests, description="the model to be asked")

    async def cancel() -> str:
        return (await working_product.http.post(f"/v1/runs/{run_id}/cancel")).json()["status"]

    assert set(await asyncio.gather(*(cancel() for _ in range(10)))) == {"cancelled"}
    (await read_whole(working_product.http, run_id)).assert_complete()
