"""Providers charge a tenth for what a request has in common with the one before it: so each request begins, byte for
byte, as the last one did, as long as nobody has changed the agent's memory."""

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.model_server.server import ReceivedRequest
from tests.kit.product import Product
from tests.kit.provider_rules.request import ONE_OF_EACH_WIRE

pytestmark = pytest.mark.shared_product

ADD = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b
'''

MULTIPLY = ADD.replace("add", "multiply").replace("Add", "Multiply").replace("+", "*")

HISTORY = {"chat": "messages", "responses": "input", "anthropic": "messages", "google": "contents"}
"""Where each wire has the conversation."""


MARK = ', "cache_control": {"type": "ephemeral", "ttl": "5m"}'
"""Moves on to the last message with each request to Anthropic, and is no part of what the model reads."""


def _parts(request: ReceivedRequest) -> tuple[str, list[str]]:
    """Everything but the conversation, and each entry of the conversation, as they went over the wire."""
    rest = {key: value for key, value in request.body.items() if key != HISTORY[request.wire]}
    conversation = request.body[HISTORY[request.wire]]
    return json.dumps(rest), [json.dumps(entry).replace(MARK, "") for entry in conversation]


async def _converse(product: Product, model: str, **fields: Any) -> None:
    tools = [await product.tool(ADD), await product.tool(MULTIPLY)]
    agent = await product.agent(
        model=model, tools=tools, memory_blocks=[{"label": "human", "value": "Likes sums."}], **fields
    )
    calls = [Call("add", {"a": 1, "b": 2}), Call("multiply", {"a": 3, "b": 4})]
    product.models.play(Turn(reasoning="Hm.", text="Let me see.", calls=calls))
    product.models.play(Turn(reasoning="And now?", calls=[Call("add", {"a": 3, "b": 12})]))
    product.models.say("Fifteen.", reasoning="Done.")
    product.models.play(Turn(reasoning="More.", calls=[Call("add", {"a": 15, "b": 1})]))
    product.models.say("Sixteen.")
    for question in ("What is 1 + 2 + 3 * 4?", "And one more?"):
        await product.client.agents.messages.create(agent_id=agent.id, input=question)
    assert len(product.models.requests) == 5


@pytest.mark.parametrize("model", ONE_OF_EACH_WIRE)
async def test_a_request_begins_as_the_one_before_it(product: Product, model: str) -> None:
    await _converse(product, model)
    parts = [_parts(request) for request in product.models.requests]
    for (before, said), (after, all_said) in pairwise(parts):
        assert after == before
        assert all_said[: len(said)] == said
        assert len(all_said) > len(said)


async def test_anthropic_is_told_what_to_keep(product: Product) -> None:
    """Three marks of the four that a request may have: the last tool, the instructions, and the last message."""
    await _converse(product, "anthropic/claude-haiku-4-5-20251001")
    for request in product.models.requests:
        body = request.body
        assert ["cache_control" in tool for tool in body["tools"]] == [False, True]
        assert ["cache_control" in block for block in body["system"]] == [True]
        marked = ["cache_control" in block for message in body["messages"] for block in message["content"]]
        assert marked == [False] * (len(marked) - 1) + [True]
        assert body["tools"][-1]["cache_control"]["type"] == "ephemeral"


async def test_openai_is_told_which_requests_belong_together(product: Product) -> None:
    for model in ("openai/gpt-4o-mini", "openai/gpt-5"):
        product.models.requests.clear()
        await _converse(product, model)
        [key] = {request.body["prompt_cache_key"] for request in product.models.requests}
        assert key.startswith("agent-"), "the id of the conversation, here the agent's own"


async def test_what_the_cache_gave_and_took_is_in_the_usage(product: Product) -> None:
    product.models.play(Turn(text="Hi.", prompt_tokens=100, cached_tokens=60, written_tokens=40))
    agent = await product.agent(model="anthropic/claude-haiku-4-5-20251001")
    answer = await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    usage = answer.usage
    assert usage.prompt_tokens == 200, "read, from the cache, and into it"
    assert usage.cached_input_tokens == 60
    assert usage.cache_write_tokens == 40
