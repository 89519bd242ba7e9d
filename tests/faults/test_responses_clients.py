"""The public SDKs of the Responses API while a worker is killed: they read on without noticing."""

import asyncio

import pytest

from tests.kit.clients import client_program
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes
from tests.kit.product.responses_client import PLAIN
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import wait_until

WORDS = "one two three four"


@pytest.mark.parametrize(
    "client",
    [
        "openai for Node.js",
        pytest.param("openai 2, sync", marks=pytest.mark.exhaustive),
        pytest.param("openai 1, async", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_client_reads_on_while_the_worker_of_its_response_is_killed(
    product: Product, processes: Processes, models: ModelServer, client: str
) -> None:
    models.play(Turn(text=WORDS, silent_after=2))
    models.answer_with(lambda _: Turn(text=WORDS))
    worker = await processes.worker()
    async with client_program(client) as program, client_program(client) as another:
        program.calls(product)
        another.calls(product)
        reading = asyncio.ensure_future(program.told("watched", model=PLAIN, input="Count."))
        await wait_until(lambda: program.notes or reading.done(), description="the client to read a word")
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        told = await reading
        assert (told["last"], told["status"]) == ("response.completed", "completed")
        assert told["numbers"] == list(range(len(told["numbers"])))
        again = await another.told("resumed", response_id=told["id"], after=told["numbers"][0])
        assert again["numbers"] == told["numbers"][1:]
        whole = await another.told("followed", response_id=told["id"])
        assert (whole["text"], whole["numbers"]) == (WORDS, told["numbers"])
