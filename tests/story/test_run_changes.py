"""Dashboards: which runs a project or an agent has, and each change of their status, without texts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from shared.concurrency import background
from tests.kit.model_server import Turn
from tests.kit.model_server.turn import FOREVER
from tests.kit.product import Product
from tests.kit.product.conversation_reader import ConversationReader
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product


@asynccontextmanager
async def watching(product: Product, path: str = "/v1/events") -> AsyncGenerator[ConversationReader]:
    reader = ConversationReader(product.http, path)
    async with background(reader.read(), name="watch runs"):
        await reader.until("caught_up")
        yield reader


def statuses(reader: ConversationReader, run_id: str) -> list[str]:
    """What the reader has heard of a run, in order."""
    changes = [frame for frame in reader.frames if frame.get("event_type") == "run_changed"]
    return [frame["event_data"]["status"] for frame in changes if frame["run_id"] == run_id]


async def test_a_dashboard_sees_each_run_begin_and_end(product: Product) -> None:
    mine, others = await product.agent(), await product.agent()
    resume = asyncio.Event()
    async with watching(product) as whole, watching(product, f"/v1/agents/{mine.id}/events") as of_agent:
        product.models.play(Turn(text="Secret words.", silent_before_headers=FOREVER, resume=resume))
        run = await product.client.agents.messages.create_async(mine.id, input="Hello")
        await wait_until(lambda: "running" in statuses(whole, run.id), description="the run to begin")
        await wait_until(lambda: "running" in statuses(of_agent, run.id), description="the run to begin")
        resume.set()
        await wait_until(lambda: "completed" in statuses(whole, run.id), description="the run to end")
        await wait_until(lambda: "completed" in statuses(of_agent, run.id), description="the run to end")
        other = await product.client.agents.messages.create_async(others.id, input="Hello")
        await wait_until(lambda: "completed" in statuses(whole, other.id), description="the other run to end")

    assert not statuses(of_agent, other.id)
    assert b"Secret" not in b"".join(whole.raw)
    assert b"Hello" not in b"".join(whole.raw)


async def test_a_dashboard_begins_with_what_has_not_ended(product: Product) -> None:
    asked = await waiting_calls(product, "moon")

    answer = await product.http.get(f"/v1/agents/{asked.agent_id}/events", params={"follow": "false"})

    assert '"status":"awaiting_approval"' in answer.text
    assert asked.run_id in answer.text
    assert '"event_data":{"active":1,"is_whole":true}' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    async with watching(product) as reader:
        assert statuses(reader, asked.run_id) == ["awaiting_approval"]
        await product.client.agents.messages.cancel(asked.agent_id)
        await wait_until(lambda: statuses(reader, asked.run_id)[-1] == "cancelled", description="the end of the run")


async def test_an_agent_that_is_not_there_has_no_dashboard(product: Product) -> None:
    missing = "agent-00000000-0000-4000-8000-000000000000"
    assert (await product.http.get(f"/v1/agents/{missing}/events")).status_code == 404
