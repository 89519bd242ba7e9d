"""A tool in TypeScript is made, called and changed like one in Python."""

import json
from typing import Any

import pytest
from arq.connections import ArqRedis
from letta_client import BadRequestError

from shared.sql.engine import Database
from tests.kit.model_server import Call, ModelServer, Turn
from tests.kit.node import need_node
from tests.kit.product import Product, running_product
from tests.kit.wait_until import wait_until

WEATHER = """
interface Place { city: string; days?: number }
/**
 * Tell the weather.
 * @param place where
 */
export async function weather(place: Place, unit: "C" | "F" = "C"): Promise<object> {
  console.log("asked for", place.city);
  if (place.city === "Atlantis") throw new RangeError("no such city");
  return { ...place, unit, agent: process.env.LETTA_AGENT_ID as string, key: process.env.KEY! };
}
"""


async def returned_by(product: Product, agent_id: str, call: Call) -> dict[str, Any]:
    product.models.play(Turn(calls=[call]), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go."})
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned


async def test_a_tool_in_typescript_is_called_with_its_agents_variables(product: Product) -> None:
    need_node()
    tool = await product.client.tools.upsert(source_code=WEATHER, source_type="typescript")
    assert (tool.name, tool.description, tool.source_type) == ("weather", "Tell the weather.", "typescript")
    agent = await product.client.agents.create(model="openai/gpt-4o-mini", tool_ids=[tool.id], secrets={"KEY": "k-1"})

    returned = await returned_by(product, agent.id, Call("weather", {"place": {"city": "Rome"}}))

    found = {"city": "Rome", "unit": "C", "agent": agent.id, "key": "k-1"}
    assert (returned["status"], json.loads(returned["tool_return"])) == ("success", found)
    assert returned["stdout"] == ["asked for Rome"]


async def test_what_it_throws_and_what_does_not_fit_are_said_to_the_model(product: Product) -> None:
    need_node()
    tool = await product.client.tools.upsert(source_code=WEATHER, source_type="typescript")
    agent = await product.client.agents.create(model="openai/gpt-4o-mini", tool_ids=[tool.id])

    thrown = await returned_by(product, agent.id, Call("weather", {"place": {"city": "Atlantis"}}))
    refused = await returned_by(product, agent.id, Call("weather", {"place": "Rome"}))

    assert thrown["tool_return"] == "Error executing function weather: RangeError: no such city"
    assert "tool.ts:9" in "".join(thrown["stderr"])
    assert (refused["status"], "place" in refused["tool_return"]) == ("error", True)


async def test_a_tool_changes_its_language_with_its_source_only(product: Product) -> None:
    need_node()
    python = await product.client.tools.upsert(source_code='def weather() -> str:\n    """No."""\n    return "?"\n')
    with pytest.raises(BadRequestError, match="together with its source_code"):
        await product.client.tools.update(python.id, source_type="typescript")
    changed = await product.client.tools.upsert(source_code=WEATHER, source_type="typescript")
    assert (changed.id, changed.source_type) == (python.id, "typescript")
    described = await product.client.tools.update(python.id, description="Another text.")
    assert (described.description, described.source_type) == ("Another text.", "typescript")
    back = await product.client.tools.upsert(source_code='def weather() -> str:\n    """No."""\n    return "?"\n')
    assert (back.id, back.source_type) == (python.id, "python")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export enum A { B }\nexport function f() {}", "enums make code"),
        ("import _ from 'lodash';\nexport function f() {}", "imports lodash"),
        ("def weather(): pass", "cannot be read as TypeScript"),
    ],
)
async def test_a_source_that_cannot_run_is_refused_when_the_tool_is_made(
    product: Product, source: str, said: str
) -> None:
    need_node()
    with pytest.raises(BadRequestError, match=said):
        await product.client.tools.create(source_code=source, source_type="typescript")
    with pytest.raises(BadRequestError, match="python and typescript"):
        await product.client.tools.create(source_code=source, source_type="ruby")


async def test_without_node_a_tool_in_typescript_is_refused_by_name(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    async with running_product(database, redis, models, settings={"tool_node": "off"}) as product:

        async def is_off() -> bool:
            return (await product.http.get("/readyz?full")).json()["javascript"] is False

        await wait_until(is_off, description="the worker to say that it has no Node.js")
        with pytest.raises(BadRequestError, match="'weather' is written in TypeScript, and no worker has"):
            await product.client.tools.create(source_code=WEATHER, source_type="typescript")


async def test_what_tools_in_typescript_cannot_have_is_refused_when_they_are_made(
    database: Database, redis: ArqRedis, models: ModelServer
) -> None:
    """A network that no call gets, and packages that no call can import, would be found missing at the first call."""
    need_node()
    async with running_product(database, redis, models, settings={"tool_network": "localhost:8000"}) as product:
        tools = product.client.tools
        with pytest.raises(BadRequestError, match="network: a tool in TypeScript has none"):
            await tools.create(source_code=WEATHER, source_type="typescript", extra_body={"network": "host"})
        made = await tools.create(source_code=WEATHER, source_type="typescript")
        with pytest.raises(BadRequestError, match="network: a tool in TypeScript has none"):
            await tools.update(made.id, extra_body={"network": "host"})
