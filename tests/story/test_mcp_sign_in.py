"""A person signs in at an MCP server (OAuth), and agents call its tools with what was granted."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import sqlalchemy as sa

from api.mcp_servers import MASK
from shared.domain.errors import ErrorCode
from shared.sql.tables import mcp_servers, mcp_sign_ins
from tests.kit.mcp.authorizing import AuthorizingServer, authorizing_server, consented
from tests.kit.mcp.official import official_server
from tests.kit.mcp.signing_in import CALLBACK, Connecting, begun, came_back, of_stored, shown, signed_in, stored
from tests.kit.product import Product


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reachable_networks": "127.0.0.0/8"}


@pytest.fixture
async def notes() -> AsyncGenerator[AuthorizingServer]:
    async with authorizing_server() as server:
        yield server


async def agent_of(product: Product, server: dict[str, Any]) -> str:
    """An agent with the server's tools."""
    tools = (await product.http.get(f"/v1/mcp-servers/{server['id']}/tools")).json()
    return (await product.agent(tools=[tool["id"] for tool in tools])).id


async def result_of_call(product: Product, agent_id: str) -> tuple[str, str]:
    """What the agent's tool returns when a run calls it."""
    product.models.call("note", text="milk")
    product.models.say("Done.")
    answer = await product.http.post(f"/v1/agents/{agent_id}/messages", json={"input": "Go on."})
    assert answer.status_code == 200, answer.text
    [result] = [one for one in answer.json()["messages"] if one["message_type"] == "tool_return_message"]
    return result["status"], result["tool_return"]


async def test_a_person_signs_in_and_the_tools_are_taken_over(product: Product, notes: AuthorizingServer) -> None:
    server = await stored(product, notes)
    assert server["sign_in"]["state"] == "needed"
    assert "401" in server["problem"]
    connecting = of_stored(product, server)

    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        url = await connecting.url
        location = await consented(url)
        answer = await came_back(product, location)

    assert location.startswith(f"{product.base_url}{CALLBACK}?")
    assert (answer.status_code, answer.json()["status"], answer.json()["tools"]) == (200, "success", 1)
    assert [event["event"] for event in connecting.events] == [
        "connection_attempt", "oauth_required", "authorization_url", "waiting_for_auth", "success",
    ]  # fmt: skip
    assert [tool["name"] for tool in connecting.events[-1]["tools"]] == ["note"]
    after = await shown(product, server)
    assert (after["sign_in"]["state"], after["problem"]) == ("signed_in", None)
    assert after["sign_in"]["scope"] == "notes"
    assert after["sign_in"]["authorization_server"].startswith(notes.origin)
    assert (after["auth_token"], after["auth_header"]) == (MASK, "Authorization")
    tools = (await product.http.get(f"/v1/mcp-servers/{server['id']}/tools")).json()
    assert [tool["name"] for tool in tools] == ["note"]


async def test_a_run_calls_a_tool_with_the_granted_token_and_nobody_is_shown_it(
    product: Product, notes: AuthorizingServer
) -> None:
    server = await signed_in(product, notes)
    assert await result_of_call(product, await agent_of(product, server)) == ("success", "noted milk")
    assert notes.calls == ["milk"]
    answers = [
        (await product.http.get("/v1/mcp-servers")).text,
        (await product.http.get("/v1/tools/mcp/servers")).text,
        (await product.http.get("/v1/admin/audit")).text,
    ]
    async with product.context.database.read() as connection:
        answers += await connection.scalars(sa.select(mcp_servers.c.document))
        answers += await connection.scalars(sa.select(mcp_sign_ins.c.sealed))
    assert len(notes.issued) == 2
    assert not [token for token in notes.issued for answer in answers if token in answer]


