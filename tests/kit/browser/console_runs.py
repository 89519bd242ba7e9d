"""Runs for tests of the console. Their agents play scripts in the background, shown word by word."""

import json
from typing import Any

import httpx

from tests.kit.product import Product


async def start_run(http: httpx.AsyncClient, text: str, *, model: str = "builtin/echo", **agent: Any) -> dict[str, Any]:
    """A run of a new agent, as it is just after its submission."""
    made = await http.post("/v1/agents", json={"name": "Shown", "model": model, "include_base_tools": False, **agent})
    assert made.is_success, made.text
    return await say(http, made.json()["id"], text)


async def say(http: httpx.AsyncClient, agent_id: str, text: str) -> dict[str, Any]:
    """A run of an existing agent."""
    sent = {"messages": [{"role": "user", "content": text}], "stream_tokens": True}
    answer = await http.post(f"/v1/agents/{agent_id}/messages/async", json=sent)
    assert answer.is_success, answer.text
    return answer.json()


async def play(product: Product, *turns: dict[str, Any], **agent: Any) -> dict[str, Any]:
    """A run whose model plays these turns (`builtin/scripted`)."""
    return await start_run(product.http, json.dumps({"turns": turns}), model="builtin/scripted", **agent)


async def queue(http: httpx.AsyncClient, conversation_id: str, count: int) -> None:
    """This many runs in a conversation, of which the first is executed."""
    body = {"messages": [{"role": "user", "content": "Another"}], "background": True, "if_busy": "enqueue"}
    for _ in range(count):
        async with http.stream("POST", f"/v1/conversations/{conversation_id}/messages", json=body) as answer:
            assert answer.is_success
