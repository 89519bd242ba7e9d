"""A model that fails: the same error everywhere it shows, and the agent goes on."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Failure, Turn
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

KINDS: dict[str, tuple[str, int]] = {
    "rate_limit": ("llm_rate_limit", 503),
    "auth": ("llm_authentication", 502),
    "bad_request": ("llm_bad_request", 400),
    "context": ("context_window_exceeded", 400),
    "server": ("llm_error", 500),
    "overloaded": ("llm_error", 500),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_plain_request_gets_the_errors_status(product: Product, kind: Any) -> None:
    error_type, status = KINDS[kind]
    product.models.play(Turn(failure=Failure(kind)))
    agent = await product.agent()

    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello"})

    assert answer.status_code == status, answer.text
    if error_type == "context_window_exceeded":
        assert answer.json()["detail"].startswith("CONTEXT_WINDOW_EXCEEDED")
    else:
        assert answer.json()["error"]["type"] == error_type
    [run] = (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json()
    assert (run["status"], run["stop_reason"]) == ("failed", "llm_api_error")
    assert run["metadata"]["error"]["error_type"] == error_type


@pytest.mark.parametrize(
    "turn", [Turn(failure=Failure("server")), Turn(text="one two three", break_="drop", break_after=2)]
)
async def test_a_stream_ends_with_the_error_that_the_run_keeps(product: Product, turn: Turn) -> None:
    product.models.play(turn, Turn(text="Back again."))
    agent = await product.agent()
    body = {"input": "Hello", "streaming": True, "stream_tokens": True, "background": True}

    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)

    frames = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    tail = [frame["message_type"] for frame in frames[-3:]]
    assert tail == ["stop_reason", "usage_statistics", "error_message"]
    assert answer.text.rstrip().endswith("data: [DONE]")
    assert [f["stop_reason"] for f in frames if f["message_type"] == "stop_reason"] == ["llm_api_error"]
    run = await product.run(frames[-1]["run_id"])
    assert run["metadata"]["error"] == {**frames[-1], "seq_id": None}
    after = await product.client.agents.messages.create(agent_id=agent.id, input="Again")
    assert after.stop_reason.stop_reason == "end_turn"


async def test_what_the_provider_said_reaches_who_asked_with_its_figures(product: Product) -> None:
    words = "You have used 1,200 of 1,000 requests with test-openai."
    refusal = Turn(failure=Failure("rate_limit", words, headers={"retry-after": "3600"}))
    product.models.play(refusal, refusal)
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages"

    plain = await product.http.post(path, json={"input": "Hello"})
    streamed = await product.http.post(path, json={"input": "Hello", "streaming": True, "background": True})

    said = (
        "You have used 1,200 of 1,000 requests with [key]. [It asks for a pause of 3600 s; runs wait for 60 s at most.]"
        f" [Asked: openai at {product.models.origin}]"
    )
    assert plain.status_code == 503
    assert plain.json()["error"]["detail"] == said
    [frame] = [json.loads(line[6:]) for line in streamed.text.splitlines() if '"error_message"' in line]
    assert (frame["error_type"], frame["detail"]) == ("llm_rate_limit", said)
    for run in (await product.http.get("/v1/runs/", params={"agent_id": agent.id})).json():
        assert run["metadata"]["error"]["detail"] == said


async def test_an_error_under_a_status_of_success_is_one_and_the_agent_goes_on(product: Product) -> None:
    product.models.play(Turn(raw=(b'{"error": {"message": "Insufficient credits"}}',)), Turn(text="Paid."))
    agent = await product.agent()
    path = f"/v1/agents/{agent.id}/messages"

    refused = await product.http.post(path, json={"input": "Hello"})
    after = await product.http.post(path, json={"input": "And now?"})

    assert (refused.status_code, len(product.models.requests)) == (503, 2), "it is not tried again"
    assert refused.json()["error"]["detail"].startswith("Insufficient credits [Asked: openai at ")
    assert after.json()["stop_reason"]["stop_reason"] == "end_turn"


async def test_a_turn_that_brought_nothing_leaves_nothing(product: Product) -> None:
    product.models.play(Turn(failure=Failure("server")))
    agent = await product.agent()

    await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "Hello"})

    assert [message["message_type"] for message in await product.history(agent.id)] == ["system_message"]


async def test_an_answer_that_was_cut_off_stays_as_far_as_it_was_shown(product: Product) -> None:
    product.models.play(Turn(text="one two three four", break_="drop", break_after=2), Turn(text="Back."))
    agent = await product.agent()
    body = {"input": "Hello", "streaming": True, "stream_tokens": True}

    streamed = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)

    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    shown = "".join(f["content"] for f in frames if f["message_type"] == "assistant_message")
    [_, asked, kept] = await product.history(agent.id)
    assert (asked["content"], kept["content"]) == ("Hello", shown)
    assert shown == "one two"
