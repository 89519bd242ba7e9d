"""What a model says now and then, and what its conversation is afterwards: it goes on, and the provider takes it."""

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.model_calls import GOOGLE, HANDLES
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
