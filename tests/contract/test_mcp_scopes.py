"""Whose agents a key calls by the Model Context Protocol: scopes, keys of single agents, and two projects."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.sql.engine import Database
from tests.kit.keys import KeyMaker
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database

CONFIGURED = "a-long-key-of-the-operator"
OTHERS = "a-long-key-of-another-project"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
VERSION = "2026-07-28"


class Api:
    """An API without a worker, so that runs stay as they are, and keys for it."""

    def __init__(self, http: httpx.AsyncClient, database: Database) -> None:
        self.http = http
        self._database = database

    async def key(self, *scopes: str) -> str:
        headers = await KeyMaker(self._database)(*scopes)
        return headers.secret

    async def agent(self, name: str, key: str = CONFIGURED) -> str:
        body = {"name": name, "model": "builtin/echo", "include_base_tools": False}
        answer = await self.http.post("/v1/agents", json=body, headers={"Authorization": f"Bearer {key}"})
        return answer.json()["id"]

    async def ask(self, key: str, method: str, headers: dict[str, str] | None = None, **params: Any) -> httpx.Response:
        """A request of a client that takes tasks."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": TASKS,
        }
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
        named = {"Mcp-Name": str(params["name"])} if "name" in params else {}
        said = {"Authorization": f"Bearer {key}", "MCP-Protocol-Version": VERSION, "Mcp-Method": method, **named}
        return await self.http.post("/mcp", json=body, headers=said | (headers or {}))

    async def tools(self, key: str) -> dict[str, str]:
        """Names of tools, by the names of their agents."""
        answer = await self.ask(key, "tools/list")
        return {tool["title"]: tool["name"] for tool in answer.json()["result"]["tools"]}

    async def call(self, key: str, name: str, **arguments: Any) -> Any:
        answer = await self.ask(key, "tools/call", name=name, arguments={"message": "Hi", **arguments})
        return answer.json()


@pytest.fixture
async def api(sqlite_url: str) -> AsyncGenerator[Api]:
    keys = f"default={CONFIGURED},other={OTHERS}"
    async with open_database(sqlite_url) as database, api_client(database, api_keys=keys) as http:
        yield Api(http, database)


async def test_nobody_is_answered_without_a_key(api: Api) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = await api.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["data"]["hint"]


async def test_a_key_that_reads_lists_and_calls_nothing(api: Api) -> None:
    await api.agent("one")
    reader = await api.key("read")
    [name] = (await api.tools(reader)).values()

    asked: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": name, "arguments": {"message": "Hi"}}),
        ("tasks/cancel", {"taskId": "run-1"}),
        ("tasks/update", {"taskId": "run-1", "inputResponses": {}}),
    ]
    for method, params in asked:
        answer = await api.ask(reader, method, **params)
        assert (answer.status_code, answer.json()["error"]["data"]["code"]) == (403, "forbidden"), method
        assert "needs a key with the scope write" in answer.json()["error"]["message"]
    assert (await api.ask(reader, "server/discover")).status_code == 200
    assert (await api.http.get("/v1/runs", headers={"Authorization": f"Bearer {CONFIGURED}"})).json() == []


async def test_a_key_of_single_agents_sees_and_calls_these_alone(api: Api) -> None:
    mine, theirs = await api.agent("mine"), await api.agent("theirs")
    every = await api.tools(CONFIGURED)
    key = await api.key("write", f"agent:{mine}")

    assert list(await api.tools(key)) == ["mine"]
    task = (await api.call(key, every["mine"]))["result"]
    foreign = (await api.call(CONFIGURED, every["theirs"]))["result"]
    refused = await api.call(key, every["theirs"])
    unknown = await api.call(key, "theirs_0123456789ab")

    assert (task["resultType"], task["status"]) == ("task", "working")
    assert refused["error"]["code"] == unknown["error"]["code"] == -32602
    assert refused["error"]["message"].replace(every["theirs"], "") == unknown["error"]["message"].replace(
        "theirs_0123456789ab", ""
    )
    responses: dict[str, Any] = {"inputResponses": {}}
    for method, more in (("tasks/get", {}), ("tasks/cancel", {}), ("tasks/update", responses)):
        answer = await api.ask(key, method, taskId=foreign["taskId"], **more)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602)
        own = await api.ask(key, method, taskId=task["taskId"], **more)
        assert own.status_code == 200, own.text
    begun = await api.http.post(
        "/v1/conversations", params={"agent_id": theirs}, headers={"Authorization": f"Bearer {CONFIGURED}"}
    )
    result = (await api.call(key, every["mine"], conversation=begun.json()["id"]))["result"]
    assert result["isError"]
    assert "no conversation" in result["content"][0]["text"]


async def test_another_project_has_neither_the_tools_nor_the_tasks(api: Api) -> None:
    await api.agent("ours")
    [name] = (await api.tools(CONFIGURED)).values()
    task = (await api.call(CONFIGURED, name))["result"]["taskId"]
    await api.agent("theirs", OTHERS)

    assert list(await api.tools(OTHERS)) == ["theirs"]
    assert (await api.call(OTHERS, name))["error"]["code"] == -32602
    [other] = (await api.tools(OTHERS)).values()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("tasks/get", {"taskId": task}),
        ("tasks/cancel", {"taskId": task}),
        ("tasks/update", {"taskId": task, "inputResponses": {}}),
        ("tools/call", {"name": other, "arguments": {"message": "Hi"}, "requestState": task}),
    ]
    for method, params in asked:
        error = (await api.ask(OTHERS, method, **params)).json()["error"]
        assert (error["code"], error["message"]) == (-32602, f"Task not found: {task!r}"), method
    assert (await api.ask(CONFIGURED, "tasks/get", taskId=task)).json()["result"]["status"] == "working"


async def test_a_run_that_came_another_way_is_no_task(api: Api) -> None:
    agent = await api.agent("one")
    said = {"messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Authorization": f"Bearer {CONFIGURED}"}
    run = (await api.http.post(f"/v1/agents/{agent}/messages/async", json=said, headers=headers)).json()["id"]
    answer = await api.ask(CONFIGURED, "tasks/cancel", taskId=run)
    assert answer.json()["error"]["code"] == -32602


async def test_two_keys_do_not_share_the_names_of_their_calls(api: Api) -> None:
    await api.agent("one")
    [name] = (await api.tools(CONFIGURED)).values()
    other = await api.key("write")
    tasks: list[str] = []
    for key in (CONFIGURED, CONFIGURED, other):
        answer = await api.ask(
            key, "tools/call", {"Idempotency-Key": "a"}, name=name, arguments={"message": "Hi", "conversation": "new"}
        )
        tasks.append(answer.json()["result"]["taskId"])
    assert tasks[0] == tasks[1] != tasks[2]
    listed = await api.http.get("/v1/conversations", headers={"Authorization": f"Bearer {CONFIGURED}"})
    assert len(listed.json()) == 2, "the repeated call has begun no second one"


async def test_a_page_of_tools_is_bounded_and_the_next_goes_on(api: Api) -> None:
    for number in range(101):
        await api.agent(f"agent {number}")
    first = (await api.ask(CONFIGURED, "tools/list")).json()["result"]
    second = (await api.ask(CONFIGURED, "tools/list", cursor=first["nextCursor"])).json()["result"]
    titles = [tool["title"] for page in (first, second) for tool in page["tools"]]
    assert titles == [f"agent {number}" for number in range(101)]
    assert (len(first["tools"]), "nextCursor" in second) == (100, False)
    assert (first["cacheScope"], first["ttlMs"]) == ("private", 10_000)
