"""Agents whose tools an MCP server runs: whole runs, their results, and what becomes of a call that is cancelled."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from shared.domain.tools import ToolLimits
from shared.sql.definitions.mcp_servers import McpServerStore
from tests.kit.mcp.hostile import TOKEN, Asked, answer, called, hostile_server
from tests.kit.mcp.official import PIXEL, OfficialServer, official_server
from tests.kit.mcp.taken_over import taken_over
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

NUMBERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8", "mcp_timeout": 20.0}


@pytest.fixture
async def server() -> AsyncGenerator[OfficialServer]:
    async with official_server("json") as running:
        yield running


async def ask(product: Product, agent_id: str) -> dict[str, Any]:
    """Sends a message, and waits for the run; gives its answer."""
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go on."})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def results(product: Product, agent_id: str) -> list[dict[str, Any]]:
    """The results of the agent's calls, as they are shown."""
    return [one for one in await product.history(agent_id) if one["message_type"] == "tool_return_message"]


async def test_a_servers_tool_is_called_in_a_run(product: Product, server: OfficialServer) -> None:
    agent = await product.agent(tools=await taken_over(product, server.target, ["add"], parameters=NUMBERS))
    product.models.call("add", a=20, b=22)
    product.models.say("It is 42.")
    answered = await ask(product, agent.id)
    assert answered["messages"][-1]["content"] == "It is 42."
    [result] = await results(product, agent.id)
    assert (result["status"], result["tool_return"]) == ("success", "42")
    assert server.authorizations == {"Bearer token-of-the-server"}


async def test_arguments_are_checked_before_the_server_is_asked(product: Product, server: OfficialServer) -> None:
    agent = await product.agent(tools=await taken_over(product, server.target, ["add"], parameters=NUMBERS))
    product.models.call("add", a="twenty")
    product.models.say("I was wrong.")
    await ask(product, agent.id)
    [result] = await results(product, agent.id)
    assert (result["status"], server.methods) == ("error", [])


async def test_an_error_of_the_server_is_a_result_and_the_run_goes_on(product: Product, server: OfficialServer) -> None:
    agent = await product.agent(tools=await taken_over(product, server.target, ["fail", "nowhere"]))
    product.models.play(Turn(calls=[Call("fail"), Call("nowhere")]))
    product.models.say("It failed.")
    answered = await ask(product, agent.id)
    assert answered["messages"][-1]["content"] == "It failed."
    first, second = [one for shown in await results(product, agent.id) for one in shown["tool_returns"]]
    assert (first["status"], second["status"]) == ("error", "error")
    assert "it cannot be done" in first["tool_return"]


async def test_a_server_that_is_away_or_deleted_is_a_result_too(product: Product) -> None:
    async with official_server("json") as server:
        target = server.target
    agent = await product.agent(tools=await taken_over(product, target, ["add"], parameters=NUMBERS))
    product.models.call("add", a=1, b=2)
    product.models.say("It is away.")
    await ask(product, agent.id)
    store = McpServerStore(product.context.database)
    [stored] = await store.list(product.project_id)
    [away] = await results(product, agent.id)
    assert "'tools' (127.0.0.1:" in away["tool_return"]
    assert "cannot be reached. The tool was not called." in away["tool_return"]
    await store.delete(product.project_id, stored.id)
    assert (await product.http.get(f"/v1/agents/{agent.id}/tools")).json() == []


async def test_images_reach_the_model(product: Product, server: OfficialServer) -> None:
    tools = await taken_over(product, server.target, ["show"])
    agent = await product.agent(model="anthropic/claude-haiku-4-5-20251001", tools=tools)
    product.models.call("show")
    product.models.say("A roof.")
    await ask(product, agent.id)
    assert json.dumps(product.models.requests[1].body).count(PIXEL) == 1
    [result] = await results(product, agent.id)
    assert result["tool_return"].startswith("From the roof:")
    assert result["tool_return"].endswith("[Image omitted]")


async def test_a_long_result_with_images_is_cut(product: Product) -> None:
    """Its parts, which the model is given, were as long as the server wished."""

    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
        result = called("x" * 50_000)
        await answer(asked, writer, {**result, "content": [*result["content"], image]})

    async with hostile_server(tools_call=act) as server:
        agent = await product.agent(
            model="anthropic/claude-haiku-4-5-20251001",
            tools=await taken_over(product, server.target, ["act"], return_char_limit=1_000),
        )
        product.models.call("act")
        product.models.say("Long.")
        await ask(product, agent.id)
    sent = json.dumps(product.models.requests[1].body)
    assert sent.count(PIXEL) == 1
    assert "x" * 1_000 not in sent
    assert "characters are left out here" in sent


async def test_secrets_of_the_server_and_of_the_agent_leave_in_no_result(product: Product) -> None:
    async def tell(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, called(f"{json.dumps(asked.headers)} and the secret of the agent: s3cr3t-value"))

    async with hostile_server(tools_call=tell) as server:
        agent = await product.agent(
            tools=await taken_over(product, server.target, ["act"]), secrets={"KEY": "s3cr3t-value"}
        )
        product.models.call("act")
        product.models.say("Done.")
        await ask(product, agent.id)
    [result] = await results(product, agent.id)
    assert TOKEN not in result["tool_return"]
    assert "s3cr3t" not in result["tool_return"]
    assert "[secret KEY]" in result["tool_return"]


async def test_calls_of_one_answer_go_beside_one_another(product: Product, server: OfficialServer) -> None:
    tools = await taken_over(product, server.target, ["wait"], enable_parallel_execution=True)
    agent = await product.agent(tools=tools)
    product.models.play(Turn(calls=[Call("wait"), Call("wait"), Call("wait")]))
    product.models.say("All three.")
    asking = asyncio.create_task(ask(product, agent.id))
    await wait_until(lambda: server.calls == ["wait"] * 3, description="three calls at once")
    server.going_on.set()
    assert (await asking)["messages"][-1]["content"] == "All three."


async def test_a_run_is_cancelled_at_once_while_its_server_hangs(product: Product) -> None:
    """A server that accepts a call and never answers held the run until its time was over."""

    async def never(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with hostile_server(tools_call=never) as server:
        agent = await product.agent(tools=await taken_over(product, server.target, ["act"]))
        product.models.call("act")
        began = await product.http.post(f"/v1/agents/{agent.id}/messages/async", json={"input": "Go on."})
        run_id = began.json()["id"]
        await wait_until(lambda: server.count("tools/call") == 1, description="the call")
        asked_at = time.monotonic()
        receipt = await product.http.post(f"/v1/runs/{run_id}/cancel", json={})
        took = time.monotonic() - asked_at
    assert (receipt.status_code, receipt.json()["status"]) == (200, "cancelled")
    assert took < 5, "far less than the 20 s that the call may take"
    assert server.count("tools/call") == 1
    product.models.say("Here again.")
    assert (await ask(product, agent.id))["messages"][-1]["content"] == "Here again."


async def test_a_call_that_takes_too_long_is_given_up(product: Product, server: OfficialServer) -> None:
    tools = await taken_over(product, server.target, ["wait"], limits=ToolLimits(timeout_s=0.5))
    agent = await product.agent(tools=tools)
    product.models.call("wait")
    product.models.say("It took too long.")
    assert (await ask(product, agent.id))["messages"][-1]["content"] == "It took too long."
    [result] = await results(product, agent.id)
    assert "not answered within 0.5 s. Whether the tool did its work is not known." in result["tool_return"]
