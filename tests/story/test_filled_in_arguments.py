"""Arguments that a rule fills in: a person is asked about them as they will run, and changes them for good."""

import json
from typing import Any

import pytest

from shared.domain.approvals import hash_of
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting
from tests.story.test_tool_rules import results_in, ruled_agent, send

pytestmark = pytest.mark.shared_product

FIRST = {"type": "run_first", "tool_name": "book", "args": {"what": "a yacht"}}
CHILD = {
    "type": "constrain_child_tools",
    "tool_name": "look",
    "children": ["book"],
    "child_arg_nodes": [{"name": "book", "args": {"what": "a yacht"}}],
}
BEFORE = {"run_first": [], "constrain_child_tools": [Turn(calls=[Call("look", {})])]}


@pytest.mark.parametrize("rule", [FIRST, CHILD])
@pytest.mark.parametrize("by_tokens", [True, False])
@pytest.mark.parametrize("edited", [None, "a canoe"])
async def test_what_a_rule_filled_in_was_not_shown_and_went_over_an_edit(
    product: Product, rule: dict[str, Any], by_tokens: bool, edited: str | None
) -> None:
    agent_id = await ruled_agent(product, rule, {"type": "requires_approval", "tool_name": "book"})
    turns = BEFORE[rule["type"]]
    product.models.play(*turns, Turn(calls=[Call("book", {"what": "a seat"})]), Turn(text="Done."))
    sent = {"input": "Go.", "streaming": True, "stream_tokens": by_tokens}
    streamed = await product.http.post(f"/v1/agents/{agent_id}/messages", json=sent)

    [asked] = await waiting(product)
    assert asked["arguments_object"] == {"what": "a yacht"}
    assert asked["arguments_hash"] == hash_of(asked["arguments"])
    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    pieces = [one["tool_call"].get("arguments") for one in frames if one["message_type"] == "approval_request_message"]
    assert json.loads("".join(piece for piece in pieces if piece)) == {"what": "a yacht"}
    change = {} if edited is None else {"arguments": {"what": edited}}
    body = {"decision": "approve", "arguments_hash": asked["arguments_hash"], **change}
    decided = await product.http.post(f"/v1/approvals/{asked['id']}", json=body)
    await product.ended(decided.json()["run"]["id"])

    result = results_in(await product.history(agent_id))[-1]
    assert result.splitlines()[-1] == f"book {edited or 'a yacht'}"
    assert result.startswith("[The user changed") is (edited is not None)


async def test_a_call_that_asks_nobody_is_still_filled_in(product: Product) -> None:
    agent_id = await ruled_agent(product, FIRST)
    product.models.play(Turn(calls=[Call("book", {"what": "a seat"})]), Turn(text="Done."))
    assert results_in(await send(product, agent_id)) == ["book a yacht"]
