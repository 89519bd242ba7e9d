"""Tools of OpenAI's API that the client runs and that are no plain functions: custom tools and namespaces.

Codex's command line declares its tools for other agents as a namespace, and its editor as a custom tool.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.responses_client import (
    SQUARE,
    assert_sound,
    created,
    output_of,
    responses_client,
    resumed,
    streamed,
)

pytestmark = pytest.mark.shared_product

PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "multi_agent",
    "description": "Tools for other agents.",
    "tools": [{**SQUARE, "name": "close"}, {"type": "custom", "name": "say"}],
}
EDIT = '*** Begin Patch\n"Grüße" \\ 🎉'


@pytest_asyncio.fixture(loop_scope="session")
async def openai(product: Product) -> AsyncGenerator[AsyncOpenAI]:
    async with responses_client(product.base_url, product.key) as client:
        yield client


def sent(product: Product) -> dict[str, Any]:
    """What the model was sent last."""
    return product.models.requests[-1].body


async def test_a_custom_tool_was_refused_as_if_it_ran_at_openai(product: Product, openai: AsyncOpenAI) -> None:
    product.models.play(Turn(calls=[Call("apply_patch", {"input": EDIT})]), Turn(text="Edited."))

    events = await streamed(openai, input="Edit.", tools=[PATCH], background=True)

    assert_sound(events)
    [function] = [one["function"] for one in sent(product)["tools"]]
    assert (
        function["description"] == 'Edits files.\n\nThe input must match this lark grammar:\nstart: "*** Begin Patch"'
    )
    assert function["parameters"]["required"] == ["input"]
    first = events[-1]["response"]
    assert first["tools"] == [PATCH]
    [call] = first["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", EDIT)
    inputs = [event for event in events if event["type"].startswith("response.custom_tool_call_input.")]
    assert [(event["type"].rpartition(".")[2], event.get("delta", event.get("input"))) for event in inputs] == [
        ("delta", EDIT),
        ("done", EDIT),
    ]
    assert await resumed(openai, first["id"]) == events

    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    second = await created(openai, input=[output], tools=[PATCH], previous_response_id=first["id"])
    assert second.output_text == "Edited."
    asked = sent(product)["messages"]
    assert json.loads(asked[1]["tool_calls"][0]["function"]["arguments"]) == {"input": EDIT}
    assert asked[2]["content"] == "done"


async def test_tools_of_a_namespace_were_refused(product: Product, openai: AsyncOpenAI) -> None:
    calls = [Call("square", {"n": 1}), Call("multi_agent__close", {"n": 2}), Call("multi_agent__say", {"input": "Hi"})]
    product.models.play(Turn(calls=calls), Turn(text="Closed."))

    first = await created(openai, input="Close it.", tools=[SQUARE, AGENTS])

    offered = {one["function"]["name"]: one["function"]["description"] for one in sent(product)["tools"]}
    assert offered == {
        "square": "Squares a number.",
        "multi_agent__close": "Tools for other agents.\n\nSquares a number.",
        "multi_agent__say": "",
    }
    plain, close, say = (item.to_dict() for item in first.output)
    assert "namespace" not in plain
    assert (close["type"], close["namespace"], close["name"]) == ("function_call", "multi_agent", "close")
    assert (say["type"], say["namespace"], say["name"], say["input"]) == (
        "custom_tool_call",
        "multi_agent",
        "say",
        "Hi",
    )
    assert [tool.to_dict() for tool in first.tools] == [SQUARE, AGENTS]


async def test_a_client_repeats_its_calls_of_custom_tools_and_namespaces(product: Product, openai: AsyncOpenAI) -> None:
    calls = [Call("multi_agent__close", {"n": 2}), Call("apply_patch", {"input": EDIT})]
    product.models.play(Turn(calls=calls), Turn(text="Done."))
    story: list[Any] = [{"role": "user", "content": "Go."}]
    first = await created(openai, input=story, tools=[AGENTS, PATCH], store=False)
    story += [item.to_dict() for item in first.output]
    story += [output_of(str(first.output[0].to_dict()["call_id"]), "2")]
    story += [{"type": "custom_tool_call_output", "call_id": first.output[1].to_dict()["call_id"], "output": "ok"}]

    second = await created(openai, input=story, tools=[AGENTS, PATCH], store=False)

    assert second.output_text == "Done."
    [_, asked, *results] = sent(product)["messages"]
    assert [one["function"]["name"] for one in asked["tool_calls"]] == ["multi_agent__close", "apply_patch"]
    assert [one["content"] for one in results] == ["2", "ok"]


@pytest.mark.parametrize(
    ("chosen", "called"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "close", "namespace": "multi_agent"}, "multi_agent__close"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "say"}]}, "say"),
    ],
)
async def test_a_custom_tool_is_chosen(
    product: Product, openai: AsyncOpenAI, chosen: dict[str, Any], called: str
) -> None:
    product.models.play(Turn(calls=[Call(called, {"input": "x", "n": 1})]))
    await created(openai, input="Go.", tools=[AGENTS, PATCH, {"type": "custom", "name": "say"}], tool_choice=chosen)
    assert sent(product)["tool_choice"] == {"type": "function", "function": {"name": called}}


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": []}, "the tool type"),
        ({"type": {"a": 1}}, "the tool type"),
        ({"type": "custom"}, r"tools\[0\].name"),
        ({**PATCH, "format": {"type": "lines"}}, r"tools\[0\].format.type"),
        ({"type": "namespace", "name": "n", "tools": []}, r"tools\[0\].tools"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, r"tools\[0\].tools\[0\].name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}, r"tools\[0\].tools\[0\]"),
    ],
)
async def test_a_wrong_tool_is_named_by_its_place(openai: AsyncOpenAI, tool: dict[str, Any], place: str) -> None:
    with pytest.raises(BadRequestError, match=place) as refused:
        await created(openai, input="Go.", tools=[tool])
    assert refused.value.param == "tools"


async def test_namespaces_evaded_the_limit_on_the_tools_of_a_client(openai: AsyncOpenAI) -> None:
    many = [{**AGENTS, "name": f"n{number}", "tools": [SQUARE] * 250} for number in range(5)]
    with pytest.raises(BadRequestError, match="at most 1000 tools, those of namespaces included"):
        await created(openai, input="Go.", tools=many)
