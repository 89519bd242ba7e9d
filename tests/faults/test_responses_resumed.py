"""Responses in the background, whose API, worker or Redis goes away: the SDK goes on where it was, and nothing is shown
twice, missing, or otherwise."""

import asyncio
from typing import Any

import httpx2
from openai import APIConnectionError, AsyncOpenAI

from shared.domain.ids import RunId
from shared.sql.runs.run_store import RunStore
from tests.kit.free_ports import free_port
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.product.responses_client import PLAIN, assert_sound, created, responses_client, resumed, when_over
from tests.kit.services.redis_losses import end_leases
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.tools import PLAIN_TOOLS, ROLL_DICE
from tests.kit.wait_until import wait_until


async def begin(openai: AsyncOpenAI, **fields: Any) -> Any:
    """The stream of a response in the background."""
    create: Any = openai.responses.create
    return await create(**{"model": PLAIN, "input": "Hi", **fields}, background=True, stream=True)


async def read_until(stream: Any, kind: str, times: int = 1) -> list[dict[str, Any]]:
    """The events up to the one that is the so-manieth of its type."""
    seen: list[dict[str, Any]] = []
    async for event in stream:
        seen.append(event.to_dict())
        if sum(one["type"] == kind for one in seen) == times:
            break
    return seen


def run_of(events: list[dict[str, Any]]) -> RunId:
    digits = str(events[0]["response"]["id"]).removeprefix("resp_")
    return RunId(f"run-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


async def test_a_clean_end_of_a_stream_was_taken_for_the_responses_end(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """An API that ends breaks its streams off: SDKs take any other end for the last one."""
    models.say("one two three four", silent_after=3)
    port = free_port()
    api, _ = await asyncio.gather(processes.api(port), processes.worker())
    async with responses_client(f"http://127.0.0.1:{port}") as openai:
        stream = await begin(openai)
        seen = await read_until(stream, "response.output_text.delta", 3)
        ending = asyncio.ensure_future(api.terminate())
        broken: BaseException | None = None
        try:
            async for event in stream:
                seen.append(event.to_dict())
        except (APIConnectionError, httpx2.HTTPError) as error:
            broken = error
        assert await ending == 0
    assert broken is not None
    async with responses_client(product.base_url) as openai:
        assert (await openai.responses.cancel(seen[0]["response"]["id"])).status == "cancelled"
        rest = await resumed(openai, seen[0]["response"]["id"], seen[-1]["sequence_number"])
        assert_sound([*seen, *rest])
        assert await resumed(openai, seen[0]["response"]["id"]) == [*seen, *rest]


async def test_a_response_whose_worker_is_killed_goes_on_under_the_same_numbers(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6})]), Turn(text="one two three", silent_after=2))
    models.answer_with(lambda _: Turn(text="one two three four"))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    worker = await processes.worker(**PLAIN_TOOLS)
    async with responses_client(product.base_url) as openai:
        stream = await begin(openai, model=agent.id)
        seen = await read_until(stream, "response.output_text.delta", 2)
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker(**PLAIN_TOOLS)
        seen += [event.to_dict() async for event in stream]
        assert_sound(seen)
        response_id = seen[0]["response"]["id"]
        assert await resumed(openai, response_id) == seen
        over = await openai.responses.retrieve(response_id)
        assert over.to_dict() == seen[-1]["response"]
        assert [item.type for item in over.output] == ["mcp_call", "message"]
        assert over.output_text == "one two three four"


async def test_a_response_is_the_same_when_redis_was_emptied_and_everything_was_started_anew(
    product: Product, processes: Processes, models: ModelServer, private_redis: PrivateRedis
) -> None:
    models.say("word " * 50)
    worker = await processes.worker()
    async with responses_client(product.base_url) as openai:
        begun = await created(openai, input="Hi", background=True)
        await when_over(openai, begun.id)
        before = await resumed(openai, begun.id)
        assert_sound(before)
        await worker.terminate()
        await private_redis.empty()
    port = free_port()
    await asyncio.gather(processes.api(port), processes.worker())
    models.say("More.")
    async with responses_client(f"http://127.0.0.1:{port}") as openai:
        for cut in (-1, 0, len(before) // 2, len(before) - 1):
            assert await resumed(openai, begun.id, None if cut < 0 else cut) == before[cut + 1 :]
        more = await created(openai, input="On", previous_response_id=begun.id)
        assert more.output_text == "More."


async def test_a_client_that_goes_at_the_first_event_left_its_response_queued_for_ever(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.say("All of it.")
    async with responses_client(product.base_url) as openai:
        stream = await begin(openai)
        [first] = await read_until(stream, "response.created")
        await stream.close()
        await processes.worker()
        over = await when_over(openai, first["response"]["id"])
        assert (over.status, over.output_text) == ("completed", "All of it.")


async def test_a_client_that_was_cut_off_and_asked_again_was_given_its_cancelled_response(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    """In the foreground a lost connection cancels the response, and SDKs send the same request again."""
    await processes.worker()
    models.play(Turn(silent_before_headers=3600.0), Turn(text="All of it."))
    async with responses_client(product.base_url, max_retries=1) as openai:
        name = {"Idempotency-Key": "again"}
        asked = asyncio.ensure_future(created(openai, input="Hi", extra_headers=name))
        [request] = await wait_until(lambda: models.requests, description="the model to be asked")
        asked.cancel()
        await wait_until(lambda: request.client_left, description="the first try to be cancelled")
        answer = await created(openai, input="Hi", extra_headers=name)
        assert (answer.status, answer.output_text) == ("completed", "All of it.")


async def test_hanging_up_in_the_foreground_reaches_a_run_in_every_state(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    runs = RunStore(product.context.database)
    async with responses_client(product.base_url) as openai:
        create: Any = openai.responses.create
        waiting = await create(model=PLAIN, input="Nobody works yet.", stream=True)
        [first] = await read_until(waiting, "response.created")
        await waiting.close()

        async def is_cancelled() -> bool:
            return (await runs.look_up(run_of([first]))).status == "cancelled"

        await wait_until(is_cancelled, description="the run that waits to be cancelled")
        models.play(Turn(silent_before_headers=3600.0))
        await processes.worker()
        silent = await create(model=PLAIN, input="The model says nothing.", stream=True)
        seen = await read_until(silent, "response.in_progress")
        await wait_until(lambda: models.requests, description="the model to be asked")
        await silent.close()
        over = await when_over(openai, seen[0]["response"]["id"])
        assert over.status == "cancelled"
