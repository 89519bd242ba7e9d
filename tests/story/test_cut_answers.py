"""Answers that a model was cut off in: what it had more to say of is never run."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.model_calls import GOOGLE, HANDLES
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

SEND = """
def send(text: str) -> str:
    \"\"\"Send a text.\"\"\"
    return "sent " + text
"""

CALLS: dict[str, list[Call]] = {
    "a whole call": [Call("send", {"text": "abc"})],
    "two whole calls": [Call("send", {"text": "abc"}), Call("send", {"text": "def"})],
    "a cut call": [Call("send", '{"text": "abc')],
    "a whole call and a cut one": [Call("send", {"text": "abc"}), Call("send", '{"te')],
    "a call without arguments": [Call("send", "")],
    "a call of an unknown tool": [Call("transmit", {"text": "abc"})],
}


@pytest.mark.parametrize(
    ("finish", "stop_reason", "waits"),
    [
        ("length", "max_tokens_exceeded", False),
        ("length", "max_tokens_exceeded", True),
        ("content_filter", "error", False),
    ],
)
@pytest.mark.parametrize("calls", CALLS)
async def test_calls_of_an_answer_that_was_cut_off_were_run(
    product: Product, finish: Any, stop_reason: str, calls: str, waits: bool
) -> None:
    tool_id = await product.tool(SEND, default_requires_approval=waits)
    has_text = any(isinstance(call.arguments, str) for call in CALLS[calls])
    # Gemini's arguments are whole objects.
    for handle in (one for one in HANDLES if not has_text or one != GOOGLE):
        agent = await product.agent(model=handle, tools=[tool_id])
        asked_before = len(product.models.requests)
        product.models.play(Turn(calls=CALLS[calls], finish=finish), Turn(text="Here again."))

        cut = await product.client.agents.messages.create(agent_id=agent.id, input="Send it.")

        assert cut.stop_reason.stop_reason == stop_reason
        assert len(product.models.requests) == asked_before + 1
        returned = [message for message in cut.messages if message.message_type == "tool_return_message"]
        assert returned
        for message in returned:
            assert message.status == "error"
            assert "cut off" in str(message)
        after = await product.client.agents.messages.create(agent_id=agent.id, input="Go on.")
        assert after.stop_reason.stop_reason == "end_turn"
        assert "sent abc" not in str(product.models.requests[-1].body)


@pytest.mark.parametrize("by_tokens", [True, False])
async def test_a_call_that_was_cut_off_was_listed_as_one_that_a_person_is_asked_about(
    product: Product, by_tokens: bool
) -> None:
    free = await product.tool(SEND.replace("send", "post"))
    agent = await product.agent(tools=[free, await product.tool(SEND, default_requires_approval=True)])
    calls = [Call("post", {"text": "a"}), Call("send", {"text": "b"})]
    product.models.play(Turn(text="I do.", calls=calls, finish="length"))

    sent = {"input": "Send it.", "streaming": True, "stream_tokens": by_tokens}
    shown = (await product.http.post(f"/v1/agents/{agent.id}/messages", json=sent)).text

    assert "max_tokens_exceeded" in shown
    # What was shown before the end was known cannot be taken back.
    assert by_tokens or "approval_request_message" not in shown
    listed = (await product.http.get(f"/v1/agents/{agent.id}/messages")).json()
    [asked] = [one for one in listed if one["message_type"] in ("tool_call_message", "approval_request_message")]
    assert asked["message_type"] == "tool_call_message"
    assert [call["name"] for call in asked["tool_calls"]] == ["post", "send"]
    assert (await product.http.get("/v1/approvals", params={"agent_id": agent.id})).json() == []
