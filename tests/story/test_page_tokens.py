"""A page with a token talks in one conversation: from another origin, without a key of its own, and nowhere else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from arq.connections import ArqRedis
from starlette.routing import Route

from api.access.authentication import needs_key
from api.access.route_rules import OF_PAGES
from api.application import ROUTERS
from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product

PAGE = "https://app.example.org"
KEY = {"Authorization": "Bearer k1-of-twenty-characters"}
OTHER_KEY = {"Authorization": "Bearer k2-of-twenty-characters"}


@pytest.fixture
async def guarded(database: Database, redis: ArqRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The product with keys, and with a page that may ask it."""
    keys = "one=k1-of-twenty-characters,two=k2-of-twenty-characters"
    async with running_product(database, redis, models, settings={"api_keys": keys, "cors_origins": PAGE}) as running:
        yield running


async def new_agent(product: Product) -> str:
    return (await product.http.post("/v1/agents/", json={"model": "builtin/echo"}, headers=KEY)).json()["id"]


async def asked_for(
    product: Product, agent_id: str, thread: str = "tea", *, headers: dict[str, str] = KEY, **body: Any
) -> httpx.Response:
    path, sent = f"/v1/agents/{agent_id}/page-token", {"thread_id": thread, **body}
    return await product.http.post(path, json=sent, headers=headers)


async def events(product: Product, conversation: str, token: str, **query: str) -> int:
    """The status of the conversation's stream for a page, which sends its token in either place."""
    path, ends = f"/v1/conversations/{conversation}/events", {"follow": "false", **query}
    by_header = await product.http.get(path, params=ends, headers={"Authorization": f"Bearer {token}"})
    by_query = await product.http.get(path, params={**ends, "token": token})
    assert by_header.status_code == by_query.status_code
    return by_query.status_code


async def new_key(product: Product, *scopes: str) -> tuple[str, dict[str, str]]:
    made = (await product.http.post("/v1/admin/keys", json={"name": "k", "scopes": scopes}, headers=KEY)).json()
    return made["id"], {"Authorization": f"Bearer {made['key']}"}


async def test_a_token_for_a_new_name_makes_the_conversation_and_opens_it_alone(guarded: Product) -> None:
    agent = await new_agent(guarded)
    made = (await asked_for(guarded, agent, may="chat")).json()
    again, other = (await asked_for(guarded, agent)).json(), (await asked_for(guarded, agent, "coffee")).json()

    assert datetime.fromisoformat(made["expires_at"]) > datetime.now(UTC)
    assert again["conversation_id"] == made["conversation_id"] != other["conversation_id"]
    for token in (made["token"], again["token"]):
        assert await events(guarded, made["conversation_id"], token) == 200
        assert await events(guarded, other["conversation_id"], token) == 404
        assert await events(guarded, agent, token) == 404
        assert await events(guarded, "default", token, agent_id=agent) == 404
    default = (await asked_for(guarded, agent, "default")).json()
    assert default["conversation_id"] == "default"
    assert await events(guarded, "default", default["token"], agent_id=agent) == 200
    assert await events(guarded, agent, default["token"]) == 200
    assert await events(guarded, made["conversation_id"], default["token"]) == 404
    assert await events(guarded, "default", default["token"], agent_id=await new_agent(guarded)) == 404


async def test_no_other_route_is_opened(guarded: Product) -> None:
    agent = await new_agent(guarded)
    made = (await asked_for(guarded, agent, may="chat")).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    ids = {"agent_id": agent, "conversation_id": made["conversation_id"]}
    asked = 0
    for route in (route for router in ROUTERS for route in router.routes if isinstance(route, Route)):
        path = route.path
        for name in route.param_convertors:
            path = path.replace(f"{{{name}}}", ids.get(name, "x")).replace(f"{{{name}:path}}", "x")
        for method in (route.methods or set()) - {"HEAD"}:
            if needs_key(path) and f"{method} {route.path}" not in OF_PAGES:
                answer = await guarded.http.request(method, path, headers=headers)
                assert answer.status_code in (403, 404), (method, path, answer.text)
                asked += 1
    assert asked > 150


async def test_a_token_ends_by_its_time_and_with_its_key(guarded: Product) -> None:
    agent = await new_agent(guarded)
    key_id, key = await new_key(guarded, "write")
    made = (await asked_for(guarded, agent, headers=key)).json()
    assert await events(guarded, made["conversation_id"], made["token"]) == 200
    start, expires, *rest = made["token"].split(".")
    late, longer = (".".join((start, str(int(expires) + by), *rest)) for by in (-86_400, 86_400))
    chat = made["token"].replace(".read.", ".chat.")

    for token in (late, longer, chat, f"{made['token']}x", "page.x", ""):
        answer = await guarded.http.get(
            f"/v1/conversations/{made['conversation_id']}/events", params={"token": token, "follow": "false"}
        )
        assert (answer.status_code, "page-token" in answer.text) == (401, True), token
        assert answer.json()["code"] == "invalid_page_token"
    assert (await guarded.http.delete(f"/v1/admin/keys/{key_id}", headers=KEY)).status_code < 300
    assert await events(guarded, made["conversation_id"], made["token"]) == 401


