"""Turns that a program had with a model by itself, and brings afterwards (`messages/capture`)."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.tools import ROLL_DICE

LONGEST = 1000

CAPTURED: dict[str, Any] = {"success": True, "messages_created": 2, "run_ids": []}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"max_message_chars": LONGEST}


async def capture(product: Product, agent_id: str, *asked: Any, answer: Any = "Hello, Ada.") -> Any:
    """What the server answers to a captured turn. `asked` are the request's messages, or texts of users."""
    sent: list[dict[str, Any]] = [
        message if isinstance(message, dict) else {"role": "user", "content": message} for message in asked
    ]
    body: dict[str, Any] = {
        "provider": "openai",
        "model": "gpt-5",
        "request_messages": sent,
        "response_dict": {"content": answer},
    }
    return await product.http.post(f"/v1/agents/{agent_id}/messages/capture", json=body)


async def told(product: Product, agent_id: str) -> list[tuple[str, Any]]:
    return [
        (message["message_type"], message["content"])
        for message in await product.history(agent_id)
        if message["message_type"] in ("user_message", "assistant_message")
    ]


async def test_a_captured_turn_was_a_404_and_what_the_user_had_said_was_lost(product: Product) -> None:
    agent = await product.agent()
    answer = await capture(product, agent.id, "I am Ada.")
    assert (answer.status_code, answer.json()) == (200, CAPTURED)
    assert await told(product, agent.id) == [("user_message", "I am Ada."), ("assistant_message", "Hello, Ada.")]
    assert (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json() == [], "no run is made"

    product.models.say("Ada.")
    await product.client.agents.messages.create(agent_id=agent.id, input="Who am I?")
    sent = [message["content"] for message in product.models.requests[-1].body["messages"][1:]]
    assert sent == ["I am Ada.", "Hello, Ada.", "Who am I?"], "the next run knows of it"
    found = await product.http.post("/v1/messages/search", json={"query": "Ada"})
    assert len(found.json()) == 3


async def test_of_what_a_program_sends_along_only_the_users_words_are_kept(product: Product) -> None:
    agent = await product.agent()
    parts = [{"type": "text", "text": "And this."}]
    answer = await capture(
        product,
        agent.id,
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Earlier."},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "One."},
        {"role": "user", "content": parts},
        answer=None,
    )
    assert (answer.status_code, answer.json()["messages_created"]) == (200, 2)
    assert await told(product, agent.id) == [("user_message", "One."), ("user_message", parts)]
    empty = await capture(product, agent.id, answer=None)
    assert (empty.status_code, empty.json()["messages_created"]) == (200, 0)


@pytest.mark.parametrize(
    ("asked", "answer", "named"),
    [
        ([{"role": "user", "content": 5}], "Yes.", "request_messages[0].content"),
        ([{"role": "user", "content": [{"type": "video"}]}], "Yes.", "request_messages[].content[0]"),
        ([{"role": "user", "content": ["Hello"]}], "Yes.", "request_messages[0].content"),
        (["Hello"], [{"type": "text", "text": "Yes."}], "response_dict.content"),
        (["x" * (LONGEST + 1)], "Yes.", "request_messages[0]"),
        (["Hello"], "x" * (LONGEST + 1), "response_dict.content"),
    ],
)
async def test_a_turn_that_cannot_be_kept_is_refused_whole(
    product: Product, asked: list[Any], answer: Any, named: str
) -> None:
    agent = await product.agent()
    refused = await capture(product, agent.id, *asked, answer=answer)
    assert refused.status_code in (400, 422)
    assert named in str(refused.json()["detail"])
    assert await told(product, agent.id) == []


async def test_an_agent_that_is_not_there_captures_nothing(product: Product) -> None:
    agent = await product.agent()
    await product.client.agents.delete(agent.id)
    assert (await capture(product, agent.id, "Hello")).status_code == 404


async def test_a_turn_that_is_captured_while_a_call_waits_does_not_part_the_call_from_its_result(
    product: Product,
) -> None:
    """A provider refuses a history in which a user speaks between the two."""
    tool = await product.tool(ROLL_DICE, default_requires_approval=True)
    agent = await product.agent(tools=[tool])
    product.models.play(Turn(calls=[Call("roll_dice", {"num_sides": 6}, id="call_1")]), Turn(text="Rolled."))
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Roll.")
    await product.ended(run.id)
    assert (await capture(product, agent.id, "Meanwhile.", answer="Yes.")).json() == CAPTURED
    waiting = (await product.http.get("/v1/approvals")).json()
    decision = {"type": "approval", "tool_call_id": waiting[0]["tool_call_id"], "approve": True}
    approval = {"type": "approval", "approvals": [decision]}
    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"messages": [approval]})
    assert answer.status_code == 200, answer.text
    product.models.say("Good.")
    await product.client.agents.messages.create(agent_id=agent.id, input="And now?")

    roles = [message["role"] for message in product.models.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user"]
