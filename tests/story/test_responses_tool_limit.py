"""`max_tool_calls`: how many calls of an agent's own tools one response makes."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import SQUARE, assert_sound, created, responses_client, streamed
from tests.kit.tools import LAUNCH, ROLL_DICE

pytestmark = pytest.mark.shared_product

ROLL = Call("roll_dice", {"num_sides": 6})


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def sent(product: Product) -> dict[str, Any]:
    """What the model was sent last."""
    return product.models.requests[-1].body


def statuses(output: list[dict[str, Any]]) -> list[str]:
    return [item["status"] for item in output if item["type"] == "mcp_call"]


@pytest.mark.parametrize("together", [True, False])
async def test_more_calls_of_one_answer_than_allowed_are_not_made(
    product: Product, openai: AsyncOpenAI, together: bool
) -> None:
    product.models.play(Turn(calls=[ROLL, ROLL, ROLL]), Turn(text="Sixes."))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE, enable_parallel_execution=together)])
    events = await streamed(openai, model=agent.id, input="Roll.", max_tool_calls=2)
    assert_sound(events)
    response = events[-1]["response"]
    assert response["max_tool_calls"] == 2
    assert statuses(response["output"]) == ["completed", "completed", "failed"]
    assert "max_tool_calls" in str(response["output"][2]["error"])
    assert response["output"][-1]["content"][0]["text"] == "Sixes."
    assert sent(product).get("tool_choice") == "none"


async def test_the_limit_holds_over_all_answers_of_a_response_and_no_longer(
    product: Product, openai: AsyncOpenAI
) -> None:
    product.models.play(Turn(calls=[ROLL]), Turn(calls=[ROLL]), Turn(calls=[ROLL]), Turn(text="Enough."))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    first = (await created(openai, model=agent.id, input="Roll.", max_tool_calls=2)).to_dict()
    output: Any = first["output"]
    assert statuses(output) == ["completed", "completed", "failed"], "a model that calls all the same is refused"
    product.models.play(Turn(calls=[ROLL]), Turn(text="Again."))
    then = await created(openai, model=agent.id, input="Roll.", previous_response_id=str(first["id"]), max_tool_calls=1)
    assert [item.type for item in then.output] == ["mcp_call", "message"]
    assert then.output_text == "Again."


async def test_the_clients_functions_are_not_counted(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[ROLL]), Turn(calls=[Call("square", {"n": 3})]))
    agent = await product.agent(tools=[await product.tool(ROLL_DICE)])
    response = await created(openai, model=agent.id, input="Roll.", max_tool_calls=1, tools=[SQUARE])
    assert [item.type for item in response.output] == ["mcp_call", "function_call"]
    assert [tool["function"]["name"] for tool in sent(product)["tools"]] == ["square"]


async def test_a_rule_demands_no_call_that_is_not_allowed_any_more(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[ROLL]), Turn(text="Rolled."))
    tools = [await product.tool(ROLL_DICE), await product.tool(LAUNCH)]
    rules = [{"type": "required_before_exit", "tool_name": "launch"}]
    agent = await product.agent(tools=tools, tool_rules=rules)
    response = await created(openai, model=agent.id, input="Roll.", max_tool_calls=1)
    assert (response.status, response.output_text) == ("completed", "Rolled.")


async def test_calls_that_a_person_approved_count_where_they_are_made(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("launch", {"target": "moon"}), Call("launch", {"target": "mars"})]))
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=True)])
    first = await created(openai, model=agent.id, input="Launch.", max_tool_calls=1)
    assert [item.type for item in first.output] == ["mcp_approval_request"] * 2
    product.models.play(Turn(text="Done."))
    verdicts: list[Any] = [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True} for item in first.output
    ]
    then = await created(openai, model=agent.id, input=verdicts, previous_response_id=first.id, max_tool_calls=1)
    output: Any = then.to_dict()["output"]
    assert statuses(output) == ["completed", "failed"]
    assert output[0]["output"] == "moon"
