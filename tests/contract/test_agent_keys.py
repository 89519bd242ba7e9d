"""A key of one agent sees that agent, and nothing of another: not by its path, its query, its body, or a list."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from api.access.route_rules import CHAT, RULES, Reach
from tests.kit.keys import KeyMaker
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import running_product
from tests.kit.services.databases import open_database
from tests.kit.services.redis_servers import RedisService

UNKNOWN = "11111111-1111-4111-8111-111111111111"
DIGITS = UNKNOWN.replace("-", "")
CONFIGURED = "a-long-key-of-the-operator"
LOOK = 'def look() -> str:\n    """Looks."""\n    return "seen"\n'
ASKS = '{"turns": [{"calls": [{"name": "look"}]}]}'


@dataclass(frozen=True)
class Things:
    """What one agent has."""

    ids: dict[str, str]

    def path(self, route: str) -> str:
        named = route.replace(":path}", "}")
        if named.startswith("/openai/v1/conversations/"):
            named = named.replace("{conversation_id}", "{openai_conversation_id}")
        path = re.sub(r"\{(\w+)\}", lambda name: self.ids[name[1]], named)
        return f"{path}?query=secret" if path.endswith("/search") else path


@dataclass(frozen=True)
class Setup:
    """Two agents of one project, with all that an agent may have, and a key of the first one."""

    http: httpx.AsyncClient
    own: Things
    others: Things
    key: dict[str, str]

    async def ask(self, method: str, path: str, **rest: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=self.key, **rest)


@pytest.fixture
async def setup(sqlite_url: str) -> AsyncGenerator[Setup]:
    redis = RedisService(None)
    async with (
        open_database(sqlite_url) as database,
        ModelServer() as models,
        running_product(database, redis.client(), models, settings={"api_keys": f"default={CONFIGURED}"}) as product,
    ):
        product.http.headers["Authorization"] = f"Bearer {CONFIGURED}"
        source = {"source_code": LOOK, "default_requires_approval": True}
        tool = (await product.http.put("/v1/tools", json=source)).json()["id"]
        own, others = [await _things(product.http, tool) for _ in range(2)]
        key = await KeyMaker(database).headers("write", f"agent:{own.ids['agent_id']}")
        yield Setup(product.http, own, others, key)
    await redis.close()


async def _things(http: httpx.AsyncClient, tool: str) -> Things:
    """An agent with a waiting run in a conversation, and an ended one in its own history."""

    async def post(path: str, body: Any = None) -> Any:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    agent = await post("/v1/agents", {"model": "builtin/scripted", "tool_ids": [tool], **_MEMORY})
    conversation = (await post(f"/v1/conversations?agent_id={agent['id']}"))["id"]
    await http.post(f"/v1/conversations/{conversation}/messages", json={"input": ASKS, "background": True})
    said = await post(f"/v1/agents/{agent['id']}/messages", {"input": '{"turns": [{"text": "the secret word"}]}'})
    memory = await post(f"/v1/agents/{agent['id']}/archival-memory", {"text": "the secret passage"})
    [approval] = (await http.get("/v1/approvals", params={"agent_id": agent["id"]})).json()
    message = said["messages"][-1]
    given = {"metadata": {"agent_id": agent["id"]}, "items": [{"role": "user", "content": "the secret item"}]}
    openai = (await post("/openai/v1/conversations", given))["id"]
    [item] = (await http.get(f"/openai/v1/conversations/{openai}/items")).json()["data"]
    return Things(
        {
            "agent_id": agent["id"],
            "conversation_id": conversation,
            "chat_id": conversation,
            "run_id": message["run_id"],
            "step_id": message["step_id"],
            "message_id": message["id"],
            "approval_id": approval["id"],
            "call_id": approval["tool_call_id"],
            "memory_id": memory[0]["id"],
            "block_label": "human",
            "response_id": f"resp_{message['run_id'].removeprefix('run-').replace('-', '')}",
            "openai_conversation_id": openai,
            "item_id": item["id"],
            "model": agent["id"],
            "thread_id": conversation,
        }
    )


_MEMORY = {"memory_blocks": [{"label": "human", "value": "the secret block"}], "include_base_tools": False}

PAGES = {"threadId": "desk", "messages": [{"id": "u1", "role": "user", "content": "Hello"}]}
BODIES: dict[str, Any] = {
    "POST /v1/agents/{agent_id}/archival-memory": {"text": "x"},
    "PATCH /v1/agents/{agent_id}/core-memory/blocks/{block_label}": {"value": "x"},
    "POST /v1/agents/{agent_id}/page-token": {"thread_id": "default"},
    "POST /v1/approvals/{approval_id}": {"decision": "deny"},
    "POST /ai-sdk/{agent_id}/chat": {
        "id": "desk",
        "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
    },
    "POST /openai/v1/conversations/{conversation_id}": {"metadata": {"user": "eve"}},
    **dict.fromkeys(("POST /ag-ui/{agent_id}", "POST /ag-ui/agent/{agent_id}/run"), PAGES),
    "POST /ag-ui/{agent_id}/stop": {"threadId": "default"},
    "POST /ag-ui/agent/{agent_id}/connect": {"threadId": "default"},
    "POST /openai/v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "x"}]},
}
SENT = {"input": "Hello"}


def named_routes(level: str | None = None) -> list[str]:
    return [
        route
        for route, rule in RULES.items()
        if rule.reach is Reach.AGENT and "{" in route and level in (None, rule.level)
    ]


def body_of(route: str) -> Any:
    given = BODIES.get(route, SENT if route.endswith(("messages", "/stream", "/async", "/inject")) else {})
    return None if route.startswith(("GET", "DELETE")) else given


async def test_nothing_of_another_agent_is_found_or_changed(setup: Setup) -> None:
    """Each route that names something, with what the other agent has: the same answer as for what nobody has."""
    for route in named_routes():
        method, path = route.split(" ")
        theirs = setup.others.path(path)
        unknown = re.sub(r"-[0-9a-f-]{36}", f"-{UNKNOWN}", theirs)
        unknown = re.sub(r"(resp|conv)_[0-9a-f]{32}", rf"\1_{DIGITS}", unknown)
        assert unknown != theirs
        refused, nothing = [await setup.ask(method, ending(one), json=body_of(route)) for one in (theirs, unknown)]
        assert refused.status_code == nothing.status_code == 404, f"{route}: {refused.text}"
        assert _without_ids(refused.text) == _without_ids(nothing.text), route
    for route in named_routes("read"):
        method, path = route.split(" ")
        if method == "GET":
            answer = await setup.http.get(ending(setup.others.path(path)))
            assert answer.status_code in (200, 204), "everything of the other agent is as it was"


def ending(path: str) -> str:
    """The path, of a stream that ends."""
    if path.startswith("/ag-ui/") and path.endswith("/connect"):
        return f"{path}?threadId=default"
    return f"{path}?follow=false" if path.endswith("/events") else path


def _without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "", text)


async def test_the_agents_own_things_are_served(setup: Setup) -> None:
    for route in named_routes("read"):
        method, path = route.split(" ")
        if not path.endswith("/stream"):
            answer = await setup.ask(method, ending(setup.own.path(path)), json=body_of(route))
            assert answer.status_code == 200, f"{route}: {answer.text}"
    agent, conversation = setup.own.ids["agent_id"], setup.own.ids["conversation_id"]
    run = (await setup.ask("POST", f"/v1/agents/{agent}/messages/async", json=SENT)).json()
    assert run["agent_id"] == agent
    forked = await setup.ask("POST", f"/v1/conversations/{conversation}/fork")
    assert (forked.status_code, forked.json()["agent_id"]) == (200, agent)
    decided = await setup.ask("POST", f"/v1/approvals/{setup.own.ids['approval_id']}", json={"decision": "deny"})
    assert decided.status_code == 200


async def test_lists_name_the_agent(setup: Setup) -> None:
    own, other = setup.own.ids["agent_id"], setup.others.ids["agent_id"]
    for path in ("/v1/runs", "/v1/runs/active", "/v1/steps", "/v1/approvals", "/v1/conversations"):
        refused = await setup.ask("GET", path)
        assert (refused.status_code, "agent_id" in refused.text) == (403, True), path
        assert (await setup.ask("GET", f"{path}?agent_id={own}")).status_code == 200, path
        for query in (f"agent_id={other}", f"agent_id={own}&agent_id={other}", f"agent%5fid={other}"):
            listed = await setup.ask("GET", f"{path}?{query}")
            assert listed.status_code == 404 or listed.json() == [], f"{path}?{query}"
    listed = await setup.ask("GET", f"/v1/runs?agent_ids={own}&agent_ids={other}")
    assert listed.json() == []
    assert (await setup.ask("GET", "/v1/runs?agent_id=")).json() == [], "an empty filter is none"
    conversation = setup.others.ids["conversation_id"]
    for path in ("/v1/runs", "/v1/approvals"):
        assert (await setup.ask("GET", f"{path}?agent_id={own}&conversation_id={conversation}")).json() == []
    assert (await setup.ask("GET", f"/v1/steps?agent_id={own}&run_id={setup.others.ids['run_id']}")).json() == []
    begun = await setup.ask("POST", f"/v1/conversations?agent_id={other}")
    assert begun.status_code == 404


async def test_a_body_leads_nowhere_else(setup: Setup) -> None:
    own, other = setup.own.ids, setup.others.ids
    for path in ("/v1/conversations/default/messages", "/v1/conversations/default/compact"):
        answer = await setup.ask("POST", path, json={**SENT, "agent_id": other["agent_id"]})
        assert answer.status_code == 404, path
        # The last of two names counts.
        content = f'{{"input": "x", "agent_id": "{own["agent_id"]}", "agent_id": "{other["agent_id"]}"}}'
        answer = await setup.ask("POST", path, content=content)
        assert answer.status_code in (404, 422), path
    stream = {"run_id": other["run_id"]}
    answer = await setup.ask("POST", f"/v1/conversations/{own['conversation_id']}/stream", json=stream)
    assert answer.status_code == 404
    answer = await setup.ask(
        "GET", f"/v1/agents/{own['agent_id']}/messages", params={"conversation_id": other["conversation_id"]}
    )
    assert answer.status_code == 404
    cancelled = await setup.ask(
        "POST", f"/v1/agents/{own['agent_id']}/messages/cancel", json={"run_ids": [other["run_id"]]}
    )
    assert cancelled.json() == {other["run_id"]: "failed"}, "as for a run that nobody has; it is completed"


async def test_a_chat_names_its_agent_as_a_model(setup: Setup) -> None:
    def body(model: object) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": '{"turns": [{"text": "hi"}]}'}]}

    for path in CHAT:
        assert (await setup.ask("POST", path, json=body(setup.own.ids["agent_id"]))).status_code == 200
        for model in (setup.others.ids["agent_id"], setup.others.ids["conversation_id"], f"agent-{UNKNOWN}"):
            assert (await setup.ask("POST", path, json=body(model))).status_code == 404, model
        for model in (None, [setup.others.ids["agent_id"]], 1):
            assert (await setup.ask("POST", path, json=body(model))).status_code == 400, model


RESPONSES = ("/openai/v1/responses", "/v1/responses")
HI = '{"turns": [{"text": "hi"}]}'


@pytest.mark.parametrize("path", RESPONSES)
async def test_a_response_names_its_agent_as_a_model(setup: Setup, path: str) -> None:
    own, others = setup.own.ids, setup.others.ids
    first = await setup.ask("POST", path, json={"model": own["agent_id"], "input": HI})
    assert (first.status_code, first.json()["model"]) == (200, own["agent_id"]), first.text
    for part in ("", "/input_tokens"):
        for named in (
            {"previous_response_id": first.json()["id"]},
            {"conversation": own["openai_conversation_id"]},
            {"conversation": {"id": own["openai_conversation_id"]}},
        ):
            answer = await setup.ask("POST", path + part, json={"input": HI, **named})
            assert answer.status_code == 200, f"{named}: {answer.text}"
        for named, unknown in (
            ({"model": others["agent_id"]}, {"model": f"agent-{UNKNOWN}"}),
            ({"previous_response_id": others["response_id"]}, {"previous_response_id": f"resp_{DIGITS}"}),
            ({"previous_response_id": others["run_id"]}, {"previous_response_id": f"run-{UNKNOWN}"}),
            ({"conversation": others["openai_conversation_id"]}, {"conversation": f"conv_{DIGITS}"}),
            ({"conversation": {"id": others["conversation_id"]}}, {"conversation": {"id": f"conv-{UNKNOWN}"}}),
            (
                {"model": own["agent_id"], "conversation": others["conversation_id"]},
                {"conversation": f"conv-{UNKNOWN}"},
            ),
        ):
            refused, nothing = [
                await setup.ask("POST", path + part, json={"input": HI, **one}) for one in (named, unknown)
            ]
            assert refused.status_code == nothing.status_code in (400, 404), f"{named}: {refused.text}"
            assert _without_ids(refused.text) == _without_ids(nothing.text), named
    for others_agent in (others["agent_id"], f"agent-{UNKNOWN}"):
        begun = await setup.ask("POST", "/openai/v1/conversations", json={"metadata": {"agent_id": others_agent}})
        assert (begun.status_code, begun.json()["error"]["code"]) == (400, "model_not_found")
    runs = (await setup.http.get("/v1/runs", params={"agent_id": others["agent_id"]})).json()
    assert len(runs) == 2, "the other agent has what it had"


async def test_responses_of_models_are_refused_and_say_why(setup: Setup) -> None:
    for path in RESPONSES:
        refused = await setup.ask("POST", path, json={"model": "builtin/echo", "input": "Hi"})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (403, "forbidden", "model")
        assert "builtin/echo" in error["message"], "it names what it refuses"
        assert "agent" in error["message"], "it says what such a key is for"
    plain = (await setup.http.post(RESPONSES[0], json={"model": "builtin/echo", "input": "Hi"})).json()["id"]
    for method, path in (("GET", plain), ("POST", f"{plain}/cancel"), ("DELETE", plain), ("GET", f"{plain}?stream=1")):
        assert (await setup.ask(method, f"{RESPONSES[0]}/{path}")).status_code == 404, path
    after = await setup.ask("POST", RESPONSES[0], json={"previous_response_id": plain, "input": "Hi"})
    assert (after.status_code, after.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_webhook_endpoints_are_refused_and_say_why(setup: Setup) -> None:
    for method, path in (("GET", ""), ("POST", ""), ("GET", f"/webhook-{UNKNOWN}"), ("DELETE", f"/webhook-{UNKNOWN}")):
        refused = await setup.ask(method, f"/openai/v1/webhook_endpoints{path}", json={})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, "forbidden"), path
        assert "is not for keys of single agents" in error["message"]


async def test_the_models_of_such_a_key_are_its_agents(setup: Setup) -> None:
    own, other = setup.own.ids["agent_id"], setup.others.ids["agent_id"]
    listed = (await setup.ask("GET", "/openai/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == [own]
    assert (await setup.ask("GET", f"/openai/v1/models/{own}")).json() == listed[0]
    assert (await setup.http.get(f"/openai/v1/models/{other}")).json()["id"] == other, "a project's key sees each"
    for unknown in (other, f"agent-{UNKNOWN}", "builtin/echo", "builtin/nothing"):
        answer = await setup.ask("GET", f"/openai/v1/models/{unknown}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), unknown


async def test_a_response_is_made_streamed_cancelled_and_deleted_by_its_agents_key(setup: Setup) -> None:
    path = RESPONSES[0]
    body = {"model": setup.own.ids["agent_id"], "input": HI, "background": True, "stream": True}
    streamed = await setup.ask("POST", path, json=body)
    assert streamed.status_code == 200
    response = f"{path}/{re.findall('resp_[0-9a-f]{32}', streamed.text)[0]}"
    assert (await setup.ask("GET", f"{response}?stream=true")).text == streamed.text
    assert "response.completed" in streamed.text
    assert [item["role"] for item in (await setup.ask("GET", f"{response}/input_items")).json()["data"]] == ["user"]
    assert (await setup.ask("POST", f"{response}/cancel")).json()["status"] == "completed"
    assert (await setup.ask("DELETE", response)).json()["deleted"] is True
    assert (await setup.ask("GET", response)).status_code == 404


async def test_a_repeated_request_is_nothing_of_another_keys(setup: Setup) -> None:
    """Names of requests are the project's, but two keys of single agents do not see each other's responses by them."""
    path, named = RESPONSES[0], {"Idempotency-Key": "order-17"}
    theirs = {"model": setup.others.ids["agent_id"], "input": HI}
    other = (await setup.http.post(path, json=theirs, headers=named)).json()["id"]
    own = {"model": setup.own.ids["agent_id"], "input": HI}
    first = await setup.http.post(path, json=own, headers={**setup.key, **named})
    again = await setup.http.post(path, json=own, headers={**setup.key, **named})
    assert first.status_code == again.status_code == 200, first.text
    assert first.json()["id"] == again.json()["id"] != other


async def test_what_the_project_shares_is_refused(setup: Setup) -> None:
    for method, path in (
        ("GET", "/v1/agents"),
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/search"),
        ("POST", "/v1/passages/search"),
        ("GET", "/v1/blocks"),
        ("GET", "/v1/tools"),
        ("GET", f"/v1/agents/{setup.own.ids['agent_id']}/secrets"),
        ("PATCH", f"/v1/agents/{setup.own.ids['agent_id']}"),
        ("POST", f"/v1/agents/{setup.own.ids['agent_id']}/tools/look/run"),
        ("POST", f"/v1/agents/{setup.own.ids['agent_id']}/generate"),
        ("GET", "/v1/admin/keys"),
    ):
        answer = await setup.ask(method, path, json={"query": "secret"})
        assert answer.status_code == 403, path
        assert answer.json()["detail"].startswith("FORBIDDEN: ")


async def test_a_stream_token_of_an_agents_key_is_for_its_runs(setup: Setup) -> None:
    run = setup.own.ids["run_id"]
    token = (await setup.ask("POST", f"/v1/runs/{run}/stream-token")).json()["token"]
    shown = await setup.http.get(f"/v1/runs/{run}/stream", params={"token": token}, headers={"Authorization": ""})
    assert (shown.status_code, "the secret word" in shown.text) == (200, True)
    other = f"/v1/runs/{setup.others.ids['run_id']}/stream"
    assert (await setup.http.get(other, params={"token": token})).status_code == 401
    assert (await setup.ask("POST", f"{other}-token")).status_code == 404
