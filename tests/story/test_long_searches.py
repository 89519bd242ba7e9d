"""What is built of a search is bounded at every door: what a caller sends cannot hold the event loop for long."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from shared.domain.searches import LONGEST_QUERY, MOST_WORDS
from tests.kit.model_server import Call
from tests.kit.product import Product
from tests.story.test_recall import agent_that_recalls, results_of

pytestmark = pytest.mark.shared_product

TOO_LONG = {"words": "a " * 30_000, "one word": "a" * (LONGEST_QUERY + 1), "no spaces": "書" * 30_000}
FULL = {
    "words": "".join(f"{number:03} " for number in range(LONGEST_QUERY // 4)),
    "parts of one word": "".join(f"{number:03}\N{LATIN SMALL LETTER E WITH ACUTE}" for number in range(250)),
    "no spaces": "書" * LONGEST_QUERY,
    "signs": "%_" * (LONGEST_QUERY // 2),
}


@contextmanager
def longest_statement() -> Generator[list[int]]:
    """How many characters each statement has that a database is sent in the block."""
    lengths: list[int] = []

    def note(_connection: Any, _cursor: Any, statement: str, _parameters: Any, *_rest: Any) -> None:
        lengths.append(len(statement))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield lengths
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("query", TOO_LONG.values(), ids=TOO_LONG)
async def test_a_search_with_many_words_stopped_the_api_for_minutes(product: Product, query: str) -> None:
    """Each word was a condition of the statement, which the event loop built."""
    for path in ("/v1/messages/search", "/v1/passages/search"):
        answer = await product.http.post(path, json={"query": query})
        assert answer.status_code == 422, answer.text
        assert "query" in answer.text
        assert f"{LONGEST_QUERY} characters" in answer.text
    agent_id = await agent_that_recalls(product)
    of_agent = f"/v1/agents/{agent_id}/archival-memory/search"
    assert (await product.http.get(of_agent, params={"query": query[: LONGEST_QUERY + 1]})).status_code == 422
    assert (await product.http.get(of_agent, params={"query": "a", "tags": ["t"] * 101})).status_code == 422


@pytest.mark.parametrize("query", TOO_LONG.values(), ids=TOO_LONG)
async def test_a_models_search_with_many_words_stopped_its_worker(product: Product, query: str) -> None:
    agent_id = await agent_that_recalls(product)
    refused = await results_of(
        product,
        agent_id,
        Call("conversation_search", {"query": query}),
        Call("archival_memory_search", {"query": query}),
        Call("archival_memory_search", {"query": "a", "tags": [f"t{number}" for number in range(5000)]}),
    )
    assert [one["status"] for one in refused] == ["error"] * 3
    assert all(f"a search may have {LONGEST_QUERY}" in one["tool_return"] for one in refused[:2])
    assert "5000 are more than the 100" in refused[2]["tool_return"]


@pytest.mark.parametrize("query", FULL.values(), ids=FULL)
async def test_the_statement_of_a_search_grew_with_its_words(product: Product, query: str) -> None:
    agent_id = await agent_that_recalls(product)
    with longest_statement() as lengths:
        for path in ("/v1/messages/search", "/v1/passages/search"):
            answer = await product.http.post(path, json={"query": query})
            assert answer.status_code == 200, answer.text
        searches = [
            Call("conversation_search", {"query": query, "roles": ["user", "assistant"] * 2000}),
            Call("archival_memory_search", {"query": query}),
        ]
        assert [one["status"] for one in await results_of(product, agent_id, *searches)] == ["success"] * 2
    assert max(lengths) < 15_000


async def test_words_beyond_the_last_that_counts_are_left_out(product: Product) -> None:
    agent_id = await agent_that_recalls(product)
    said = " ".join(f"word{number}" for number in range(MOST_WORDS))
    product.models.say("Noted.")
    await product.client.agents.messages.create(agent_id, input=said)
    for query, is_found in ((f"{said} absent", True), (f"absent {said}", False)):
        found = (await product.http.post("/v1/messages/search", json={"query": query})).json()
        assert bool(found) == is_found
