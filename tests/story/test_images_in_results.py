"""Tools that clients run may answer with images, which are stored, shown again as they came, and sent to the model."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE

pytestmark = pytest.mark.shared_product

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CAMERA: dict[str, Any] = {
    "name": "take_picture",
    "description": "Takes one.",
    "parameters": {"type": "object", "properties": {}},
}
PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "From the roof:"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
]


async def _asked(product: Product, model: str) -> tuple[str, str]:
    """An agent whose model waits for a picture, and the id of the call."""
    product.models.play(Turn(calls=[Call("take_picture")]))
    product.models.say("A roof.")
    agent = await product.agent(model=model)
    url = f"/v1/agents/{agent.id}/messages"
    answer = await product.http.post(url, json={"input": "What do you see?", "client_tools": [CAMERA]})
    return agent.id, answer.json()["messages"][-1]["tool_call"]["tool_call_id"]


@pytest.mark.parametrize("kind", ["approval", "tool_return"])
@pytest.mark.parametrize("model", ONE_OF_EACH_WIRE)
async def test_images_in_a_tools_result_were_dropped(product: Product, model: str, kind: str) -> None:
    agent_id, call_id = await _asked(product, model)
    result: dict[str, Any] = {"type": "tool", "tool_call_id": call_id, "tool_return": PARTS, "status": "success"}
    field = "approvals" if kind == "approval" else "tool_returns"

    answer = await product.http.post(
        f"/v1/agents/{agent_id}/messages",
        json={"messages": [{"type": kind, field: [result]}], "client_tools": [CAMERA]},
    )

    assert answer.json()["messages"][-1]["content"] == "A roof."
    body = json.dumps(product.models.requests[1].body).replace("-", "+").replace("_", "/")
    assert body.count(PIXEL.rstrip("=")[:60]) == 1
    shown = await product.history(agent_id)
    [decided] = [one for one in shown if one["message_type"] == "approval_response_message"]
    [returned] = [one for one in shown if one["message_type"] == "tool_return_message"]
    assert decided["approvals"][0]["tool_return"] == PARTS
    assert returned["tool_returns"][0]["tool_return"] == PARTS
    assert returned["tool_return"] == "From the roof:\n[Image omitted]", "the older field is text"


async def test_an_approval_may_bring_images_too(product: Product) -> None:
    agent_id, _ = await _asked(product, "anthropic/claude-haiku-4-5-20251001")
    [waiting] = (await product.http.get("/v1/approvals", params={"agent_id": agent_id})).json()

    decided = await product.http.post(
        f"/v1/approvals/{waiting['id']}", json={"decision": "tool_return", "tool_return": PARTS}
    )

    assert decided.status_code == 200, decided.text
    assert decided.json()["decision"]["tool_return"] == PARTS
    await product.ended(decided.json()["run"]["id"])
    assert PIXEL in json.dumps(product.models.requests[1].body)


@pytest.mark.parametrize(
    "part", [{"type": "image"}, {"type": "image", "source": {"type": "letta"}}, "text", {"text": 5}]
)
async def test_a_part_that_is_none_is_refused_by_its_place(product: Product, part: Any) -> None:
    agent_id, call_id = await _asked(product, "openai/gpt-4o-mini")
    result: dict[str, Any] = {"type": "tool", "tool_call_id": call_id, "tool_return": [PARTS[0], part]}

    answer = await product.http.post(
        f"/v1/agents/{agent_id}/messages", json={"messages": [{"type": "tool_return", "tool_returns": [result]}]}
    )

    assert answer.status_code == 400
    assert "tool_return[1]" in answer.text
