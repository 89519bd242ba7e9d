"""Tool rules do what they say: a call that a rule asks for is forced at the provider, not hoped for."""

from typing import Any

import pytest
from letta_client import BadRequestError

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE

pytestmark = pytest.mark.shared_product

SOURCE = '''
def {name}(what: str = "nothing") -> str:
    """
    Does it.

    Args:
        what (str): What.
    """
    return "{name} " + what
'''


async def ruled_agent(product: Product, *rules: dict[str, Any], **fields: Any) -> str:
    """An agent with the tools look, book and pay; its id."""
    tools = [await product.tool(SOURCE.format(name=name)) for name in ("look", "book", "pay")]
    agent = await product.agent(tools=tools, tool_rules=list(rules), **fields)
    return agent.id


async def send(product: Product, agent_id: str) -> list[dict[str, Any]]:
    """One turn; its messages."""
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go."})
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"]


def results_in(messages: list[dict[str, Any]]) -> list[str]:
    returned = [one for one in messages if one["message_type"] == "tool_return_message"]
    return [result["tool_return"] for one in returned for result in one["tool_returns"]]


def offered(request: ReceivedRequest) -> set[str]:
    """The tools that a request on the OpenAI chat wire offers."""
    return {tool["function"]["name"] for tool in request.body.get("tools", [])}


def forces(request: ReceivedRequest) -> bool:
    """Whether a request makes the model call a tool, whatever its wire."""
    body: Any = request.body
    if "contents" in body:
        return body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode") == "ANY"
    return str(body.get("tool_choice")).startswith(("required", "{'type': 'any'"))


@pytest.mark.parametrize("model", ONE_OF_EACH_WIRE)
async def test_the_first_call_is_forced_on_every_wire(product: Product, model: str) -> None:
    """The tools were limited, but the model was free to answer instead."""
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"}, model=model)
    product.models.play(Turn(calls=[Call("look", {})]), Turn(text="Done."))

    assert results_in(await send(product, agent_id)) == ["look nothing"]

    first, second = product.models.requests
    assert forces(first)
    assert not forces(second)


@pytest.mark.parametrize("model", ["deepseek/deepseek-reasoner", "zai/glm-4.6", "ollama/qwen3"])
async def test_a_model_that_answered_without_its_first_call_ended_its_turn(product: Product, model: str) -> None:
    """Where a call cannot be forced, or is not, the turn ended without it."""
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"}, model=model)
    product.models.play(Turn(text="I would rather not."), Turn(calls=[Call("look", {})]), Turn(text="Done."))

    messages = await send(product, agent_id)

    assert results_in(messages) == ["look nothing"]
    assert messages[-1]["content"] == "Done."
    asked = product.models.requests[1]
    assert offered(asked) == {"look"}
    assert forces(asked) is (model == "ollama/qwen3")
    assert "must call one of these tools: look." in str(asked.body["messages"][-1]["content"])


async def test_a_model_that_never_makes_a_call_that_must_come_ends_with_its_steps(product: Product) -> None:
    agent_id = await ruled_agent(product, {"type": "run_first", "tool_name": "look"}, model="zai/glm-4.6")
    product.models.play(*[Turn(text="No.") for _ in range(3)])

    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go.", "max_steps": 3})

    assert answer.json()["stop_reason"]["stop_reason"] == "max_steps"


async def test_a_child_is_forced_behind_its_parent_with_the_arguments_of_the_rule(product: Product) -> None:
    rule = {
        "type": "constrain_child_tools",
        "tool_name": "look",
        "children": ["book"],
        "child_arg_nodes": [{"name": "book", "args": {"what": "a seat"}}],
    }
    agent_id = await ruled_agent(product, rule)
    product.models.play(
        Turn(calls=[Call("look", {})]), Turn(calls=[Call("book", {"what": "a yacht"})]), Turn(text="Done.")
    )

    assert results_in(await send(product, agent_id)) == ["look nothing", "book a seat"]

    first, second, third = product.models.requests
    assert [forces(request) for request in (first, second, third)] == [False, True, False]
    assert offered(second) == {"book"}


async def test_a_call_that_no_rule_allows_is_not_made(product: Product) -> None:
    agent_id = await ruled_agent(product, {"type": "parent_last_tool", "tool_name": "book", "children": ["pay"]})
    product.models.play(Turn(calls=[Call("pay", {})]), Turn(text="Done."))

    [result] = results_in(await send(product, agent_id))

    assert result == "Error: the tool rules do not allow a call of 'pay' now. Allowed: book, look."


async def test_a_result_decides_what_comes_next(product: Product) -> None:
    rule = {
        "type": "conditional",
        "tool_name": "look",
        "child_output_mapping": {"look free": "book", "look full": "pay"},
    }
    agent_id = await ruled_agent(product, rule)
    product.models.play(
        Turn(calls=[Call("look", {"what": "free"})]), Turn(calls=[Call("book", {})]), Turn(text="Done.")
    )

    await send(product, agent_id)

    assert offered(product.models.requests[1]) == {"book"}
    assert forces(product.models.requests[1])


async def test_a_turn_does_not_end_before_what_it_requires(product: Product) -> None:
    agent_id = await ruled_agent(
        product,
        {"type": "required_before_exit", "tool_name": "pay"},
        {"type": "exit_loop", "tool_name": "book"},
    )
    product.models.play(
        Turn(calls=[Call("book", {})]), Turn(text="That is all."), Turn(calls=[Call("pay", {})]), Turn(text="Paid.")
    )

    messages = await send(product, agent_id)

    assert results_in(messages) == ["book nothing", "pay nothing"]
    assert messages[-1]["content"] == "Paid."
    asked = product.models.requests[2]
    assert offered(asked) == {"pay"}
    assert forces(asked)
    assert "have not called pay" in str(asked.body["messages"][-1]["content"])


async def test_rules_know_what_was_called_before_an_approval(product: Product) -> None:
    """A decision makes a new run, which had called nothing: the first tool was asked for again."""
    agent_id = await ruled_agent(
        product,
        {"type": "run_first", "tool_name": "look"},
        {"type": "requires_approval", "tool_name": "look"},
        {"type": "constrain_child_tools", "tool_name": "look", "children": ["pay"]},
    )
    product.models.play(Turn(calls=[Call("look", {}, id="c1")]))
    await send(product, agent_id)
    product.models.play(Turn(calls=[Call("pay", {})]), Turn(text="Done."))

    approve: Any = {"type": "approval", "approvals": [{"type": "approval", "tool_call_id": "c1", "approve": True}]}
    await product.client.agents.messages.create(agent_id, messages=[approve])

    assert offered(product.models.requests[1]) == {"pay"}
    assert offered(product.models.requests[2]) == {"look", "book", "pay"}


async def test_a_rule_about_a_tool_that_the_agent_lacks_is_refused(product: Product) -> None:
    """It was accepted, and the model was offered no tool at all."""
    rule: Any = {"type": "run_first", "tool_name": "nonexistent"}
    with pytest.raises(BadRequestError, match="names the tool 'nonexistent'"):
        await ruled_agent(product, rule)
    agent_id = await ruled_agent(product)
    with pytest.raises(BadRequestError, match="names the tool 'nonexistent'"):
        await product.client.agents.update(agent_id, tool_rules=[rule])
