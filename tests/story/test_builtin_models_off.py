"""Where the built-in models are off, whoever asks for one is told which setting turns them on, and nothing is lost."""

from collections.abc import AsyncIterator

import httpx
import pytest
from arq.connections import ArqRedis

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product

SETTING = "HOLDFAST_BUILTIN_MODELS"
OFF = {"builtin_models": False}


@pytest.fixture
async def without_builtin(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The product as `holdfast api` and `holdfast worker` are without the setting."""
    async with running_product(database, redis, models, settings=OFF) as running:
        yield running


def refused(answer: httpx.Response) -> bool:
    return answer.status_code == 400 and SETTING in answer.json()["detail"]


async def test_an_agent_is_refused_when_it_is_made(without_builtin: Product) -> None:
    http = without_builtin.http
    assert not [model for model in (await http.get("/v1/models")).json() if model["handle"].startswith("builtin/")]
    assert refused(await http.post("/v1/agents", json={"model": "builtin/echo"}))
    config = {"model": "echo", "model_endpoint_type": "builtin"}
    assert refused(await http.post("/v1/agents", json={"llm_config": config}))
    assert (await http.get("/v1/agents/count")).json() == 0


async def test_nothing_is_changed_to_one(without_builtin: Product) -> None:
    http = without_builtin.http
    agent = await without_builtin.agent()
    assert refused(await http.patch(f"/v1/agents/{agent.id}", json={"model": "builtin/slow"}))
    of_agent = {"agent_id": agent.id}
    assert refused(await http.post("/v1/conversations", params=of_agent, json={"model": "builtin/echo"}))
    made = (await http.post("/v1/conversations", params=of_agent)).json()
    assert refused(await http.patch(f"/v1/conversations/{made['id']}", json={"model": "builtin/echo"}))
    assert (await http.get(f"/v1/agents/{agent.id}")).json()["model"] == agent.model


async def test_an_agent_that_is_there_already_cannot_run(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models) as before:
        agent = await before.agent(model="builtin/echo")
        await before.client.agents.messages.create(agent_id=agent.id, input="My name is Ada.")
        history = await before.history(agent.id)

    async with running_product(database, redis, models, settings=OFF) as product:
        answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "llm_bad_request"
        assert SETTING in answer.json()["error"]["detail"]

        # A built-in model is never asked for a summary: its compaction goes another way, which is closed as well.
        compacted = await product.http.post(f"/v1/agents/{agent.id}/summarize")
        assert compacted.status_code == 400
        assert SETTING in compacted.json()["error"]["detail"]
        asked = await product.http.post(f"/v1/agents/{agent.id}/generate", json={"prompt": "Hello"})
        assert asked.status_code == 400
        assert SETTING in asked.json()["error"]["detail"]
        assert await product.history(agent.id) == history

        await product.client.agents.update(agent.id, model="openai/gpt-4o-mini")
        models.say("Ada.")
        done = await product.client.agents.messages.create(agent_id=agent.id, input="Who am I?")
        assert done.stop_reason.stop_reason == "end_turn"


async def test_a_question_that_names_one_is_refused(without_builtin: Product) -> None:
    agent = await without_builtin.agent()
    body = {"prompt": "Hello", "override_model": "builtin/echo"}

    answer = await without_builtin.http.post(f"/v1/agents/{agent.id}/generate", json=body)

    assert (answer.status_code, answer.json()["field"]) == (400, "override_model")
    assert SETTING in answer.json()["detail"]


async def test_a_run_that_names_one_fails(without_builtin: Product) -> None:
    agent = await without_builtin.agent()
    body = {"input": "Hello", "override_model": "builtin/echo"}

    answer = await without_builtin.http.post(f"/v1/agents/{agent.id}/messages", json=body)

    assert answer.json()["error"]["type"] == "llm_bad_request"
    assert SETTING in answer.json()["error"]["detail"]
