"""MCP servers of a project over the wire, with Letta's SDK and the official package's server."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

import pytest
from letta_client import APIStatusError, BadRequestError, ConflictError, NotFoundError

from api.mcp_servers import MASK
from shared.mcp_tools import MOST_TOOLS
from tests.kit.free_ports import free_port
from tests.kit.mcp.official import OfficialServer, official_server
from tests.kit.product import Product

LOOPBACK = {"reachable_networks": "127.0.0.0/8"}
TOKEN = "Bearer token-of-the-server"
SCRIPT = str(Path(__file__).parent.parent / "kit" / "mcp" / "stdio_server.py")
NAMES = {"add", "ask", "fail", "show", "structured", "wait"}


@pytest.fixture
def settings() -> dict[str, Any]:
    return LOOPBACK


@pytest.fixture
async def official() -> AsyncGenerator[OfficialServer]:
    async with official_server("stateless") as server:
        yield server


def config(server: OfficialServer, **fields: Any) -> Any:
    """What Letta's SDK is told of a server."""
    return {"mcp_server_type": "streamable_http", "server_url": server.target.url, "auth_token": TOKEN} | fields


def sdk(product: Product) -> Any:
    """The SDK's methods. Their types say less than the answers: which of three a server is."""
    return product.client.mcp_servers


def _body(error: APIStatusError) -> Any:
    return error.body


async def made(product: Product, official: OfficialServer, name: str = "tools", **fields: Any) -> Any:
    return await sdk(product).create(server_name=name, config=config(official, **fields))


async def test_a_server_is_made_with_its_tools_and_an_agent_is_given_one(
    product: Product, official: OfficialServer
) -> None:
    client = product.client
    server = await made(product, official)

    assert (server.server_name, server.mcp_server_type, server.server_url) == (
        "tools", "streamable_http", official.target.url,
    )  # fmt: skip
    assert server.id is not None
    tools = {tool.name: tool for tool in await sdk(product).tools.list(server.id)}
    assert set(tools) == NAMES
    add = tools["add"]
    assert (add.tool_type, add.description, add.tags) == ("external_mcp", "Adds two numbers.", ["mcp:tools"])
    assert add.json_schema is not None
    assert set(add.json_schema["parameters"]["properties"]) == {"a", "b"}
    assert (await sdk(product).tools.retrieve(add.id, mcp_server_id=server.id)).name == "add"
    assert [one.name async for one in client.tools.list(tool_types=["external_mcp"], name="add")] == ["add"]

    agent = await client.agents.create(model="builtin/echo", tools=["add"], include_base_tools=False)
    assert [tool.id for tool in agent.tools] == [add.id]
    [shown] = (await product.http.get(f"/v1/agents/{agent.id}/mcp-servers")).json()
    assert shown["id"] == server.id


async def test_the_token_is_sent_and_never_shown(product: Product, official: OfficialServer) -> None:
    server = await made(product, official, custom_headers={"X-Team": "blue-team"})

    assert official.authorizations == {TOKEN}
    answers = [
        (await product.http.get(f"/v1/mcp-servers/{server.id}")).json(),
        *(await product.http.get("/v1/mcp-servers")).json(),
        (await product.http.get("/v1/tools/mcp/servers")).json()["tools"],
    ]
    for shown in answers:
        assert (shown["auth_header"], shown["auth_token"]) == ("Authorization", MASK)
        assert shown["custom_headers"] == {"X-Team": MASK}
    assert "token-of-the-server" not in str(answers)


async def test_what_was_shown_is_sent_back_and_keeps_the_secrets(product: Product, official: OfficialServer) -> None:
    server = await made(product, official, custom_headers={"X-Team": "blue-team", "X-Old": "old"})
    shown: Any = {
        "mcp_server_type": "streamable_http",
        "server_url": server.server_url,
        "auth_token": f"Bearer {MASK}",
        "custom_headers": {"X-Team": MASK, "X-New": "new"},
    }

    after = await sdk(product).update(server.id, server_name="renamed", config=shown)

    assert (after.server_name, after.auth_token) == ("renamed", MASK)
    assert set(after.custom_headers or ()) == {"X-Team", "X-New"}
    official.authorizations.clear()
    assert await sdk(product).refresh(server.id) == {"added": [], "updated": [], "deleted": [], "skipped": []}
    assert official.authorizations == {TOKEN}
    assert {tag for tool in await sdk(product).tools.list(server.id) for tag in tool.tags or ()} == {"mcp:renamed"}
    nothing: Any = {"server_url": None, "auth_token": None, "custom_headers": None}
    bare = await sdk(product).update(server.id, config=nothing)
    assert (bare.auth_token, bare.auth_header, bare.custom_headers) == (None, None, None)


