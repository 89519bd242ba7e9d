"""MCP servers of projects, and the tools that projects take over from them, on both databases."""

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.errors import NotFound
from shared.domain.ids import IdMaker
from shared.domain.mcp_servers import McpServer, RemoteTool
from shared.mcp_tools import TakeOver
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.tools import ToolFilter, ToolStore
from shared.sql.engine import Database
from shared.sql.paging import Page
from shared.sql.tables import mcp_servers
from tests.kit.runs.definitions import NOW, PROJECT, some_agent, some_server, some_tool
from tests.kit.services.databases import patient_database

LATER = NOW + timedelta(minutes=1)


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    opened = patient_database(database_url)
    yield opened
    await opened.aclose()


def taking(*names: str, **fields: object) -> TakeOver:
    remote = [RemoteTool(name=name, **fields) for name in names]  # pyright: ignore[reportArgumentType]
    return TakeOver(remote=remote, new_id=IdMaker().tool, now=LATER)


async def names(database: Database) -> Sequence[str]:
    found = await ToolStore(database).list(PROJECT, ToolFilter(), Page(limit=1000, ascending=True))
    return sorted(tool.name for tool in found)


async def test_the_document_has_no_secret(database: Database) -> None:
    await McpServerStore(database).create(some_server(secrets={"token": "sesame"}))
    async with database.read() as connection:
        [document] = await connection.scalars(sa.select(mcp_servers.c.document))
    assert "sesame" not in document


async def test_tools_are_taken_over_changed_and_deleted_with_their_links(database: Database) -> None:
    store, tools = McpServerStore(database), ToolStore(database)
    server = await store.create(some_server())
    await tools.upsert(some_tool("search"))
    first = await store.take_over(server, taking("search", "goes"))
    assert [tool.name for tool in first.added] == ["goes", "weather_search"]
    agent = some_agent(tool_ids=[tool.id for tool in first.added])
    await AgentEditor(database).create(agent, system_message_id=IdMaker().message())

    second = await store.take_over(server, taking("search", "comes", description="New."))

    assert [tool.name for tool in second.added] == ["comes"]
    assert [tool.name for tool in second.updated] == ["weather_search"]
    assert [tool.name for tool in second.deleted] == ["goes"]
    assert await names(database) == ["comes", "search", "weather_search"]
    assert [tool.name for tool in await store.tools(PROJECT, server.id)] == ["comes", "weather_search"]
    assert [tool.name for tool in await tools.for_agent(PROJECT, agent.id)] == ["weather_search"]
    reached = await store.get(PROJECT, server.id)
    assert (reached.refreshed_at, reached.problem) == (LATER, "")


async def test_the_tools_of_one_server_are_not_anothers(database: Database) -> None:
    store = McpServerStore(database)
    one, other = await store.create(some_server("one")), await store.create(some_server("other"))
    await store.take_over(one, taking("look"))

    changes = await store.take_over(other, taking("look"))

    assert [tool.name for tool in changes.added] == ["other_look"]
    assert [tool.name for tool in await store.tools(PROJECT, one.id)] == ["look"]
    await store.delete(PROJECT, one.id)
    assert await names(database) == ["other_look"]
    assert await store.list(PROJECT) == [await store.get(PROJECT, other.id)]


async def test_a_deleted_server_is_taken_from_agents_with_its_tools(database: Database) -> None:
    store = McpServerStore(database)
    server = await store.create(some_server())
    [tool] = (await store.take_over(server, taking("look"))).added
    agent = some_agent(tool_ids=[tool.id])
    await AgentEditor(database).create(agent, system_message_id=IdMaker().message())

    await store.delete(PROJECT, server.id)

    assert await ToolStore(database).for_agent(PROJECT, agent.id) == []
    with pytest.raises(NotFound):
        await store.delete(PROJECT, server.id)
    with pytest.raises(NotFound):
        await store.take_over(server, taking("look"))
    assert await names(database) == []


async def test_a_renamed_server_is_known_to_its_tools(database: Database) -> None:
    store = McpServerStore(database)
    server = await store.create(some_server("before"))
    await store.take_over(server, taking("look"))

    def renamed(one: McpServer) -> McpServer:
        return replace(one, name="after")

    after = await store.update(PROJECT, server.id, renamed, now=LATER)

    assert [tool.tags for tool in await store.tools(PROJECT, server.id)] == [["mcp:after"]]
    assert (await store.take_over(after, taking("look"))).updated == []
