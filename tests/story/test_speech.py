"""Agents of the older kinds speak through `send_message`: what they say is shown as text, and not as a call."""

from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.frame_reader import read_whole
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE, broken_rules

pytestmark = pytest.mark.shared_product

SAID = 'Hello "Ada", the kettle is on: \\ 100 °C — tea at four.'


async def speaking_agent(product: Product, model: str = "openai/gpt-4o-mini") -> str:
    answer = await product.http.post("/v1/agents/", json={"model": model, "agent_type": "memgpt_v2_agent"})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def shapes(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(one["message_type"], one.get("content")) for one in messages]


@pytest.mark.parametrize("model", ONE_OF_EACH_WIRE)
async def test_what_an_agent_says_is_text_and_ends_the_turn(product: Product, model: str) -> None:
    agent_id = await speaking_agent(product, model)
    product.models.play(Turn(calls=[Call("send_message", {"message": SAID})]))

    answer = (await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Tea?"})).json()

    assert shapes(answer["messages"]) == [("assistant_message", SAID)]
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    listed = await product.history(agent_id)
    assert shapes(listed)[1:] == [("user_message", "Tea?"), ("assistant_message", SAID)]
    product.models.play(Turn(calls=[Call("send_message", {"message": "Yes."})]))
    await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Again?"})
    assert [rule for request in product.models.requests for rule in broken_rules(request)] == []
    assert "kettle" in str(product.models.requests[-1].body), "the model sees its own call"


async def test_it_is_streamed_word_by_word_and_every_reader_gets_the_same(product: Product) -> None:
    agent_id = await speaking_agent(product)
    product.models.play(Turn(calls=[Call("send_message", {"message": SAID})]))
    body = {"input": "Tea?", "streaming": True, "stream_tokens": True, "background": True}
    await product.http.post(f"/v1/agents/{agent_id}/messages", json=body)

    [run] = (await product.client.runs.list(agent_id=agent_id)).items
    whole = await read_whole(product.http, run.id)
    pieces = [frame["content"] for frame in whole.of_type("assistant_message")]
    assert len(pieces) > 3
    assert "".join(pieces) == SAID
    assert whole.of_type("tool_call_message") == whole.of_type("tool_return_message") == []
    whole.assert_complete()


async def test_a_client_that_does_not_want_text_gets_the_call(product: Product) -> None:
    agent_id = await speaking_agent(product)
    product.models.play(Turn(calls=[Call("send_message", {"message": SAID})]))

    body = {"input": "Tea?", "use_assistant_message": False}
    answer = (await product.http.post(f"/v1/agents/{agent_id}/messages", json=body)).json()

    assert [one["message_type"] for one in answer["messages"]] == ["tool_call_message", "tool_return_message"]


@pytest.mark.parametrize("stated", [[], [{"tool_name": "send_message", "type": "exit_loop"}]])
async def test_send_message_that_an_agent_has_by_id_ends_the_turn_too(
    product: Product, stated: list[dict[str, str]]
) -> None:
    [tool] = (await product.client.tools.list(name="send_message")).items
    body = {"model": "openai/gpt-4o-mini", "agent_type": "memgpt_v2_agent", "include_base_tools": False}
    made = await product.http.post("/v1/agents/", json={**body, "tool_ids": [tool.id], "tool_rules": stated})
    assert [rule["type"] for rule in made.json()["tool_rules"]] == ["exit_loop"]
    product.models.play(Turn(calls=[Call("send_message", {"message": SAID})]))

    answer = (await product.http.post(f"/v1/agents/{made.json()['id']}/messages", json={"input": "Tea?"})).json()

    assert shapes(answer["messages"]) == [("assistant_message", SAID)]