async def test_who_changes_the_address_could_have_the_token_sent_there(
    product: Product, official: OfficialServer
) -> None:
    server = await made(product, official)
    elsewhere: Any = {"server_url": "http://127.0.0.1:9999/mcp", "auth_token": MASK}

    for sent in (elsewhere, {"server_url": "http://127.0.0.1:9999/mcp"}):
        with pytest.raises(BadRequestError) as refused:
            await sdk(product).update(server.id, config=sent)
        assert _body(refused.value)["field"] == "server_url"
    kept = await sdk(product).retrieve(server.id)
    assert kept.server_url == server.server_url
    after = await sdk(product).update(server.id, config=elsewhere | {"auth_token": "new"})
    assert after.server_url == "http://127.0.0.1:9999/mcp"


async def test_a_refresh_takes_over_what_the_server_lists_now(product: Product, official: OfficialServer) -> None:
    client = product.client
    server = await made(product, official)
    [wait] = [tool for tool in await sdk(product).tools.list(server.id) if tool.name == "wait"]
    agent = await client.agents.create(model="builtin/echo", tools=["wait", "add"], include_base_tools=False)
    official.mcp.remove_tool("wait")
    official.mcp.remove_tool("fail")
    official.mcp.add_tool(lambda: "new", name="fail", description="Fails no more.")
    official.mcp.add_tool(lambda: "late", name="late")

    changes = await sdk(product).refresh(server.id, agent_id=agent.id)

    assert changes == {"added": ["late"], "updated": ["fail"], "deleted": ["wait"], "skipped": []}
    assert [tool.name for tool in (await client.agents.retrieve(agent.id)).tools] == ["add"]
    with pytest.raises(NotFoundError):
        await client.tools.retrieve(wait.id)


async def test_a_refresh_deleted_a_tool_whose_schema_had_become_too_large_and_gave_no_reason(
    product: Product, official: OfficialServer
) -> None:
    server = await made(product, official)

    def add(kind: Any) -> str:
        return str(kind)

    add.__annotations__["kind"] = Literal[tuple(f"kind {number}" for number in range(3_000))]
    official.mcp.remove_tool("add")
    official.mcp.add_tool(add, name="add")

    [skipped] = (changes := await sdk(product).refresh(server.id)).pop("skipped")

    assert changes == {"added": [], "updated": [], "deleted": []}
    assert (skipped["name"], "more than" in skipped["reason"]) == ("add", True)
    assert {tool.name for tool in await sdk(product).tools.list(server.id)} == NAMES


async def test_a_tool_is_run_and_says_when_it_failed(product: Product, official: OfficialServer) -> None:
    client = product.client
    server = await made(product, official)
    tools = {tool.name: tool.id for tool in await sdk(product).tools.list(server.id)}

    async def run(name: str, **args: object) -> Any:
        return await sdk(product).tools.run(tools[name], mcp_server_id=server.id, args=args)

    assert ((await run("add", a=2, b=3)).func_return, official.calls) == ("5", ["add"])
    failed = await run("fail")
    assert (failed.status, "it cannot be done" in failed.func_return) == ("error", True)
    assert "images" in (await run("show")).func_return
    events = (await product.http.get("/v1/admin/audit", params={"action": "tool.called"})).json()
    assert [event["object_id"] for event in events] == [tools["show"], tools["fail"], tools["add"]]
    custom = await client.tools.create(source_code='def mine() -> str:\n    """Mine."""\n    return "x"\n')
    with pytest.raises(NotFoundError):
        await sdk(product).tools.run(custom.id, mcp_server_id=server.id)


