"""How agents are found by the names of their tools, and what a call holds while it lasts."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from api.access.callers import ANONYMOUS
from api.letta.model_settings import changed_by_settings
from api.mcp.agent_tools import AgentTools, tool_name, wire_tool
from api.mcp.messages import RpcError
from api.runs.command import AgentThreads
from shared.concurrency import SystemClock
from shared.domain.agents import Agent
from shared.domain.ids import AgentId, IdMaker
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.conversations import ConversationStore
from shared.sql.engine import Database
from shared.sql.runs.retention import RetentionStore
from tests.kit.product.in_process import api_app, api_client, asgi_client
from tests.kit.runs.definitions import OTHER_PROJECT, PROJECT, some_agent
from tests.kit.services.databases import open_database
from tests.kit.wait_until import wait_until

CALLER = replace(ANONYMOUS, project_id=PROJECT)


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def tools(database: Database) -> AgentTools:
    threads = AgentThreads(
        agents=AgentEditor(database), conversations=ConversationStore(database), changed_by=changed_by_settings
    )
    return AgentTools(threads=threads, clock=SystemClock(), ids=IdMaker())


def named(name: str, digits: str = "0123456789ab") -> Agent:
    made = UUID(f"{digits}4abc8def{'0' * 12}"[:32])
    return msgspec.structs.replace(some_agent(), id=AgentId(f"agent-{made}"), name=name)


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("Greeter", "Greeter_0123456789ab"),
        ("refund desk (EU)", "refund_desk_EU_0123456789ab"),
        ("你好", "0123456789ab"),
        ("_-_", "0123456789ab"),
        ("a" * 100, f"{'a' * 27}_0123456789ab"),
    ],
)
def test_the_name_of_a_tool_is_one_that_every_model_takes(name: str, tool: str) -> None:
    assert tool_name(named(name)) == tool
    assert len(tool) <= 40


def test_a_long_description_is_cut_and_a_missing_one_replaced() -> None:
    long = wire_tool(msgspec.structs.replace(named("A"), description="x" * 5_000))["description"]
    assert (len(long), long[-1]) == (2_000, "…")
    none = wire_tool(msgspec.structs.replace(named("A"), description=" "))["description"]
    assert none == "Sends a message to the agent A and returns its answer."


async def test_an_agent_is_found_by_its_digits_and_among_equal_ones_by_its_words(
    database: Database, tools: AgentTools
) -> None:
    editor, ids = AgentEditor(database), IdMaker()
    first = named("first", "aaaaaaaaaaaa")
    twin = msgspec.structs.replace(first, id=AgentId(first.id[:-1] + "1"), name="twin")
    beside = [named("low", "aaaaaaaaaaa9"), named("high", "aaaaaaaaaaab")]
    foreign = msgspec.structs.replace(named("foreign", "bbbbbbbbbbbb"), project_id=OTHER_PROJECT)
    for agent in (first, *beside, foreign):
        await editor.create(agent, system_message_id=ids.message())
    assert (await tools.find(CALLER, "renamed_aaaaaaaaaaaa")).id == first.id
    await editor.create(twin, system_message_id=ids.message())

    assert (await tools.find(CALLER, tool_name(first))).id == first.id
    assert (await tools.find(CALLER, tool_name(twin))).id == twin.id
    for name in ("renamed_aaaaaaaaaaaa", tool_name(foreign), "aaaaaaaaaaaA", "x_aaaaaaaaaaa", "*_aaaaaaaaaaaa"):
        with pytest.raises(RpcError, match="Unknown tool"):
            await tools.find(CALLER, name)


async def asked(http: httpx.AsyncClient, method: str, *, key: str = "a", tasks: bool = True, **params: Any) -> Any:
    """A request of a client that takes tasks, or does not."""
    extensions: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}} if tasks else {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    name = {"Mcp-Name": params["name"]} if "name" in params else {}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Idempotency-Key": key, **name}
    return await http.post("/mcp", json=body, headers=headers)


async def tool_of(http: httpx.AsyncClient) -> dict[str, Any]:
    """A call of a new agent."""
    agent = (await http.post("/v1/agents", json={"name": "a", "model": "builtin/echo"})).json()["id"]
    return {"name": agent.removeprefix("agent-").replace("-", "")[:12], "arguments": {"message": "Hi"}}


async def test_a_call_that_was_sent_again_held_the_turn_of_submissions_for_as_long_as_its_run(sqlite_url: str) -> None:
    async with (
        open_database(sqlite_url) as opened,
        api_app(opened, submissions_at_once=1, submission_wait=0.2) as app,
        asgi_client(app) as http,
    ):
        call = await tool_of(http)
        task_id = (await asked(http, "tools/call", **call)).json()["result"]["taskId"]
        waiting = asyncio.create_task(asked(http, "tools/call", tasks=False, **call), name="the call again")
        quotas = app.state.services.quotas
        await wait_until(lambda: quotas.open_streams, description="the stream to begin")
        other = await asked(http, "tools/call", key="b", **call)
        assert other.status_code == 200, other.text
        assert not waiting.done()
        await http.post(f"/v1/runs/{task_id}/cancel")
        assert "cancelled" in (await waiting).text


async def test_a_task_says_how_long_it_is_kept_and_afterwards_that_it_has_expired(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as opened, api_client(opened, retain_days=7) as http:
        task = (await asked(http, "tools/call", **await tool_of(http))).json()["result"]
        assert task["ttlMs"] == 7 * 24 * 3600 * 1000
        assert (await asked(http, "tasks/cancel", taskId=task["taskId"])).status_code == 200
        now = (await asked(http, "tasks/get", taskId=task["taskId"])).json()["result"]
        assert (now["status"], now["statusMessage"]) == ("cancelled", "The run was cancelled: tasks/cancel")
        later = SystemClock().now() + timedelta(days=8)
        await RetentionStore(opened).prune(later, later)

        expired = await asked(http, "tasks/get", taskId=task["taskId"])

    assert (expired.status_code, expired.json()["error"]["code"]) == (400, -32602)
    assert "Task has expired" in expired.json()["error"]["message"]
