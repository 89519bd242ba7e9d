"""A request may hold addresses of servers, as Letta's do. None of them is asked, and none gets the operator's key."""

from tests.kit.plain_answers import answering, ok
from tests.kit.product import Product


async def test_an_address_in_a_request_took_nobodys_key(product: Product) -> None:
    """Letta's `llm_config` has a server's address, which a caller writes."""
    product.models.say("Hello.")
    async with answering(ok(b"{}", "content-type: application/json")) as (url, asked):
        config = {
            "handle": "openai/gpt-4o-mini",
            "model": "gpt-4o-mini",
            "model_endpoint_type": "openai",
            "model_endpoint": url,
            "context_window": 8000,
        }
        body = {
            "llm_config": config,
            "model_settings": {"provider_type": "openai", "base_url": url, "extra_headers": {"Host": url}},
            "embedding_config": {"embedding_endpoint": url, "embedding_model": "x", "embedding_dim": 3},
        }
        agent = (await product.http.post("/v1/agents", json=body)).json()
        answer = await product.http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "Hi"})
    assert answer.json()["messages"][-1]["content"] == "Hello."
    assert asked == []
