"""Redis is a cache of the log: it may be emptied, killed and started again, and every reader still gets everything."""

import asyncio
import json
from typing import Any

from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole, reading
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import wait_until

TOKENS = 20_000


async def submit(product: Product, *turns: dict[str, Any]) -> str:
    """A run in token mode that plays a script of the built-in model; its id."""
    agent = await product.agent(model="builtin/scripted")
    answer = await product.http.post(
        f"/v1/agents/{agent.id}/messages/async",
        json={"input": json.dumps({"turns": turns}), "stream_tokens": True},
    )
    return answer.json()["id"]


async def has_stopped(models: ModelServer) -> None:
    """The worker has left every answer that it was given: its lease is over, and it knows."""
    await wait_until(lambda: all(one.client_left for one in models.requests), description="the worker to stop in time")


async def test_a_long_stream_is_the_same_after_redis_was_emptied(
    patient_product: Product, private_redis: PrivateRedis
) -> None:
    run_id = await submit(patient_product, {"text": "word ", "repeat": TOKENS})
    assert (await patient_product.ended(run_id))["status"] == "completed"
    before = await read_whole(patient_product.http, run_id)
    before.assert_complete()
    assert len(before.raw) > TOKENS

    await private_redis.empty()

    after = await read_whole(patient_product.http, run_id)
    assert after.raw == before.raw
    middle = await read_whole(patient_product.http, run_id, starting_after=TOKENS // 2)
    assert middle.raw == before.raw[TOKENS // 2 :]


async def test_a_live_reader_goes_on_when_redis_is_emptied_under_the_run(
    patient_product: Product, private_redis: PrivateRedis
) -> None:
    run_id = await submit(patient_product, {"text": "word ", "repeat": 400, "delay_ms": 3})
    async with reading(patient_product.http, run_id) as reader:
        await reader.reach(50)
        await private_redis.empty()
        await reader.reach(200)
        await private_redis.empty()
        await reader.end()

    reader.assert_complete()
    assert len(reader.of_type("assistant_message")) == 400
    assert not reader.notes("step_restarted")
    assert (await read_whole(patient_product.http, run_id)).raw == reader.raw


async def test_a_reader_that_comes_after_redis_was_emptied_gets_the_steps_that_are_stored(
    patient_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    tool = await patient_product.tool('def look() -> str:\n    """Looks."""\n    return "seen"\n')
    agent = await patient_product.agent(tools=[tool])
    models.call("look")
    models.say("never said", silent_before_headers=3600)
    run = await patient_product.client.agents.messages.create_async(agent_id=agent.id, input="Look")
    await wait_until(lambda: len(models.requests) == 2, description="the second step to wait for its model")

    await private_redis.empty()

    async with reading(patient_product.http, run.id) as reader:
        await wait_until(lambda: reader.of_type("tool_return_message"), description="the tool's return")
    await patient_product.http.post(f"/v1/runs/{run.id}/cancel")
    whole = await read_whole(patient_product.http, run.id)
    whole.assert_complete()
    assert whole.raw[: len(reader.raw)] == reader.raw


async def test_a_run_goes_on_while_redis_is_restarted(patient_product: Product, private_redis: PrivateRedis) -> None:
    run_id = await submit(patient_product, {"text": "word ", "repeat": 300, "delay_ms": 5})
    async with reading(patient_product.http, run_id) as reader:
        await reader.reach(50)
        await private_redis.kill()
        await private_redis.start()
        await reader.end()

    reader.assert_complete()
    assert (await patient_product.ended(run_id))["status"] == "completed"
    assert not reader.notes("step_restarted")
    assert len(reader.of_type("assistant_message")) == 300
    assert (await read_whole(patient_product.http, run_id)).raw == reader.raw


async def test_a_run_that_outlived_its_lease_without_redis_is_taken_up_again(
    working_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    agent = await working_product.agent()
    may_end = asyncio.Event()
    silent = Turn(text="one two three four", silent_after=2)
    models.answer_with(lambda _: Turn(text="At last.") if may_end.is_set() else silent)
    answer = await working_product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    run_id = answer.json()["id"]
    async with reading(working_product.http, run_id) as reader:
        await wait_until(lambda: reader.of_type("assistant_message"), description="the first words")
        await private_redis.kill()
        await has_stopped(models)
        may_end.set()
        await private_redis.start()
        await reader.end()

    reader.assert_complete()
    assert (await working_product.ended(run_id))["status"] == "completed"
    assert (await working_product.history(agent.id))[-1]["content"] == "At last."
    assert (await read_whole(working_product.http, run_id)).raw == reader.raw


async def test_a_run_goes_on_after_redis_stood_still(
    working_product: Product, private_redis: PrivateRedis, models: ModelServer
) -> None:
    agent = await working_product.agent()
    may_end = asyncio.Event()
    long = Turn(text="word " * 20_000, pace=0.005)
    models.answer_with(lambda _: Turn(text="At last.") if may_end.is_set() else long)
    answer = await working_product.http.post(
        f"/v1/agents/{agent.id}/messages/async", json={"input": "Hello", "stream_tokens": True}
    )
    run_id = answer.json()["id"]
    async with reading(working_product.http, run_id) as reader:
        await reader.reach(20)
        async with private_redis.hanging():
            await has_stopped(models)
            may_end.set()
        await reader.end()

    reader.assert_complete()
    assert (await working_product.ended(run_id))["status"] == "completed"
    assert (await read_whole(working_product.http, run_id)).raw == reader.raw