async def test_open_streams_of_a_revoked_key_and_of_its_pages_went_on_for_ever(guarded: Product) -> None:
    agent = await new_agent(guarded)
    key_id, key = await new_key(guarded, "write")
    made = (await asked_for(guarded, agent, headers=key)).json()
    path = f"/v1/conversations/{made['conversation_id']}/events"
    page = {"Authorization": f"Bearer {made['token']}"}

    async with AsyncExitStack() as stack:
        of_key, of_page, of_other = [
            await stack.enter_async_context(guarded.http.stream("GET", path, headers=headers))
            for headers in (key, page, KEY)
        ]
        assert [one.status_code for one in (of_key, of_page, of_other)] == [200, 200, 200]
        assert (await guarded.http.delete(f"/v1/admin/keys/{key_id}", headers=KEY)).status_code < 300
        for opened in (of_key, of_page):
            with pytest.raises(httpx.RemoteProtocolError):
                await opened.aread()
        assert not of_other.is_closed
        told = await guarded.http.post(f"{path.removesuffix('events')}messages", json={"input": "Hi"}, headers=KEY)
        assert told.status_code == 200
        assert await anext(of_other.aiter_lines())


async def test_a_key_gives_no_page_more_than_it_may_itself(guarded: Product) -> None:
    agent, other = await new_agent(guarded), await new_agent(guarded)
    _, reader = await new_key(guarded, "read")
    _, of_other = await new_key(guarded, "write", f"agent:{other}")
    assert (await asked_for(guarded, agent, headers=reader)).status_code == 404, "it may not make a conversation"
    assert (await asked_for(guarded, agent, may="chat")).status_code == 200
    assert (await asked_for(guarded, agent, headers=reader)).status_code == 200
    assert (await asked_for(guarded, agent, headers=reader, may="chat")).status_code == 403
    assert (await asked_for(guarded, agent, headers=of_other)).status_code == 404
    assert (await asked_for(guarded, other, headers=of_other, may="chat")).status_code == 200
    assert (await asked_for(guarded, agent, headers=OTHER_KEY)).status_code == 404
    token = {"Authorization": f"Bearer {(await asked_for(guarded, agent, may='chat')).json()['token']}"}
    assert (await asked_for(guarded, agent, headers=token)).status_code == 403


@pytest.mark.parametrize("name", ["tea", "default"])
async def test_a_page_that_may_read_posts_nothing_in_either_dialect(guarded: Product, name: str) -> None:
    agent = await new_agent(guarded)
    told = {"threadId": name, "runId": "r1", "messages": [{"id": "u1", "role": "user", "content": "Hi"}]}
    said = {"id": "u2", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    posts: dict[str, dict[str, Any]] = {
        f"/ag-ui/{agent}": told,
        f"/ag-ui/{agent}/stop": {"threadId": name},
        f"/ag-ui/agent/{agent}/stop/{name}": {},
        f"/ai-sdk/{agent}/chat": {"id": name, "messages": [said]},
        f"/ai-sdk/{agent}/chat/{name}/stop": {},
    }
    for may, refused in (("read", True), ("chat", False)):
        token = (await asked_for(guarded, agent, name, may=may)).json()["token"]
        for path, body in posts.items():
            answer = await guarded.http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code == 403) is refused, (may, path, answer.status_code, answer.text[:200])
    runs = (await guarded.http.get("/v1/runs/", params={"agent_id": agent}, headers=KEY)).json()
    assert len(runs) == 2, "what the page that may chat has sent"


@pytest.mark.parametrize("body", [{"thread_id": ""}, {"thread_id": "x" * 201}, {"valid_for_s": 86_401}, {"may": "all"}])
async def test_a_request_for_too_much_is_refused(guarded: Product, body: dict[str, Any]) -> None:
    agent = await new_agent(guarded)
    sent = {"thread_id": "tea", **body}
    answer = await guarded.http.post(f"/v1/agents/{agent}/page-token", json=sent, headers=KEY)
    assert (answer.status_code, answer.json()["field"]) == (422, next(iter(body)))


async def test_a_page_of_another_origin_may_ask_and_read_what_it_needs(guarded: Product) -> None:
    """A route that said `*` itself would let in every page of the world."""
    agent = await new_agent(guarded)
    made = (await asked_for(guarded, agent)).json()
    path = f"/v1/conversations/{made['conversation_id']}/events"
    asks = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,last-event-id",
    }
    asked = await guarded.http.request("OPTIONS", path, headers=asks)
    assert asked.status_code == 200
    assert int(asked.headers["access-control-max-age"]) == 7200
    allowed = {one.strip() for one in asked.headers["access-control-allow-headers"].lower().split(",")}
    assert {"authorization", "content-type", "last-event-id"} <= allowed
    query = {"token": made["token"], "follow": "false"}
    shown = await guarded.http.get(path, params=query, headers={"Origin": PAGE})
    exposed = {one.strip() for one in shown.headers["access-control-expose-headers"].lower().split(",")}
    assert exposed >= {
        *("x-vercel-ai-ui-message-stream", "x-holdfast-error", "x-request-id", "warning", "retry-after"),
    }
    assert shown.headers.get_list("access-control-allow-origin") == [PAGE]
    elsewhere = await guarded.http.get(path, params=query, headers={"Origin": "https://evil.org"})
    assert "access-control-allow-origin" not in elsewhere.headers
