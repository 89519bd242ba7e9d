"""Pages name their conversations as they like, also in the paths of routes."""

from urllib.parse import quote

import pytest

from tests.kit.product import Product

pytestmark = pytest.mark.shared_product

NAMES = ["a/b", "/guide/intro/", "chat/1/stop", "live/stream", "Gespräch é/ü", "50% ?&#", "..", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
async def test_a_chat_is_found_by_a_name_with_slashes_and_signs(product: Product, name: str) -> None:
    agent = await product.agent()
    product.models.say("Hello.")
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    answer = await product.http.post(f"/ai-sdk/{agent.id}/chat", json={"id": name, "messages": [message]})
    assert answer.status_code == 200, answer.text
    path = f"/ai-sdk/{agent.id}/chat/{quote(name, safe='').replace('.', '%2E')}"
    chat = (await product.http.get(path)).json()
    assert [one["role"] for one in chat["messages"]] == ["user", "assistant"]
    assert (await product.http.get(f"{path}/stream")).status_code == 204
    for stop in (f"{path}/stop", f"/ag-ui/agent/{agent.id}/stop/{quote(name, safe='').replace('.', '%2E')}"):
        stopped = await product.http.post(stop, json={})
        assert stopped.status_code == 409, stopped.text


async def test_a_fork_of_a_named_conversation_was_a_500(product: Product) -> None:
    """A name is one conversation of its agent, so the copy has none."""
    agent = await product.agent()
    product.models.say("Hello.")
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    await product.http.post(f"/ai-sdk/{agent.id}/chat", json={"id": "desk", "messages": [message]})
    [named] = (await product.http.get("/v1/conversations", params={"agent_id": agent.id})).json()
    forked = await product.http.post(f"/v1/conversations/{named['id']}/fork")
    assert forked.status_code == 200, forked.text
    assert (named["name"], forked.json()["name"]) == ("desk", None)
    assert forked.json()["id"] != named["id"]
