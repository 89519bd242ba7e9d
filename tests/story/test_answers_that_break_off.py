"""An answer whose connection to the provider breaks in the middle of its text, as readers and the history have it."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Turn
from tests.kit.product import Product


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"model_retries": 1}


async def test_an_answer_whose_connection_was_lost_failed_its_run(product: Product) -> None:
    """A model that takes the beginning of its answer goes on with it, in the same message."""
    product.models.play(Turn(text="one two three four", break_="end", break_after=2), Turn(text=" and so on."))
    agent = await product.agent(model="ollama/llama3.2")
    body = {"input": "Hello", "streaming": True, "stream_tokens": True}

    streamed = await product.http.post(f"/v1/agents/{agent.id}/messages", json=body)

    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    shown = [frame for frame in frames if frame["message_type"] == "assistant_message"]
    assert "".join(frame["content"] for frame in shown) == "one two and so on."
    assert len({frame["id"] for frame in shown}) == 1
    assert [frame["stop_reason"] for frame in frames if frame["message_type"] == "stop_reason"] == ["end_turn"]
    assert (await product.history(agent.id))[-1]["content"] == "one two and so on."
    used = (await product.http.get(f"/v1/runs/{shown[0]['run_id']}/usage")).json()
    assert used["prompt_tokens"] > Turn().prompt_tokens, "that of the request that broke off counts, too"
