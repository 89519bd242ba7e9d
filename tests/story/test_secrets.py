"""An agent's secrets reach its tools, and whoever asks for them with a key of the operator's; nobody else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from arq.connections import ArqRedis

from api.access.authentication import act_for
from api.access.callers import ANONYMOUS, DEFAULT_PROJECT, Caller, ConfiguredKeys, may_see_secrets
from shared.domain.api_keys import Level, Scopes
from shared.domain.ids import AgentId
from shared.sql.engine import Database
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.product import Product, running_product
from tests.kit.wait_until import wait_until

OLD, NEW = f"old:{'A' * 43}=", f"new:{'B' * 43}="
SECRET = "swordfish-4711"
ASKED = {"include": "agent.secrets"}

SHOWS = '''
def shows(fail: bool) -> dict:
    """
    Shows what it knows.

    Args:
        fail (bool): Whether to fail.
    """
    import os, sys
    token = os.environ["TOKEN"]
    print("out", token)
    print("err", token, file=sys.stderr)
    if fail:
        raise ValueError(f"401 with {token}")
    return {"token": token, "length": len(token)}
'''


@pytest.fixture
async def product(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    async with running_product(database, redis, models, settings={"encryption_key": OLD}) as running:
        yield running


async def secrets_of(product: Product, agent_id: str) -> dict[str, str]:
    shown = (await product.http.get(f"/v1/agents/{agent_id}", params=ASKED)).json()["secrets"]
    return {one["key"]: one["value"] for one in shown}


def values(state: dict[str, Any]) -> list[tuple[str, str]]:
    assert state["secrets"] == state["tool_exec_environment_variables"]
    return [(one["key"], one["value"]) for one in state["secrets"]]


async def test_values_are_shown_only_when_they_are_asked_for(product: Product) -> None:
    body = {"model": "builtin/echo", "secrets": {"TOKEN": SECRET}}
    made = (await product.http.post("/v1/agents", json=body)).json()
    path = f"/v1/agents/{made['id']}"
    changed = (await product.http.patch(path, json={"description": "x"})).json()
    assert values(made) == values(changed) == [("TOKEN", "")]
    assert values((await product.http.get(path)).json()) == []

    asked = [
        (await product.http.post("/v1/agents", json=body, params=ASKED)).json(),
        (await product.http.patch(path, json={}, params=ASKED)).json(),
        (await product.http.get(path, params=ASKED)).json(),
        (await product.http.get("/v1/agents", params=ASKED)).json()[0],
    ]
    assert [values(state) for state in asked] == [[("TOKEN", SECRET)]] * 4
    [listed] = (await product.http.get(f"{path}/secrets")).json()
    assert (listed["key"], listed["value"]) == ("TOKEN", SECRET)


async def test_a_key_that_is_not_the_operators_sees_names(product: Product) -> None:
    configured = ConfiguredKeys.parse("default=a-key").find(b"a-key")
    assert configured is not None
    operators, user = configured.caller, Caller(DEFAULT_PROJECT, "key-1", Scopes(Level.WRITE))
    assert [may_see_secrets(caller) for caller in (operators, ANONYMOUS, user)] == [True, True, False]
    made = await product.agent(secrets={"TOKEN": SECRET})
    act_for(DEFAULT_PROJECT)
    agent = await product.services.agents.get(DEFAULT_PROJECT, AgentId(made.id))

    states = [
        await product.services.agent_answers.one(agent, ["agent.secrets"], one) for one in (operators, user, None)
    ]

    assert [values(state) for state in states] == [[("TOKEN", SECRET)], [("TOKEN", "")], [("TOKEN", "")]]


async def test_a_client_that_sends_back_what_it_was_shown_wipes_no_secret(product: Product) -> None:
    made = await product.agent(secrets={"TOKEN": SECRET, "OTHER": "kept-as-it-is"})
    path = f"/v1/agents/{made.id}"
    for shown in ({"TOKEN": "", "OTHER": "changed"}, {"TOKEN": None, "OTHER": ""}):
        assert (await product.http.patch(path, json={"secrets": shown})).is_success
        assert await secrets_of(product, made.id) == {"TOKEN": SECRET, "OTHER": "changed"}
    await product.http.patch(path, json={"tool_exec_environment_variables": {"OTHER": "", "NEW": "n"}})
    assert await secrets_of(product, made.id) == {"OTHER": "changed", "NEW": "n"}, "what is left out is removed"


async def test_the_secrets_of_a_refused_request_are_not_said_again(product: Product) -> None:
    for wrong in ({"secrets": SECRET}, {"secrets": {"TOKEN": [SECRET]}}, {"model": "x", "secrets": {"TOKEN": SECRET}}):
        refused = await product.http.post("/v1/agents", json=wrong)
        assert refused.status_code == 422
        assert SECRET not in refused.text


@pytest.mark.parametrize("fail", [False, True])
async def test_a_tool_that_shows_its_secret_shows_the_name(product: Product, fail: bool) -> None:
    agent = await product.agent(tools=[await product.tool(SHOWS)], secrets={"TOKEN": SECRET})
    product.models.play(Turn(calls=[Call("shows", {"fail": fail})]), Turn(text="Done."))

    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Go."})

    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    assert "[secret TOKEN]" in returned["tool_return"]
    assert fail or '"length": 14' in returned["tool_return"], "the tool itself had the value"
    assert returned["stdout"] == ["out [secret TOKEN]"]
    assert returned["stderr"][0].startswith("err [secret TOKEN]")
    run_id = answer.json()["messages"][0]["run_id"]
    seen = [
        answer.text,
        str(product.models.requests),
        (await product.http.get(f"/v1/runs/{run_id}/messages")).text,
        (await product.http.get(f"/v1/agents/{agent.id}/export")).text,
        str(await product.history(agent.id)),
    ]
    assert [SECRET in text for text in seen] == [False] * 5


async def test_a_tool_does_not_run_without_a_secret_that_cannot_be_read(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"encryption_key": OLD}) as before:
        tool = await before.tool(SHOWS)
        given = {"TOKEN": SECRET}
        agent = await before.agent(tools=[tool], secrets=given)
        plain = await before.agent(secrets=given)
    async with running_product(database, redis, models, settings={"encryption_key": NEW}) as after:
        models.say("Hello.")
        answered = await after.http.post(f"/v1/agents/{plain.id}/messages", json={"input": "Hi"})
        assert "Hello." in answered.text, "no tool of this one needs it"
        await after.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Go."})
        [run] = (await after.http.get("/v1/runs", params={"agent_id": agent.id})).json()
        assert run["status"] == "failed"
        assert "the secret 'TOKEN' cannot be read: it is encrypted with the key 'old'" in str(run)
        assert len(models.requests) == 1, "nothing was spent"

        listed = (await after.http.get("/v1/agents", params=ASKED)).json()
        assert [values(state) for state in listed] == [[("TOKEN", "")]] * 2
        assert "the key 'old'" in listed[0]["secrets"][0]["description"]
        assert (await after.http.patch(f"/v1/agents/{agent.id}", json={"name": "renamed"})).is_success
        await after.http.patch(f"/v1/agents/{agent.id}", json={"secrets": {"TOKEN": "given-anew"}})
        assert await secrets_of(after, agent.id) == {"TOKEN": "given-anew"}
    async with running_product(database, redis, models, settings={"encryption_key": f"{NEW},{OLD}"}) as both:
        assert await secrets_of(both, plain.id) == given


async def test_a_tool_that_is_attached_to_a_run_at_work_does_not_run_without_its_secrets(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"encryption_key": OLD}) as before:
        tool = await before.tool(SHOWS)
        agent = await before.agent(secrets={"TOKEN": SECRET})
    resume = asyncio.Event()
    async with running_product(database, redis, models, settings={"encryption_key": NEW}) as after:
        models.play(Turn(calls=[Call("shows", {"fail": False})], silent_after=1, resume=resume))
        sent = await after.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Go."})

        async def speaks() -> bool:
            return any(request.pieces_sent for request in models.requests)

        await wait_until(speaks, description="the model to speak")
        await after.http.patch(f"/v1/agents/{agent.id}/tools/attach/{tool}")
        resume.set()
        run = await after.ended(sent.json()["id"])
    error = run["metadata"]["error"]
    assert (run["status"], error["message"]) == ("failed", "A secret of the agent cannot be read.")
    assert "the secret 'TOKEN' cannot be read: it is encrypted with the key 'old'" in error["detail"]
