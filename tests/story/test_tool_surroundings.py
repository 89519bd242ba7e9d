"""A tool knows for whom it runs."""

import json

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WHERE = '''
def where() -> dict:
    """Says for whom it runs."""
    import os
    return {name: os.environ.get(name) for name in ("LETTA_AGENT_ID", "LETTA_RUN_ID", "LETTA_CONVERSATION_ID", "TOKEN")}
'''

REMEMBERS = '''
def remembers(agent_state: "AgentState", label: str) -> str:
    """
    Reads a block.

    Args:
        label (str): Which.
    """
    block = agent_state.memory.get_block(label)
    try:
        block.value = "changed"
    except AttributeError as error:
        refused = str(error)
    return f"{agent_state.id} {agent_state.memory.list_block_labels()} {block.value} {refused}"
'''

KNOWS = '''
def knows(agent_id: str, what: str = "x") -> str:
    """
    Says whose it is.

    Args:
        what (str): Anything.
    """
    return agent_id
'''

PACKS = """
def packs(parcel: Parcel, labels: Optional[List[str]] = None) -> bool:
    print(parcel.weight, labels)
    return parcel.weight > 1
"""
PARCEL = {"type": "object", "title": "Parcel", "properties": {"weight": {"type": "number"}}, "required": ["weight"]}


async def result_of(product: Product, agent_id: str, call: Call) -> str:
    product.models.play(Turn(calls=[call]), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go."})
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned["tool_return"]


async def test_readiness_says_which_walls_tools_have(product: Product) -> None:
    async def shown() -> str | None:
        return (await product.http.get("/readyz?full")).json()["sandbox"]

    tier = await wait_until(shown, description="a worker to show its walls")
    assert tier in ("tier 1", "tier 2")
    status = (await product.http.get("/v1/admin/status")).json()
    assert (status["status"], status["sandbox"], status["sandboxes"]) == ("ready", tier, [tier])


async def test_a_tool_finds_its_agent_run_and_conversation_in_its_environment(product: Product) -> None:
    secrets = {"TOKEN": "t", "LETTA_AGENT_ID": "somebody-else"}
    agent = await product.agent(tools=[await product.tool(WHERE)], secrets=secrets)

    found = json.loads(await result_of(product, agent.id, Call("where", {})))

    [run] = (await product.client.runs.list(agent_id=agent.id)).items
    assert found == {
        "LETTA_AGENT_ID": agent.id, "LETTA_RUN_ID": run.id, "LETTA_CONVERSATION_ID": "default", "TOKEN": "t"
    }  # fmt: skip


async def test_a_tool_that_asks_for_its_agent_gets_a_read_only_copy_with_the_memory_of_now(product: Product) -> None:
    """It got None, and failed with an AttributeError."""
    tools = [await product.tool(REMEMBERS), await product.tool(KNOWS)]
    agent = await product.agent(tools=tools, memory_blocks=[{"label": "human", "value": "Name: Ada."}])

    text = await result_of(product, agent.id, Call("remembers", {"label": "human"}))

    assert text.startswith(f"{agent.id} ['human'] Name: Ada. agent_state is a copy")
    assert (await product.client.agents.blocks.retrieve("human", agent_id=agent.id)).value == "Name: Ada."
    assert await result_of(product, agent.id, Call("knows", {})) == agent.id


async def test_a_tool_whose_classes_stayed_with_its_client_failed_at_each_call(product: Product) -> None:
    schema = {"type": "object", "properties": {"parcel": {"$ref": "#/$defs/Parcel"}}, "$defs": {"Parcel": PARCEL}}
    given = {"source_code": PACKS, "description": "Packs.", "args_json_schema": schema}
    tool = (await product.http.put("/v1/tools/", json=given)).json()
    agent = await product.agent(tools=[tool["id"]])

    assert await result_of(product, agent.id, Call("packs", {"parcel": {"weight": 2.5}})) == "True"
