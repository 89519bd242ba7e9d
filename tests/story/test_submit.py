"""Submitting: a message becomes a run, and the run becomes an answer."""

import json

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product


async def test_a_plain_request_is_answered_when_its_run_has_ended(product: Product) -> None:
    product.models.say("Good morning.")
    agent = await product.agent()

    answer = await product.client.agents.messages.create(agent_id=agent.id, input="Hello")

    [said] = answer.messages
    assert said.message_type == "assistant_message"
    assert said.content == "Good morning."
    assert answer.stop_reason.stop_reason == "end_turn"
    assert answer.usage.total_tokens


async def test_an_async_request_is_answered_at_once_and_the_run_is_polled(product: Product) -> None:
    product.models.say("Good morning.")
    agent = await product.agent()

    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="Hello")
    assert run.status == "created"

    ended = await product.ended(run.id)
    assert (ended["status"], ended["stop_reason"]) == ("completed", "end_turn")
    assert [message["content"] for message in (await product.history(agent.id))[1:]] == ["Hello", "Good morning."]


async def test_the_frames_of_a_run_are_numbered_without_gaps(product: Product) -> None:
    product.models.play(Turn(text="one two three", calls=[Call("nothing", {})]), Turn(text="four five"))
    agent = await product.agent()
    body = {"input": "Hello", "streaming": True, "stream_tokens": True, "background": True}

    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)

    numbers = [int(line[4:]) for line in answer.text.splitlines() if line.startswith("id: ")]
    assert numbers == list(range(1, len(numbers) + 1))
    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [frame["seq_id"] for frame in frames] == numbers[:-1]
