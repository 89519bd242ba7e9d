"""Tools that keep files for later calls of their run learn when these are gone."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import PLAIN_TOOLS
from worker.bodies.tool_turn import EMPTY_AGAIN

KEEPS = '''
def keeps(name: str) -> list:
    """
    Keeps a file, and lists what was kept.

    Args:
        name (str): The name.
    """
    import os
    folder = os.environ["HOLDFAST_RUN_FOLDER"]
    open(os.path.join(folder, name), "w").close()
    return sorted(os.listdir(folder))
'''
ASKS_AND_KEEPS = KEEPS.replace("def keeps", "def asks_and_keeps")


@pytest.fixture
def settings() -> dict[str, Any]:
    return dict(PLAIN_TOOLS)


async def agent_of(product: Product) -> str:
    keeps = await product.tool(KEEPS, extra_body={"scratch": "run"})
    asks = await product.tool(ASKS_AND_KEEPS, default_requires_approval=True, extra_body={"scratch": "run"})
    return (await product.agent(tools=[keeps, asks])).id


async def told(product: Product, path: str, body: dict[str, Any]) -> list[str]:
    answer = await product.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    messages = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return [result["tool_return"] for message in messages for result in message["tool_returns"]]


async def approved(product: Product, agent_id: str) -> list[str]:
    """Approves what waits; the results of the run that goes on."""
    waiting = (await product.http.get("/v1/approvals", params={"agent_id": agent_id})).json()
    decisions = [{"type": "approval", "tool_call_id": one["tool_call_id"], "approve": True} for one in waiting]
    return await told(
        product, f"/v1/agents/{agent_id}/messages", {"messages": [{"type": "approval", "approvals": decisions}]}
    )


def named(name: str, tool: str = "keeps") -> Turn:
    return Turn(calls=[Call(tool, {"name": name})])


async def test_a_folder_that_was_emptied_behind_an_approval_was_empty_in_silence(product: Product) -> None:
    agent_id = await agent_of(product)
    product.models.play(named("one"), named("two", "asks_and_keeps"), named("three"), Turn(text="Done."))
    [first] = await told(product, f"/v1/agents/{agent_id}/messages", {"input": "Go."})
    assert json.loads(first) == ["one"]
    second, third = await approved(product, agent_id)
    assert second.startswith(EMPTY_AGAIN)
    assert json.loads(second.removeprefix(EMPTY_AGAIN)) == ["two"]
    assert json.loads(third) == ["three", "two"], "it is said once"


async def test_a_folder_that_nobody_had_used_was_not_lost(product: Product) -> None:
    agent_id = await agent_of(product)
    two = Turn(calls=[Call("asks_and_keeps", {"name": "one"}), Call("asks_and_keeps", {"name": "two"})])
    product.models.play(two, Turn(text="Done."))
    assert await told(product, f"/v1/agents/{agent_id}/messages", {"input": "Go."}) == []
    first, second = await approved(product, agent_id)
    assert (json.loads(first), json.loads(second)) == (["one"], ["one", "two"])
