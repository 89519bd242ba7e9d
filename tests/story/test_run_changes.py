"""Dashboards: which runs a project or an agent has, and each change of their status, without texts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from shared.concurrency import background
from shared.domain.ids import ProjectId
from shared.redis import keys
from shared.redis.event_log import EventFeed
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


def waiting_counts(reader: ConversationReader, run_id: str) -> list[int]:
    """How many of a run's calls waited, as the reader has heard it, in order."""
    changes = [frame for frame in reader.frames if frame.get("event_type") == "run_changed"]
    return [frame["event_data"]["waiting"] for frame in changes if frame["run_id"] == run_id]


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


async def test_a_dashboard_was_not_told_that_one_of_two_calls_was_decided(product: Product) -> None:
    """No status changes before the last decision."""
    asked = await waiting_calls(product, "moon", "mars")
    product.models.say("Done.")
    async with watching(product, f"/v1/agents/{asked.agent_id}/events") as reader:
        await asked.decide(0)
        await wait_until(lambda: 1 in waiting_counts(reader, asked.run_id), description="the first decision")
        await asked.decide(1, "deny")
        await wait_until(lambda: "completed" in statuses(reader, asked.run_id), description="the last decision")
    assert waiting_counts(reader, asked.run_id) == [2, 1, 0]
    of_run = {"run_id": asked.run_id, "decided": True}
    decided = (await product.http.get("/v1/approvals", params=of_run)).json()
    assert {one["id"] for one in decided} == set(asked.ids)
    assert not (await product.http.get("/v1/approvals", params={"run_id": asked.run_id})).json()


async def test_an_agent_that_is_not_there_has_no_dashboard(product: Product) -> None:
    missing = "agent-00000000-0000-4000-8000-000000000000"
    assert (await product.http.get(f"/v1/agents/{missing}/events")).status_code == 404


async def test_a_run_in_the_queue_was_shown_seconds_later(product: Product) -> None:
    """Only the worker that began a run announced it, so a dashboard found one in the queue at its next look."""
    agent, resume = await product.agent(), asyncio.Event()
    product.models.play(Turn(text="First.", silent_before_headers=FOREVER, resume=resume))
    await product.client.agents.messages.create_async(agent.id, input="first")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    feed, heard = EventFeed(product.context.log_servers), list[bytes | None]()
    async with feed.running():
        feed.hear(keys.thread_changes(ProjectId(product.project_id)), heard.append)
        await wait_until(lambda: heard, description="the channel to be subscribed")
        second = await product.client.agents.messages.create_async(agent.id, input="second")
        await wait_until(lambda: any(second.id.encode() in word for word in heard if word), description="its word")
        assert (await product.run(second.id))["status"] == "created"
    resume.set()
    assert (await product.ended(second.id))["status"] == "completed"