async def test_a_server_of_the_first_version_is_signed_in_at_and_asks_again(product: Product) -> None:
    async with authorizing_server("sse") as old:
        server = await signed_in(product, old, mcp_server_type="sse")
        agent_id = await agent_of(product, server)
        assert await result_of_call(product, agent_id) == ("success", "noted milk")
        old.forget()
        # The connection was made with the old token, and is kept for a while: another one is made for another name.
        await product.http.patch(f"/v1/mcp-servers/{server['id']}", json={"server_name": "renamed"})
        status, text = await result_of_call(product, agent_id)
    assert (status, "sign in again" in text, old.calls) == ("error", True, ["milk"])


async def test_a_token_that_has_ended_is_renewed_by_who_needs_it(product: Product, notes: AuthorizingServer) -> None:
    notes.said_lifetime_s = 1
    server = await signed_in(product, notes)
    agent_id = await agent_of(product, server)
    notes.grants.clear()
    assert await result_of_call(product, agent_id) == ("success", "noted milk")
    assert notes.grants == ["refresh_token"]
    assert (await product.http.patch(f"/v1/mcp-servers/{server['id']}/refresh")).status_code == 200
    assert notes.grants == ["refresh_token", "refresh_token"]
    assert notes.reused == 0


async def test_a_token_that_the_server_refuses_is_renewed_and_the_call_is_made_once(
    product: Product, notes: AuthorizingServer
) -> None:
    server = await signed_in(product, notes)
    agent_id = await agent_of(product, server)
    notes.access.clear()
    notes.grants.clear()
    assert await result_of_call(product, agent_id) == ("success", "noted milk")
    assert (notes.grants, notes.calls) == (["refresh_token"], ["milk"])


async def test_a_sign_in_that_has_ended_is_said_and_begun_again(product: Product, notes: AuthorizingServer) -> None:
    server = await signed_in(product, notes)
    agent_id = await agent_of(product, server)
    notes.forget()
    notes.grants.clear()

    for _ in range(2):
        status, text = await result_of_call(product, agent_id)
        assert (status, "sign in again" in text) == ("error", True)
    refused = await product.http.patch(f"/v1/mcp-servers/{server['id']}/refresh")

    assert (refused.status_code, refused.json()["code"]) == (502, ErrorCode.MCP_SIGN_IN_NEEDED)
    assert (notes.grants, notes.calls) == (["refresh_token"], [])
    ended = await shown(product, server)
    assert (ended["sign_in"]["state"], ended["auth_token"]) == ("needed", MASK)
    connecting = of_stored(product, server)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        await came_back(product, await consented(await connecting.url))
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"
    assert await result_of_call(product, agent_id) == ("success", "noted milk")
    assert len(notes.clients) == 1


async def test_without_a_refresh_token_a_person_signs_in_again(product: Product, notes: AuthorizingServer) -> None:
    notes.refreshes = False
    server = await signed_in(product, notes)
    agent_id = await agent_of(product, server)
    assert (await result_of_call(product, agent_id))[0] == "success"
    notes.access.clear()
    status, text = await result_of_call(product, agent_id)
    assert (status, "sign in again" in text) == ("error", True)
    assert (await shown(product, server))["sign_in"]["state"] == "needed"
    assert notes.grants == ["authorization_code"]


async def test_what_was_shown_is_sent_back_and_keeps_the_sign_in(product: Product, notes: AuthorizingServer) -> None:
    server = await signed_in(product, notes)
    path = f"/v1/mcp-servers/{server['id']}"
    for config in ({"auth_token": MASK}, {"server_url": notes.url}, {"custom_headers": {"X-Team": "blue-team"}}):
        after = (await product.http.patch(path, json={"config": config})).json()
        assert (after["sign_in"]["state"], after["auth_token"]) == ("signed_in", MASK), config
    assert (await product.http.patch(f"{path}/refresh")).status_code == 200


