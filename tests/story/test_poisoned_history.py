"""What a model says now and then, and what its conversation is afterwards: it goes on, and the provider takes it."""

import json

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.frames import event
from tests.kit.model_server.model_calls import ANTHROPIC, GOOGLE, HANDLES
from tests.kit.product import Product
from tests.kit.provider_rules.request import broken_rules

pytestmark = pytest.mark.shared_product

LOOK = """
def look(place: str) -> str:
    \"\"\"Look at a place.\"\"\"
    return "There is " + place
"""

SAID: dict[str, list[Turn]] = {
    "a call in thousands of brackets": [Turn(calls=[Call("look", '{"place": ' + "[" * 4000)], finish="length")],
    "such a call that is whole": [
        Turn(calls=[Call("look", '{"place": ' + "[" * 4000 + "]" * 4000 + "}")]),
        Turn("Ah."),
    ],
    "a tool of another program": [Turn(calls=[Call("multi_tool_use.parallel", {"tool_uses": []})]), Turn("Ah.")],
    "a name in words": [
        Turn(reasoning="Hm.", calls=[Call("look at it", {}), Call("look", {"place": "it"})]),
        Turn("Ah."),
    ],
    "reasoning alone": [Turn(reasoning="Hm, let me see.", finish="length")],
    "a refusal in the reasoning": [Turn(reasoning="Hm, let me see.", finish="content_filter")],
    "blank text before a call": [
        Turn(reasoning="Hm.", text="\n\n", calls=[Call("look", {"place": "it"})]),
        Turn("Ah."),
    ],
    "an object in a text": [Turn(calls=[Call("look", json.dumps('{"place": "it"}'))]), Turn("Ah.")],
    "null in place of an object": [Turn(calls=[Call("look", "null")]), Turn("Ah.")],
    "blank text alone": [Turn(text="\n")],
}


@pytest.mark.parametrize("said", SAID)
async def test_what_a_model_said_ended_the_conversation(product: Product, said: str) -> None:
    tool_id = await product.tool(LOOK)
    has_text = any(isinstance(call.arguments, str) for turn in SAID[said] for call in turn.calls)
    # Gemini's arguments are whole objects.
    for handle in (one for one in HANDLES if not has_text or one != GOOGLE):
        agent = await product.agent(model=handle, tools=[tool_id])
        asked_before = len(product.models.requests)
        product.models.play(*SAID[said], Turn(text="Here again."))

        first = await product.client.agents.messages.create(agent_id=agent.id, input="Look.")
        after = await product.client.agents.messages.create(agent_id=agent.id, input="Go on.")

        assert first.stop_reason.stop_reason in ("end_turn", "max_tokens_exceeded", "error")
        assert after.stop_reason.stop_reason == "end_turn"
        assert "Here again." in str(after.messages)
        for request in product.models.requests[asked_before:]:
            assert broken_rules(request) == []


async def test_an_object_that_a_model_wrote_as_a_text_is_what_the_tool_gets(product: Product) -> None:
    tool_id = await product.tool(LOOK)
    agent = await product.agent(tools=[tool_id])
    product.models.play(Turn(calls=[Call("look", json.dumps('{"place": "Rome"}'))]), Turn("Ah."))
    await product.client.agents.messages.create(agent_id=agent.id, input="Look.")
    *_, called, result = product.models.requests[-1].body["messages"]
    assert called["tool_calls"][0]["function"]["arguments"] == '{"place": "Rome"}'
    assert "There is Rome" in result["content"]


async def test_a_run_failed_whose_model_had_nothing_to_add_to_a_result(product: Product) -> None:
    agent = await product.agent(model=ANTHROPIC, tools=[await product.tool(LOOK)])
    begun = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}}
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
    silent = Turn(raw=(event(begun), event(ended), event({"type": "message_stop"})))
    product.models.play(Turn(calls=[Call("look", {"place": "Rome"})]), silent, Turn(text="Here again."))

    first = await product.client.agents.messages.create(agent_id=agent.id, input="Look, and say nothing.")
    after = await product.client.agents.messages.create(agent_id=agent.id, input="Go on.")

    assert (first.stop_reason.stop_reason, after.stop_reason.stop_reason) == ("end_turn", "end_turn")
    assert first.usage.completion_tokens == 5 + 3
    for request in product.models.requests:
        assert broken_rules(request) == []
