"""An agent looks into its past: what was said in all of its conversations, and what it has put into archival memory."""

import json
from typing import Any

import pytest

from tests.kit.model_server import Call, Turn
from tests.kit.product import Product

pytestmark = pytest.mark.shared_product


async def agent_that_recalls(product: Product) -> str:
    """An agent with the tools for it; its id."""
    tools = ["conversation_search", "archival_memory_insert", "archival_memory_search"]
    body = {"model": "openai/gpt-4o-mini", "include_base_tools": False, "tools": tools}
    answer = await product.http.post("/v1/agents/", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def results_of(product: Product, agent_id: str, *calls: Call, said: str = "Go on.") -> list[dict[str, Any]]:
    """One turn in which the model makes these calls; their results."""
    product.models.play(Turn(calls=list(calls)), Turn(text="Done."))
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": said})
    assert answer.status_code == 200, answer.text
    [returned] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return returned["tool_returns"]


def texts_in(result: dict[str, Any]) -> list[str]:
    return [one["content"] for one in json.loads(result["tool_return"])["results"]]


async def test_what_was_said_anywhere_is_found_also_when_it_has_left_the_context(product: Product) -> None:
    agent_id = await agent_that_recalls(product)
    product.models.say("Noted: the key is under the red mat.")
    await product.client.agents.messages.create(agent_id, input="The KEY is under the mat.")
    await product.client.agents.messages.reset(agent_id)
    product.models.say("Blue it is.")
    conversation = await product.client.conversations.create(agent_id=agent_id)
    await product.http.post(
        f"/v1/conversations/{conversation.id}/messages", json={"input": "Paint the key blue.", "streaming": False}
    )

    found, of_user, none, invalid = await results_of(
        product,
        agent_id,
        Call("conversation_search", {"query": "key"}),
        Call("conversation_search", {"query": "mat key", "roles": ["user"], "limit": None}),
        Call("conversation_search", {"query": "key", "end_date": "2020-01-01"}),
        Call("conversation_search", {"query": "key", "start_date": "yesterday"}),
        said="Where is the key?",
    )

    assert texts_in(found) == [
        "Paint the key blue.", "Noted: the key is under the red mat.", "The KEY is under the mat."
    ]  # fmt: skip
    assert texts_in(of_user) == ["The KEY is under the mat."]
    assert json.loads(none["tool_return"]) == {"message": "No results found.", "results": []}
    assert invalid["status"] == "error"
    assert "start_date is no moment" in invalid["tool_return"]


async def test_other_agents_and_projects_are_not_searched(product: Product) -> None:
    other, agent_id = await agent_that_recalls(product), await agent_that_recalls(product)
    product.models.say("Yes.")
    await product.client.agents.messages.create(other, input="My secret word is plum.")

    [found] = await results_of(product, agent_id, Call("conversation_search", {"query": "plum"}), said="And?")

    assert texts_in(found) == []


async def test_what_is_put_into_archival_memory_is_found_by_words_and_tags(product: Product) -> None:
    agent_id = await agent_that_recalls(product)
    stored = await results_of(
        product,
        agent_id,
        Call("archival_memory_insert", {"content": "The printer on floor 3 wants A4.", "tags": ["office"]}),
        Call("archival_memory_insert", {"content": "The printer at home wants ink.", "tags": ["home"]}),
        Call("archival_memory_insert", {"content": " "}),
    )
    assert [result["status"] for result in stored] == ["success", "success", "error"]

    by_words, by_tag, none = await results_of(
        product,
        agent_id,
        Call("archival_memory_search", {"query": "which printer wants ink", "top_k": 1}),
        Call("archival_memory_search", {"query": "printer", "tags": ["office"]}),
        Call("archival_memory_search", {"query": "printer", "end_datetime": "2020-01-01"}),
    )

    assert texts_in(by_words) == ["The printer at home wants ink."]
    assert texts_in(by_tag) == ["The printer on floor 3 wants A4."]
    assert texts_in(none) == []
    passages = await product.client.agents.passages.list(agent_id)
    assert {tuple(passage.tags or []) for passage in passages} == {("office",), ("home",)}
