"""Paths, keys and refusals as they are on the wire, without the SDK in between."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.services.databases import open_database

UNKNOWN_AGENT = "agent-00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_slash_at_the_end_makes_no_difference(http: httpx.AsyncClient, slash: str) -> None:
    made = await http.post(f"/v1/agents{slash}", json={"model": "builtin/echo", "include_base_tools": False})
    assert made.status_code == 200
    agent_id = made.json()["id"]
    assert (await http.get(f"/v1/agents/{agent_id}{slash}")).json()["id"] == agent_id
    assert (await http.get(f"/v1/agents/{agent_id}/tools{slash}")).json() == []
    assert (await http.get(f"/v1/health{slash}")).json()["status"] == "ok"


async def test_an_unknown_agent(http: httpx.AsyncClient) -> None:
    answer = await http.get(f"/v1/agents/{UNKNOWN_AGENT}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"Agent with ID {UNKNOWN_AGENT} not found"


async def test_a_malformed_agent_id(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/agents/nonsense")
    pattern = "^agent-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
    error = {
        "type": "string_pattern_mismatch",
        "loc": ["path", "agent_id"],
        "msg": "String should match pattern 'agent-{uuid4}'",
        "input": "nonsense",
        "ctx": {"pattern": pattern},
    }
    assert answer.status_code == 422
    body = answer.json()
    assert body["trace_id"] == answer.headers["x-request-id"]
    assert body["examples"] == ["agent-123e4567-e89b-42d3-8456-426614174000"]
    assert json.loads(body["detail"]) == [error]


async def test_a_long_input_is_not_sent_back_whole(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/blocks", json={"label": "human", "value": ["x" * 100_000]})
    assert answer.status_code == 422
    assert len(answer.content) < 2_000
    assert answer.json()["field"] == "value"


async def test_the_approval_setting(http: httpx.AsyncClient) -> None:
    source = 'def ping() -> str:\n    """Pings."""\n    return "pong"\n'
    tool = (await http.put("/v1/tools/", json={"source_code": source})).json()
    made = await http.post("/v1/agents/", json={"model": "builtin/echo", "tool_ids": [tool["id"]]})
    path = f"/v1/agents/{made.json()['id']}/tools/approval/ping"

    answer = await http.patch(path, json={"requires_approval": True})
    assert (answer.status_code, answer.content) == (200, b"null")
    rule = {"tool_name": "ping", "type": "requires_approval", "prompt_template": None}
    assert (await http.get(f"/v1/agents/{made.json()['id']}")).json()["tool_rules"] == [rule]
    assert (await http.patch(f"{path}?requires_approval=false")).status_code == 200
    assert (await http.get(f"/v1/agents/{made.json()['id']}")).json()["tool_rules"] == []
    assert (await http.patch(path)).status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/templates/"),
        ("POST", "/v1/folders/"),
        ("GET", "/v1/tools/mcp/oauth/callback/a-session"),
        ("POST", "/v1/agents/search"),
        ("PATCH", f"/v1/agents/{UNKNOWN_AGENT}/folders/attach/x"),
        ("GET", f"/v1/agents/{UNKNOWN_AGENT}/schedule/x"),
        ("POST", "/v1/tools/run"),
        ("GET", "/v1/_internal_agents/count"),
        ("GET", "/v1/users/"),
        ("POST", "/v1/tools/search"),
    ],
)
async def test_lettas_other_paths_say_that_they_are_not_served(http: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 501
    assert answer.json()["detail"].startswith(f"NOT_IMPLEMENTED: {method} {path.rstrip('/')}")


@pytest.mark.parametrize(
    "path",
    ["folders", "sources", "providers", "identities", "jobs", "jobs/active"],
)
async def test_a_list_of_what_is_not_served_is_empty(http: httpx.AsyncClient, path: str) -> None:
    """Programs that only looked stopped at a 501."""
    answer = await http.get(f"/v1/{path}/")
    assert (answer.status_code, answer.json()) == (200, [])
    assert (await http.post(f"/v1/{path}", json={})).status_code == 501
    assert (await http.get(f"/v1/{path}/some-id")).status_code == 501


async def test_an_agents_lists_of_what_is_not_served_are_empty(http: httpx.AsyncClient) -> None:
    agent_id = (await http.post("/v1/agents/", json={"model": "builtin/echo"})).json()["id"]
    for kind in ("folders", "sources", "identities"):
        assert (await http.get(f"/v1/agents/{agent_id}/{kind}")).json() == []
        assert (await http.get(f"/v1/agents/{UNKNOWN_AGENT}/{kind}")).status_code == 404
        assert (await http.patch(f"/v1/agents/{agent_id}/{kind}/attach/x")).status_code == 501
    assert [(await http.get(f"/v1/{kind}/count")).json() for kind in ("folders", "sources", "identities")] == [0, 0, 0]


async def test_letta_code_asked_without_end_for_agents_that_others_share(http: httpx.AsyncClient) -> None:
    """It sends the request again as soon as it has failed, some eighty times a second."""
    answer = await http.get("/v1/shared-agents")
    assert (answer.status_code, answer.json()) == (200, {"agents": [], "nextCursor": None})
    assert (await http.post("/v1/shared-agents", json={})).status_code == 501


async def test_every_message_of_letta_code_met_a_404(http: httpx.AsyncClient) -> None:
    """It asks for MCP servers before each message, and for repositories after it."""
    agent_id = (await http.post("/v1/agents/", json={"model": "builtin/echo"})).json()["id"]
    assert (await http.get(f"/v1/agents/{agent_id}/mcp-servers")).json() == []
    assert (await http.get(f"/v1/agents/{agent_id}/repositories")).json() == {"repositories": []}
    assert (await http.get(f"/v1/agents/{UNKNOWN_AGENT}/repositories")).status_code == 404
    assert (await http.post(f"/v1/agents/{agent_id}/repositories", json={})).status_code == 501


async def test_secret_of_letta_code_could_not_be_set(http: httpx.AsyncClient) -> None:
    """`/secret` reads them under a path of their own before it changes one."""
    body = {"model": "builtin/echo", "secrets": {"MAP_KEY": "k-1"}}
    agent_id = (await http.post("/v1/agents/", json=body)).json()["id"]
    [secret] = (await http.get(f"/v1/agents/{agent_id}/secrets")).json()
    assert (secret["key"], secret["value"]) == ("MAP_KEY", "k-1")
    assert (await http.get(f"/v1/agents/{UNKNOWN_AGENT}/secrets")).status_code == 404


async def test_the_sdks_iterators_over_empty_lists_end(http: httpx.AsyncClient) -> None:
    client = AsyncLetta(base_url="http://localhost", api_key="none", http_client=http)
    agent = await client.agents.create(model="builtin/echo")
    assert [one async for one in client.folders.list()] == []
    assert [one async for one in client.agents.folders.list(agent.id)] == []
    assert [one async for one in client.agents.files.list(agent.id)] == []
    assert await client.mcp_servers.list() == []


async def test_an_unknown_path_and_a_wrong_method(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/nonsense")).status_code == 404
    assert (await http.put(f"/v1/agents/{UNKNOWN_AGENT}")).status_code == 405


async def test_a_key_opens_its_own_project_only(database: Database) -> None:
    async with api_client(database, api_keys="one=k1,two=k2") as http:
        one, two = {"Authorization": "Bearer k1"}, {"Authorization": "Bearer k2"}
        agent = (await http.post("/v1/agents/", json={"model": "builtin/echo"}, headers=one)).json()
        path = f"/v1/agents/{agent['id']}"

        assert (await http.get(path, headers=one)).status_code == 200
        for method, body in (("GET", None), ("PATCH", "{}"), ("DELETE", None)):
            headers = two | {"Content-Type": "application/json"}
            assert (await http.request(method, path, content=body, headers=headers)).status_code == 404
        assert (await http.get("/v1/agents/", headers=two)).json() == []
        refused = await http.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "Bearer <key>" in refused.json()["detail"]
        assert (await http.get("/v1/health/")).status_code == 200


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_a_text_that_cannot_be_stored_is_refused(http: httpx.AsyncClient, text: str) -> None:
    async def status(path: str, body: dict[str, Any]) -> int:
        # httpx would refuse to send half a surrogate pair; others write it as an escape.
        answer = await http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
        return answer.status_code

    assert await status("/v1/agents/", {"model": "builtin/echo", "name": text}) == 422
    assert await status("/v1/agents/", {"model": "builtin/echo", "tags": [text]}) == 422
    assert await status("/v1/agents/", {"model": "builtin/echo", "metadata": {"deep": [text]}}) == 422
    assert await status("/v1/blocks/", {"label": "human", "value": text}) == 422
    assert (await http.get("/v1/agents/")).json() == []


async def test_the_address_alone_says_where_to_go(http: httpx.AsyncClient) -> None:
    """It was a 404, and nobody knew of `/docs`."""
    answer = await http.get("/")
    assert (answer.status_code, answer.json()["name"]) == (200, "Holdfast")
    links = [text for text in answer.json().values() if text.startswith("/")]
    assert "/docs" in links
    for link in links:
        assert (await http.get(link)).status_code == 200


async def test_an_api_without_a_worker_is_ready_and_its_deployment_is_not(http: httpx.AsyncClient) -> None:
    """Balancers took every API process out for it, so that nobody could submit, read or cancel anything."""
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "services": {"database": True}})
    for full in ("full", "full=true", "full=1"):
        answer = await http.get(f"/readyz?{full}")
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
        services = answer.json()["services"]
        writes = {"database_writes": True, "redis_writes": True}
        assert services == {"database": True, "migrations": True, "redis": True, "worker": False} | writes
    assert (await http.get("/readyz?full=false")).status_code == 200
    assert (await http.get("/readyz?full=perhaps")).status_code == 422


async def test_a_database_that_is_away_is_a_503() -> None:
    database = Database("postgresql://127.0.0.1:9/nothing")
    try:
        async with api_client(database) as http:
            answer = await http.get("/v1/agents/")
            ready, full = await http.get("/readyz"), await http.get("/readyz?full")
    finally:
        await database.aclose()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["detail"] == "SERVICE_UNAVAILABLE: the database does not answer; try again"
    said = {"status": "not ready", "services": {"database": False}, "code": "service_unavailable"}
    assert (ready.status_code, ready.json() | said) == (503, ready.json())
    assert (full.status_code, full.json()["services"]) == (
        503,
        {"database": False, "database_writes": False, "migrations": None}
        | {"redis": True, "redis_writes": True, "worker": False},
    ), "nobody but the database knows its shape"