async def test_the_sdk_sent_a_call_again_after_a_timeout(product: Product, official: OfficialServer) -> None:
    """The first one may have had its effect."""
    server = await made(product, official)
    tools = {tool.name: tool.id for tool in await sdk(product).tools.list(server.id)}
    again = {"X-Stainless-Retry-Count": "1"}

    for name, status in (("fail", 409), ("add", 200)):
        path = f"/v1/mcp-servers/{server.id}/tools/{tools[name]}/run"
        answer = await product.http.post(path, json={"args": {"a": 1, "b": 1}}, headers=again)
        assert answer.status_code == status
    assert (answer.json()["func_return"], official.calls) == ("2", ["add"])
    older = f"/v1/tools/mcp/servers/{server.server_name}/tools/fail/execute"
    refused = await product.http.post(older, json={"args": {}}, headers=again)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")


async def test_a_server_that_is_away_is_kept_and_taken_over_later(product: Product) -> None:
    _client, port = product.client, free_port()
    away: Any = {"mcp_server_type": "streamable_http", "server_url": f"http://127.0.0.1:{port}/mcp"}

    answer = await product.http.post("/v1/mcp-servers/", json={"server_name": "late", "config": away})

    body = answer.json()
    assert (answer.status_code, body["refreshed_at"]) == (200, None)
    assert "cannot be reached" in body["problem"]
    assert "were not taken over" in answer.headers["warning"]
    refused = await product.http.patch(f"/v1/mcp-servers/{body['id']}/refresh")
    assert (refused.status_code, refused.json()["code"]) == (502, "mcp_server_unavailable")
    # The same request might have a second effect.
    assert refused.headers["x-should-retry"] == "false"
    async with official_server("stateless", port=port):
        assert set((await sdk(product).refresh(body["id"]))["added"]) == NAMES
    shown = (await product.http.get(f"/v1/mcp-servers/{body['id']}")).json()
    assert (shown["problem"], shown["refreshed_at"] is None) == (None, False)


async def test_a_call_whose_server_is_gone_is_not_sent_again(product: Product) -> None:
    async with official_server("stateless") as official:
        server = await made(product, official)
        tools = {tool.name: tool.id for tool in await sdk(product).tools.list(server.id)}
    path = f"/v1/mcp-servers/{server.id}/tools/{tools['add']}/run"
    answer = await product.http.post(path, json={"args": {"a": 1, "b": 1}})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")


async def test_a_deleted_server_takes_its_tools_with_it(product: Product, official: OfficialServer) -> None:
    client = product.client
    server = await made(product, official)
    agent = await client.agents.create(model="builtin/echo", tools=["add"], include_base_tools=False)

    await sdk(product).delete(server.id)

    assert (await client.agents.retrieve(agent.id)).tools == []
    assert await sdk(product).list() == []
    with pytest.raises(NotFoundError):
        await sdk(product).retrieve(server.id)


async def test_two_servers_of_one_name(product: Product, official: OfficialServer) -> None:
    await made(product, official)
    with pytest.raises(ConflictError):
        await made(product, official)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mcp_server_type": "streamable_http"}, "server_url"),
    ({"mcp_server_type": "streamable_http", "server_url": "ftp://example.com"}, "server_url"),
    ({"mcp_server_type": "sse", "server_url": "http://example.com:22/"}, "server_url"),
    ({"mcp_server_type": "streamable_http", "server_url": "http://a.test/", "auth_token": MASK}, "auth_token"),
    ({"mcp_server_type": "streamable_http", "server_url": "http://a.test/", "auth_token": "a\nb"}, "auth_token"),
    ({"mcp_server_type": "sse", "server_url": "http://a.test/", "custom_headers": {"Host": "b"}}, "custom_headers"),
    ({"mcp_server_type": "sse", "server_url": "http://a.test/", "custom_headers": {"a b": "b"}}, "custom_headers"),
    ({"mcp_server_type": "stdio", "command": "rm", "args": ["-r"]}, "command"),
    ({"command": "uvx", "args": ["mcp-server-time"]}, "command"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG)
