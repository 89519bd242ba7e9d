"""A conversation never dies of its length, in whatever words its provider refuses a request that is too long."""

import json

import pytest

from tests.kit.model_server import Call, ReceivedRequest, Turn
from tests.kit.model_server.model_calls import HANDLES
from tests.kit.model_server.turn import Failure
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

REPORT = """
def report() -> str:
    \"\"\"Give the report.\"\"\"
    return "all is well there " * 2000
"""

TAKES = 20_000
"""Bytes of a request that the provider takes."""

WORDS = [
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (400, "Bad request"),
    (400, "Votre demande est trop grande."),
    (413, "Request Entity Too Large"),
    (413, "<html><body>nginx</body></html>"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9021"),
    (422, "unprocessable"),
    (429, "Request too large on tokens per min (TPM): Limit 30000, Requested 33011. The input must be reduced."),
]


class Reporter:
    """Calls the tool, answers when it has the result, and refuses what is too long."""

    def __init__(self, refusal: Turn) -> None:
        self.refusal = refusal
        self.refused = 0

    def __call__(self, request: ReceivedRequest) -> Turn:
        said = json.dumps(request.body)
        if len(said) > TAKES:
            self.refused += 1
            return self.refusal
        if "write summaries" in said:
            return Turn(text="Summary: there was a report.")
        return Turn(text="All is well.") if "all is well there" in said else Turn(calls=[Call("report")])


@pytest.mark.parametrize("handle", HANDLES)
@pytest.mark.parametrize(("status", "words"), WORDS)
async def test_a_request_that_is_much_longer_is_sent_shorter_whatever_the_words(
    product: Product, handle: str, status: int, words: str
) -> None:
    model = Reporter(Turn(failure=Failure("bad_request", words, status=status)))
    product.models.answer_with(model)
    agent = await product.agent(model=handle, tools=[await product.tool(REPORT)], context_window_limit=10_000)

    answer = await product.client.agents.messages.create(agent_id=agent.id, input="How is it?")

    assert answer.stop_reason.stop_reason == "end_turn"
    assert model.refused >= 1
    after = await product.client.agents.messages.create(agent_id=agent.id, input="Thank you.")
    assert after.stop_reason.stop_reason == "end_turn"


async def test_a_refusal_that_is_not_for_length_leaves_the_conversation_as_it_is(product: Product) -> None:
    agent = await product.agent()
    await product.client.agents.messages.create(agent_id=agent.id, input="Hello")
    asked = len(product.models.requests)
    product.models.play(Turn(failure=Failure("bad_request")))

    answer = await product.http.post(f"/v1/agents/{agent.id}/messages", json={"input": "And now?"})

    assert answer.status_code == 400
    assert len(product.models.requests) == asked + 1


@pytest.mark.parametrize(("status", "words"), WORDS)
async def test_a_summary_that_the_model_refuses_is_an_excerpt(product: Product, status: int, words: str) -> None:
    agent = await product.agent()
    for number in range(6):
        await product.client.agents.messages.create(agent_id=agent.id, input=f"Question {number}")
    product.models.answer_with(lambda _request: Turn(failure=Failure("bad_request", words, status=status)))

    answer = await product.http.post(f"/v1/agents/{agent.id}/summarize", json={})

    assert answer.status_code == 200, answer.text
    assert "this is an excerpt" in answer.text
