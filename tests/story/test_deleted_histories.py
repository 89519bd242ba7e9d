"""A history that is deleted while a run of it is at work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from api.access.authentication import acting_for
from shared.domain.ids import AgentId
from tests.kit.log_events import log_events
from tests.kit.model_server import Turn
from tests.kit.model_server.turn import FOREVER
from tests.kit.product import Product
from tests.kit.product.responses_client import responses_client
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

DEFECTS = ("run_failed", "job_failed", "request_failed")


async def _agent(product: Product) -> tuple[str, str]:
    agent = await product.agent()
    return f"/v1/agents/{agent.id}", f"/v1/agents/{agent.id}/messages/stream"


async def _conversation(product: Product) -> tuple[str, str]:
    agent = await product.agent()
    made = await product.client.conversations.create(agent_id=agent.id)
    return f"/v1/conversations/{made.id}", f"/v1/conversations/{made.id}/messages"


async def _openai_conversation(product: Product) -> tuple[str, str]:
    agent = await product.agent()
    async with responses_client(product.base_url, product.key) as openai:
        made = await openai.conversations.create(metadata={"agent_id": agent.id})
    own_id = f"conv-{UUID(made.id.removeprefix('conv_'))}"
    return f"/openai/v1/conversations/{made.id}", f"/v1/conversations/{own_id}/messages"


@pytest.mark.parametrize("made", [_agent, _conversation, _openai_conversation])
async def test_a_model_went_on_with_a_run_that_was_deleted_with_its_history(
    product: Product, made: Callable[[Product], Awaitable[tuple[str, str]]]
) -> None:
    path, messages = await made(product)
    product.models.play(Turn(text="One two three four", silent_after=2))
    body = {"input": "Count.", "streaming": True, "stream_tokens": True}
    lines: list[str] = []
    with log_events() as logged:
        async with product.http.stream("POST", messages, json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if "two" in line and "assistant_message" in line:
                    assert (await product.http.delete(path)).status_code == 200
    assert product.models.requests[-1].client_left
    assert [line for line in lines if '"stop_reason":"cancelled"' in line], "a reader was told of an end like any other"
    assert (await product.http.get(path)).status_code == 404
    assert not [event for event in DEFECTS if logged.has(event)]


async def test_a_run_that_is_deleted_behind_its_workers_back_was_reported_as_a_defect(
    product: Product, caplog: pytest.LogCaptureFixture
) -> None:
    """The API could not tell the worker, or the run began while its agent was being deleted."""
    agent, resume = await product.agent(), asyncio.Event()
    product.models.play(Turn(text="One.", silent_before_headers=FOREVER, resume=resume))
    started = await product.client.agents.messages.create_async(agent.id, input="Count.")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    with log_events() as logged:
        with acting_for(product.project_id):
            await product.services.agents.delete(product.project_id, AgentId(agent.id))
        resume.set()
        await wait_until(lambda: logged.has("run_left", run_id=started.id), description="the worker to leave the run")
    assert not [event for event in DEFECTS if logged.has(event)]
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