async def test_a_server_that_leads_nowhere_is_refused_with_the_field(
    product: Product, wrong: dict[str, Any], field: str
) -> None:
    answer = await product.http.post("/v1/mcp-servers", json={"server_name": "x", "config": wrong})
    assert (answer.status_code, answer.json()["field"].partition(".")[0]) == (400, field)
    if field == "command":
        assert "HOLDFAST_MCP_COMMANDS" in answer.json()["message"]
    assert (await product.http.get("/v1/mcp-servers")).json() == []


async def test_what_a_server_says_of_its_tool_is_changed_there(product: Product, official: OfficialServer) -> None:
    server = await made(product, official)
    [add] = [tool for tool in await sdk(product).tools.list(server.id) if tool.name == "add"]
    source = 'def add(a: int) -> int:\n    """Mine."""\n    return a\n'
    for change in ({"source_code": source}, {"description": "Mine."}, {"json_schema": {"name": "add"}}):
        answer = await product.http.patch(f"/v1/tools/{add.id}", json=change)
        assert (answer.status_code, answer.json()["field"]) == (400, next(iter(change)))
    assert (await product.http.put("/v1/tools", json={"source_code": source})).status_code == 400

    changed = {"default_requires_approval": True, "tags": ["mine"], "metadata_": {"note": "mine"}}
    after = (await product.http.patch(f"/v1/tools/{add.id}", json=changed)).json()

    assert (after["default_requires_approval"], after["tags"]) == (True, ["mcp:tools", "mine"])
    assert after["metadata_"]["note"] == "mine"
    assert (await sdk(product).refresh(server.id)) == {"added": [], "updated": [], "deleted": [], "skipped": []}


async def test_a_name_that_the_project_has_goes_behind_the_servers(product: Product, official: OfficialServer) -> None:
    mine = await product.client.tools.create(source_code='def add(a: int) -> int:\n    """Mine."""\n    return a\n')
    server = await made(product, official, "Team tools")
    names = {tool.name for tool in await sdk(product).tools.list(server.id)}
    assert names == NAMES - {"add"} | {"Team_tools_add"}
    assert (await product.client.tools.retrieve(mine.id)).tool_type == "custom"


async def test_a_server_with_too_many_tools_is_said(product: Product, official: OfficialServer) -> None:
    for number in range(MOST_TOOLS):
        official.mcp.add_tool(lambda: "x", name=f"tool_{number}")
    answer = await product.http.post("/v1/mcp-servers", json={"server_name": "many", "config": config(official)})
    assert (answer.status_code, f"{MOST_TOOLS} are the most" in answer.json()["problem"]) == (200, True)


async def test_programs_of_the_older_routes_find_servers_by_name(product: Product, official: OfficialServer) -> None:
    http, path = product.http, "/v1/tools/mcp/servers"
    described = {
        "server_name": "old",
        "type": "streamable_http",
        "server_url": official.target.url,
        "auth_token": TOKEN,
    }

    tried = await http.post(f"{path}/test", json=described)
    assert {tool["name"] for tool in tried.json()["tools"]} == NAMES
    assert (await http.get(path)).json() == {}

    [shown] = (await http.put(path, json=described)).json()
    assert shown == {
        "server_name": "old", "type": "streamable_http", "server_url": official.target.url,
        "auth_header": "Authorization", "auth_token": MASK, "custom_headers": None,
    }  # fmt: skip
    assert (await http.put(path, json=described | {"auth_token": MASK})).json() == [shown]
    assert (await http.get(path)).json() == {"old": shown}
    listed = {tool["name"]: tool for tool in (await http.get(f"{path}/old/tools")).json()}
    assert listed["add"]["annotations"] == {"readOnlyHint": True, "idempotentHint": True}
    called = await http.post(f"{path}/old/tools/add/execute", json={"args": {"a": 1, "b": 1}})
    assert called.json() == {"result": "2", "success": True}

    official.mcp.add_tool(lambda: "x", name="late")
    assert (await http.post(f"{path}/old/late")).json()["name"] == "late"
    assert (await http.post(f"{path}/old/late")).status_code == 200
    assert (await http.post(f"{path}/old/nothing")).status_code == 404
    assert (await http.post(f"{path}/old/resync")).json()["added"] == []
    renamed = await http.patch(f"{path}/old", json={"server_name": "new", "token": "other"})
    assert renamed.json()["server_name"] == "new"
    assert (await http.delete(f"{path}/new")).json() == []
    for method, rest in (("GET", "old/tools"), ("PATCH", "old"), ("DELETE", "old"), ("POST", "old/resync")):
        assert (await http.request(method, f"{path}/{rest}", json={})).status_code == 404


