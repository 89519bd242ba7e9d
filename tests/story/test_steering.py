"""Steering: new messages for a run that is under way, and what a busy history does with them."""

import asyncio
import json
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.provider_rules.request import check_request
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

WAIT = '''
def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: how long
    """
    import time

    time.sleep(seconds)
    return "waited"
'''


async def _busy_agent(product: Product, *turns: Turn) -> tuple[str, str]:
    """An agent with a run that has asked its model; their ids."""
    product.models.play(*turns)
    agent = await product.agent(tools=[await product.tool(WAIT)])
    run = await product.client.agents.messages.create_async(agent_id=agent.id, input="First")
    await wait_until(lambda: product.models.requests, description="the model to be asked")
    return agent.id, run.id


def _user_texts(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"] if message["role"] == "user"]


async def _send(product: Product, agent_id: str, text: str, if_busy: str, **body: Any) -> Any:
    headers = {"X-Holdfast-If-Busy": if_busy}
    return await product.http.post(
        f"/v1/agents/{agent_id}/messages/async", json={"input": text, **body}, headers=headers
    )


async def test_an_injected_message_is_in_the_next_step_in_order_and_shows_in_the_stream(product: Product) -> None:
    resume = asyncio.Event()
    calling = Turn(calls=[Call("wait", {"seconds": 0.1})], silent_before_headers=60, resume=resume)
    agent_id, run_id = await _busy_agent(product, calling, Turn(text="Both seen."))

    for text in ("Also this", "And that"):
        answer = await product.http.post(f"/v1/runs/{run_id}/inject", json={"input": text})
        assert answer.status_code == 200, answer.text
    resume.set()
    await product.ended(run_id)

    assert _user_texts(product.models.requests[1].body) == ["First", "Also this", "And that"]
    assert check_request("/chat/completions", product.models.requests[1].body) == []
    stream = await product.http.post(f"/v1/runs/{run_id}/stream", json={})
    frames = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    assert [f["content"] for f in frames if f["message_type"] == "user_message"] == ["Also this", "And that"]
    assert [m["content"] for m in await product.history(agent_id) if m["message_type"] == "user_message"] == [
        "First",
        "Also this",
        "And that",
    ]


async def test_a_message_injected_during_the_last_answer_is_answered_by_one_more_step(product: Product) -> None:
    resume = asyncio.Event()
    first = Turn(text="Nearly done.", silent_before_headers=60, resume=resume)
    _, run_id = await _busy_agent(product, first, Turn(text="Now done."))

    await product.http.post(f"/v1/runs/{run_id}/inject", json={"input": "One more thing"})
    resume.set()
    run = await product.ended(run_id)

    assert run["stop_reason"] == "end_turn"
    assert _user_texts(product.models.requests[1].body) == ["First", "One more thing"]


async def test_a_run_that_has_ended_refuses_an_injected_message(product: Product) -> None:
    _, run_id = await _busy_agent(product, Turn(text="Done."))
    await product.ended(run_id)

    answer = await product.http.post(f"/v1/runs/{run_id}/inject", json={"input": "Too late"})

    assert answer.status_code == 409
    assert run_id in answer.json()["detail"]


async def test_an_agent_queues_by_default_and_keeps_the_order(product: Product) -> None:
    resume = asyncio.Event()
    first = Turn(text="one", silent_before_headers=60, resume=resume)
    agent_id, _ = await _busy_agent(product, first, Turn(text="two"), Turn(text="3"))

    second = await product.client.agents.messages.create_async(agent_id=agent_id, input="Second")
    third = await product.client.agents.messages.create_async(agent_id=agent_id, input="Third")
    resume.set()
    await product.ended(third.id)

    assert (await product.run(second.id))["status"] == "completed"
    said = [message["content"] for message in (await product.history(agent_id))[1:]]
    assert said == ["First", "one", "Second", "two", "Third", "3"]


async def test_reject_names_the_run_that_is_in_the_way(product: Product) -> None:
    resume = asyncio.Event()
    agent_id, run_id = await _busy_agent(product, Turn(text="one", silent_before_headers=60, resume=resume))

    answer = await _send(product, agent_id, "Second", "reject")
    resume.set()

    assert answer.status_code == 409
    assert answer.json()["run_id"] == run_id


@pytest.mark.parametrize("policy", ["interrupt", "rollback"])
async def test_a_new_message_can_take_the_place_of_the_run_in_hand(product: Product, policy: str) -> None:
    agent_id, run_id = await _busy_agent(product, Turn(text="never", silent_before_headers=30.0), Turn(text="Yes."))

    answer = await _send(product, agent_id, "Instead", policy)
    await product.ended(answer.json()["id"])

    assert (await product.run(run_id))["status"] == "cancelled"
    await wait_until(lambda: product.models.requests[0].client_left, description="the first call to be closed")
    texts = [m["content"] for m in await product.history(agent_id) if m["message_type"] == "user_message"]
    assert texts == (["Instead"] if policy == "rollback" else ["First", "Instead"])


async def test_inject_as_policy_gives_the_message_to_the_run_in_hand(product: Product) -> None:
    resume = asyncio.Event()
    calling = Turn(calls=[Call("wait", {"seconds": 0.1})], silent_before_headers=60, resume=resume)
    agent_id, run_id = await _busy_agent(product, calling, Turn(text="ok"))

    answer = await _send(product, agent_id, "By the way", "inject")
    resume.set()

    assert answer.json()["id"] == run_id
    await product.ended(run_id)
    assert _user_texts(product.models.requests[1].body) == ["First", "By the way"]


async def test_status_events_are_shown_to_those_who_ask(product: Product) -> None:
    product.models.play(Turn(text="one two three", silent_before_headers=30.0))
    agent = await product.agent()
    headers = {"X-Holdfast-Status-Events": "true"}
    url = f"/v1/agents/{agent.id}/messages/async"
    run_id = (await product.http.post(url, json={"input": "Hello"}, headers=headers)).json()["id"]
    await wait_until(lambda: product.models.requests, description="the model to be asked")

    await product.http.post(f"/v1/runs/{run_id}/cancel", json={"reason": "enough"})
    seen = await product.http.post(f"/v1/runs/{run_id}/stream", json={}, headers=headers)
    plain = await product.http.post(f"/v1/runs/{run_id}/stream", json={})

    frames = [json.loads(line[6:]) for line in seen.text.splitlines() if line.startswith("data: {")]
    shown = [(f["status"], f["cause"]) for f in frames if f["message_type"] == "run_status"]
    assert shown == [("created", None), ("running", None), ("cancelling", "user"), ("cancelled", "user")]
    assert "run_status" not in plain.text
    unaware = [json.loads(line[6:]) for line in plain.text.splitlines() if line.startswith("data: {")]
    assert [frame["seq_id"] for frame in unaware] == list(range(1, len(unaware) + 1))
    run = await product.run(run_id)
    assert (run["metadata"]["cancel"]["reason"], run["metadata"]["cause"]) == ("enough", "user")


async def test_the_same_otid_at_the_same_instant_is_one_run(product: Product) -> None:
    product.models.say("Once.")
    agent = await product.agent()
    body = {"messages": [{"role": "user", "content": "Hello", "otid": "5f2b1d0e-0000-4000-8000-000000000001"}]}

    answers = await asyncio.gather(
        *(product.http.post(f"/v1/agents/{agent.id}/messages/async", json=body) for _ in range(4))
    )

    assert len({answer.json()["id"] for answer in answers}) == 1
    await product.ended(answers[0].json()["id"])
    again = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)
    assert [m["content"] for m in again.json()["messages"]] == ["Once."]
    assert len(product.models.requests) == 1
