"""The public clients of AG-UI while the process that streams to them ends. They take any clean end for success, so the
connection must break off."""

import asyncio
from dataclasses import replace

import pytest

from tests.kit.ag_ui import Page
from tests.kit.clients import client_program
from tests.kit.free_ports import free_port
from tests.kit.model_server import ModelServer, Turn
from tests.kit.product import Product
from tests.kit.product.processes import Processes, api_at
from tests.kit.services.redis_losses import end_leases
from tests.kit.wait_until import wait_until

WORDS = "one two three four"
SAID = [{"id": "u1", "role": "user", "content": "Count."}]


@pytest.mark.parametrize("client", ["@ag-ui/client 1.0.0", "@ag-ui/client 0.0.59", "@ag-ui/client 0.0.47"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "asked to end"])
async def test_a_client_did_not_notice_that_its_server_ended(
    product: Product, processes: Processes, models: ModelServer, client: str, is_killed: bool
) -> None:
    resume, port, agent = asyncio.Event(), free_port(), await product.agent()
    models.play(Turn(text=WORDS, silent_after=2, resume=resume))
    api, _ = await processes.api(port), await processes.worker()
    named = {"page": "page", "agent": agent.id, "thread": "desk"}
    async with client_program(client) as program:
        program.calls(replace(product, base_url=f"http://127.0.0.1:{port}"))
        telling = asyncio.ensure_future(program.told("run", **named, messages=SAID))
        await wait_until(lambda: len(program.notes) == 2 or telling.done(), description="the client to read two words")
        if is_killed:
            await api.kill()
        else:
            await api.terminate()
        told = await telling
        assert told["thrown"] is not None, "the client would show half an answer as whole"
        resume.set()

        program.calls(product)
        again = await program.told("connect", **{**named, "page": "reloaded"})
    assert (again["thrown"], again["messages"][-1]["content"]) == (None, WORDS), "the run has gone on"


async def test_a_step_that_another_worker_begins_again_is_taken_back_from_the_page(
    product: Product, processes: Processes, models: ModelServer
) -> None:
    models.play(Turn(text="A first try", reasoning="Hm.", silent_after=2))
    models.answer_with(lambda _: Turn(text="Another answer."))
    port, agent = free_port(), await product.agent()
    await processes.api(port)
    worker = await processes.worker()
    async with api_at(port) as http:
        page = Page(http, agent.id, "desk")
        saying = asyncio.ensure_future(page.say("Tell."))
        await wait_until(lambda: page.client.of_role("reasoning") or saying.done(), description="the answer to begin")
        await worker.kill()
        await end_leases(product.context.redis)
        await processes.worker()
        await saying
        later = Page(http, agent.id, "desk")
        await later.connect()
    assert page.client.outcomes[-1]["outcome"] == {"type": "success"}
    assert page.client.text.endswith("Another answer.")
    assert later.client.text == page.client.text