@pytest.mark.parametrize(
    "settings", [LOOPBACK | {"mcp_commands": f"{sys.executable} {SCRIPT} *", "mcp_always_ask": True}]
)
async def test_a_command_that_the_operator_has_listed_is_a_server(product: Product) -> None:
    stdio: Any = {"mcp_server_type": "stdio", "command": sys.executable, "args": [SCRIPT], "env": {"GREETING": "hi"}}
    server: Any = await sdk(product).create(server_name="local", config=stdio)

    assert (server.command, server.args, server.env) == (sys.executable, [SCRIPT], {"GREETING": MASK})
    tools = await sdk(product).tools.list(server.id)
    assert tools
    assert {tool.default_requires_approval for tool in tools} == {True}
    with pytest.raises(APIStatusError):
        await sdk(product).update(server.id, config={"command": "rm", "args": []})
    older = "/v1/tools/mcp/servers/local"
    changed = {"stdio_config": {"command": sys.executable, "args": [SCRIPT, "x"], "env": {"GREETING": "hello"}}}
    assert (await product.http.patch(older, json=changed)).json()["args"] == [SCRIPT, "x"]


@pytest.mark.parametrize("settings", [LOOPBACK | {"mcp_always_ask": True}])
async def test_an_operators_demand_holds_whatever_the_tool_is_set_to(product: Product) -> None:
    script = '{"turns": [{"calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]}, {"text": "Five."}]}'
    async with official_server("stateless") as official:
        server = await made(product, official)
        [add] = [tool for tool in await sdk(product).tools.list(server.id) if tool.name == "add"]
        assert add.default_requires_approval is True
        await product.client.tools.update(add.id, default_requires_approval=False)
        agent = await product.client.agents.create(model="builtin/scripted", tools=["add"], include_base_tools=False)
        await product.http.patch(f"/v1/agents/{agent.id}/tools/approval/add", json={"requires_approval": False})

        answer = await product.client.agents.messages.create(agent.id, input=script)

        assert [message.message_type for message in answer.messages][-1] == "approval_request_message"
        assert official.calls == []


async def test_a_file_names_the_server_and_is_bound_to_the_one_of_its_name(
    product: Product, official: OfficialServer
) -> None:
    server = await made(product, official)
    agent = await product.client.agents.create(model="builtin/echo", tools=["add"], include_base_tools=False)
    file = (await product.http.get(f"/v1/agents/{agent.id}/export")).json()

    [named] = file["mcp_servers"]
    assert (named["server_name"], named["server_type"], named["server_url"]) == (
        "tools", "streamable_http", official.target.url,
    )  # fmt: skip
    assert "token-of-the-server" not in str(file)

    async def brought() -> tuple[list[str], str]:
        upload = {"file": ("agent.af", json.dumps(file))}
        answer = await product.http.post("/v1/agents/import", files=upload)
        [made_id] = answer.json()["agent_ids"]
        tools = (await product.client.agents.retrieve(made_id)).tools
        return [str(tool.name) for tool in tools], answer.headers.get("warning", "")

    assert await brought() == (["add"], "")
    await sdk(product).delete(server.id)
    own = await product.client.tools.create(source_code='def add(a: int) -> int:\n    """Mine."""\n    return a\n')
    renamed = await made(product, official)
    assert await brought() == (["tools_add"], "")
    await sdk(product).delete(renamed.id)
    names, warning = await brought()
    assert (names, "MCP servers are left out" in warning) == ([], True)
    assert "the project has no MCP server named 'tools'" in warning
    assert (await product.client.tools.retrieve(own.id)).name == "add"
