"""How agents are found by the names of their tools, and what a call holds while it lasts."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from api.access.callers import EVERYBODY
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
from tests.kit.product.in_process import api_app, asgi_client
from tests.kit.runs.definitions import OTHER_PROJECT, PROJECT, some_agent
from tests.kit.services.databases import open_database
from tests.kit.wait_until import wait_until

CALLER = replace(EVERYBODY, project_id=PROJECT)


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


async def test_a_call_that_was_sent_again_held_the_turn_of_submissions_for_as_long_as_its_run(sqlite_url: str) -> None:
    async with (
        open_database(sqlite_url) as opened,
        api_app(opened, submissions_at_once=1, submission_wait=0.2) as app,
        asgi_client(app) as http,
    ):
        agent = (await http.post("/v1/agents", json={"name": "a", "model": "builtin/echo"})).json()["id"]
        digits = agent.removeprefix("agent-").replace("-", "")[:12]

        async def call(key: str, **capabilities: Any) -> Any:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            }
            params = {"name": digits, "arguments": {"message": "Hi"}, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": digits}
            return await http.post("/mcp", json=body, headers=headers | {"Idempotency-Key": key})

        takes_tasks: Any = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        first = await call("a", **takes_tasks)
        task_id = first.json()["result"]["taskId"]
        waiting = asyncio.create_task(call("a"), name="the call again")
        quotas = app.state.services.quotas
        await wait_until(lambda: quotas.open_streams, description="the stream to begin")
        other = await call("b", **takes_tasks)
        assert other.status_code == 200, other.text
        assert not waiting.done()
        await http.post(f"/v1/runs/{task_id}/cancel")
        assert "cancelled" in (await waiting).text