@pytest.mark.parametrize(
    ("config", "token"),
    [
        ({"auth_token": None}, None),
        ({"auth_token": "another-token"}, MASK),
        ({"server_url": "http://127.0.0.1:9999/mcp"}, None),
    ],
)
async def test_a_sign_in_ends_with_its_token_or_its_address(
    product: Product, notes: AuthorizingServer, config: dict[str, Any], token: str | None
) -> None:
    server = await signed_in(product, notes)
    after = (await product.http.patch(f"/v1/mcp-servers/{server['id']}", json={"config": config})).json()
    assert (after["sign_in"], after["auth_token"]) == (None, token)
    async with product.context.database.read() as connection:
        [secrets] = await connection.scalars(sa.select(mcp_servers.c.secrets))
    assert "oauth" not in secrets


async def test_a_server_that_is_not_stored_is_when_a_person_has_signed_in(
    product: Product, notes: AuthorizingServer
) -> None:
    body = {"server_name": "notes", "type": "streamable_http", "server_url": notes.url}
    connecting = Connecting(product, "POST", "/v1/tools/mcp/servers/connect", json=body)
    async with asyncio.TaskGroup() as group:
        group.create_task(connecting.read())
        url = await connecting.url
        assert (await product.http.get("/v1/mcp-servers")).json() == []
        assert (await came_back(product, await consented(url))).status_code == 200
    assert connecting.events[-1]["event"] == "success"
    [server] = (await product.http.get("/v1/mcp-servers")).json()
    assert (server["server_name"], server["sign_in"]["state"]) == ("notes", "signed_in")
    named = (await product.http.put("/v1/tools/mcp/servers", json=body)).json()
    assert [(one["server_name"], one["auth_token"]) for one in named] == [("notes", MASK)]


async def test_a_server_that_asks_for_nothing_is_connected_at_once(product: Product) -> None:
    async with official_server("stateless") as official:
        config = {"server_url": official.target.url}
        made = (await product.http.post("/v1/mcp-servers", json={"server_name": "t", "config": config})).json()
        events = await of_stored(product, made).read()
    assert [event["event"] for event in events] == ["connection_attempt", "success"]
    assert "add" in {tool["name"] for tool in events[-1]["tools"]}
    [*_, last] = await of_stored(product, made).read()
    assert (last["event"], "cannot be reached" in last["message"]) == ("error", True)


async def test_who_has_begun_a_sign_in_is_recorded(product: Product, notes: AuthorizingServer) -> None:
    server = await signed_in(product, notes)
    events = (await product.http.get("/v1/admin/audit", params={"action": "mcp_server.signed_in"})).json()
    assert [(event["object_id"], event["key_id"]) for event in events] == [(server["id"], "anybody")]
    tools = (await product.http.get("/v1/admin/audit", params={"action": "tool.created"})).json()
    assert {event["key_id"] for event in tools} == {"anybody"}


async def test_the_person_is_shown_a_page(product: Product, notes: AuthorizingServer) -> None:
    _, location = await begun(product, notes)
    page = await came_back(product, location, accept="text/html,*/*;q=0.8")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>Signed in</h1>" in page.text
    again = await came_back(product, location, accept="text/html,*/*;q=0.8")
    assert (again.status_code, "<h1>Not signed in</h1>" in again.text) == (400, True)
    assert again.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("settings", [{"reachable_networks": "127.0.0.0/8", "public_url": "https://agents.example/"}])
async def test_the_browser_comes_back_to_the_public_url(product: Product, notes: AuthorizingServer) -> None:
    server, location = await begun(product, notes)
    assert location.startswith(f"https://agents.example{CALLBACK}?")
    assert (await came_back(product, location)).status_code == 200
    assert (await shown(product, server))["sign_in"]["state"] == "signed_in"


@pytest.mark.parametrize("settings", [{"reachable_networks": "127.0.0.0/8", "strict_requests": True}])
async def test_a_strict_server_takes_what_authorization_servers_add(product: Product, notes: AuthorizingServer) -> None:
    _, location = await begun(product, notes)
    assert (await came_back(product, f"{location}&session_state=1")).status_code == 200
