"""Agents in SQL: what is stored is what is read, in one's own project only."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import Agent, requires_approval
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import IdMaker, ThreadId
from shared.domain.messages import AssistantMessage, NewMessage, SystemMessage, ToolCall
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentFilter
from shared.sql.definitions.blocks import BlockStore
from shared.sql.definitions.tools import ToolStore
from shared.sql.engine import Database
from shared.sql.history.messages import MessageStore, insert_into_thread
from shared.sql.paging import Page
from shared.sql.run_tables import metadata, runs
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT, some_agent, some_block, some_tool
from tests.kit.services.databases import open_database
from tests.kit.stores.guest import filled

LATER = NOW + timedelta(seconds=1)


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def store(database: Database) -> AgentEditor:
    return AgentEditor(database)


async def create(store: AgentEditor, agent: Agent) -> Agent:
    return (await store.create(agent, system_message_id=IdMaker().message())).agent


async def system_text(database: Database, agent: Agent) -> str:
    [message] = await MessageStore(database).context(PROJECT, ThreadId(agent.id))
    assert isinstance(message.body, SystemMessage)
    return message.body.text


async def test_a_history_begins_with_the_system_message(database: Database, store: AgentEditor) -> None:
    message_id = IdMaker().message()
    agent = (
        await store.create(
            some_agent(), system_message_id=message_id, new_blocks=[some_block(description="About the user", limit=500)]
        )
    ).agent

    [details] = await store.details([agent])
    assert details.message_ids == [message_id]
    text = await system_text(database, agent)
    assert text.startswith("Be brief.\n\n<memory_blocks>")
    assert "About the user" in text
    assert "Likes tea." in text
    assert "10 of 500 characters" in text


async def test_tools_of_another_project_cannot_be_linked(database: Database, store: AgentEditor) -> None:
    theirs = await ToolStore(database).upsert(some_tool(project_id=OTHER_PROJECT))

    with pytest.raises(NotFound, match=theirs.id):
        await create(store, some_agent(tool_ids=[theirs.id]))
    assert await store.count(PROJECT) == 0


async def test_filters(database: Database, store: AgentEditor) -> None:
    block = await BlockStore(database).create(some_block())
    ada = await create(store, some_agent(name="Ada_1", tags=["red", "blue"], block_ids=[block.id]))
    bob = await create(store, some_agent(name="Bob", tags=["blue"]))

    async def found(wanted: AgentFilter) -> list[str]:
        return [agent.id for agent in await store.list(PROJECT, wanted, Page(ascending=True))]

    assert await found(AgentFilter(name="Bob")) == [bob.id]
    assert await found(AgentFilter(query_text="aDa_")) == [ada.id]
    assert await found(AgentFilter(query_text="%")) == []
    assert await found(AgentFilter(tags=["red", "blue"])) == [ada.id, bob.id]
    assert await found(AgentFilter(tags=["red", "blue"], match_all_tags=True)) == [ada.id]
    assert await found(AgentFilter(block_id=block.id)) == [ada.id]


async def test_an_update_changes_links_tags_and_the_system_message(database: Database, store: AgentEditor) -> None:
    first, second = [await ToolStore(database).upsert(some_tool(name)) for name in ("first", "second")]
    agent = await create(store, some_agent(tool_ids=[first.id], tags=["old"]))

    def change(agent: Agent) -> Agent:
        return replace(agent, system="Be verbose.", tool_ids=[second.id], tags=["new"], name="Grace")

    changed = await store.update(PROJECT, agent.id, change, LATER)

    assert await store.get(PROJECT, agent.id) == changed
    assert (changed.name, changed.tool_ids, changed.tags) == ("Grace", [second.id], ["new"])
    assert changed.updated_at == LATER
    assert (await system_text(database, agent)).startswith("Be verbose.\n\n<memory_metadata>")


async def test_a_change_of_a_block_reaches_the_system_message(database: Database, store: AgentEditor) -> None:
    blocks = BlockStore(database)
    block = await blocks.create(some_block())
    agent = await create(store, some_agent(block_ids=[block.id]))

    await blocks.update(PROJECT, block.id, lambda block: replace(block, value="Likes coffee."), LATER)
    assert "Likes coffee." in await system_text(database, agent)

    await store.detach_block(PROJECT, agent.id, block.id, LATER)
    assert (await system_text(database, agent)).startswith("Be brief.\n\n<memory_metadata>")

    await store.attach_block(PROJECT, agent.id, block.id, LATER)
    assert "Likes coffee." in await system_text(database, agent)

    await blocks.delete(PROJECT, block.id)
    assert (await system_text(database, agent)).startswith("Be brief.\n\n<memory_metadata>")
    assert (await store.get(PROJECT, agent.id)).block_ids == []


async def test_a_label_is_there_once_per_agent(database: Database, store: AgentEditor) -> None:
    blocks = BlockStore(database)
    human, other = await blocks.create(some_block("human")), await blocks.create(some_block("other"))
    agent = await create(store, some_agent(block_ids=[human.id, other.id]))

    with pytest.raises(Conflict, match="'human'"):
        await blocks.update(PROJECT, other.id, lambda block: replace(block, label="human"), LATER)
    assert (await blocks.get(PROJECT, other.id)).label == "other"
    same = await blocks.create(some_block("human"))
    with pytest.raises(Conflict, match="'human'"):
        await store.attach_block(PROJECT, agent.id, same.id, LATER)


async def test_a_tool_that_asks_for_approval_brings_its_rule(database: Database, store: AgentEditor) -> None:
    tools = ToolStore(database)
    careful = await tools.upsert(some_tool("careful", default_requires_approval=True))
    later = await tools.upsert(some_tool("later", default_requires_approval=True))
    rule = {"tool_name": "careful", "type": "requires_approval", "prompt_template": None}

    agent = await create(store, some_agent(tool_ids=[careful.id]))
    assert agent.tool_rules == [rule]

    agent = await store.attach_tool(PROJECT, agent.id, later.id, LATER)
    assert [each["tool_name"] for each in agent.tool_rules] == ["careful", "later"]


async def test_an_approval_override_is_the_last_word(database: Database, store: AgentEditor) -> None:
    tool = await ToolStore(database).upsert(some_tool("careful", default_requires_approval=True))
    agent = await create(store, some_agent(tool_ids=[tool.id]))

    async def override(required: bool) -> Agent:
        return await store.set_approval_override(PROJECT, agent.id, "careful", required=required, now=LATER)

    off = await override(False)
    assert off.tool_rules == []
    assert not requires_approval(off, "careful", default=True)
    on = await override(True)
    assert [rule["tool_name"] for rule in on.tool_rules] == ["careful"]
    assert requires_approval(on, "careful", default=False)
    with pytest.raises(NotFound, match="'nope'"):
        await store.set_approval_override(PROJECT, agent.id, "nope", required=True, now=LATER)


async def test_details_of_many_agents(database: Database, store: AgentEditor) -> None:
    tool = await ToolStore(database).upsert(some_tool())
    plain = await create(store, some_agent())
    rich = (
        await store.create(
            some_agent(tool_ids=[tool.id]), system_message_id=IdMaker().message(), new_blocks=[some_block("human")]
        )
    ).agent

    first, second = await store.details([rich, plain])

    assert (first.agent, first.tools, [block.label for block in first.blocks]) == (rich, [tool], ["human"])
    assert (second.agent, second.tools, second.blocks) == (plain, [], [])
    assert len(first.message_ids) == len(second.message_ids) == 1


async def test_a_message_with_two_parts_has_two_ids(database: Database, store: AgentEditor) -> None:
    ids = IdMaker()
    agent = await create(store, some_agent())
    whole, part = ids.message(), ids.message()
    calls = [ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}", needs_approval=True)]
    body = AssistantMessage(tool_calls=calls, sibling_id=part, sibling_holds="approvals")
    await _append(database, agent, NewMessage(id=whole, created_at=NOW, body=body))

    [details] = await store.details([agent])
    assert details.message_ids[1:] == [whole, part]


async def test_deleting_an_agent_leaves_nothing(database: Database, store: AgentEditor) -> None:
    tool = await ToolStore(database).upsert(some_tool())
    agent = (
        await store.create(
            some_agent(tool_ids=[tool.id], tags=["a"]), system_message_id=IdMaker().message(), new_blocks=[some_block()]
        )
    ).agent
    await _fill_every_table_of_runs(database, agent)

    await store.delete(PROJECT, agent.id)

    left = {name: count for name, count in (await _counts(database)).items() if count}
    assert left == {"tools": 1, "blocks": 1, "deleted_rows": 1}, "only the agent's place in lists is remembered"


async def _append(database: Database, agent: Agent, message: NewMessage) -> None:
    async with database.write() as connection:
        thread_id = ThreadId(agent.id)
        insert_into_thread(
            connection, [message], agent_id=agent.id, thread_id=thread_id, conversation_id=None, run_id=None, turn=1,
            after=0,
        )  # fmt: skip


async def _fill_every_table_of_runs(database: Database, agent: Agent) -> None:
    """A row in each table that hangs on a run, with whatever its columns take."""
    run_id = IdMaker().run()
    async with database.write() as connection:
        await connection.execute(sa.insert(runs).values(filled(runs) | {"id": run_id, "agent_id": agent.id}))
        for table in metadata.sorted_tables:
            if "run_id" in table.c:
                links = {"run_id": run_id} | ({"agent_id": agent.id} if "agent_id" in table.c else {})
                await connection.execute(sa.insert(table).values(filled(table) | links))


async def _counts(database: Database) -> dict[str, int]:
    async with database.read() as connection:
        return {
            table.name: (await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one()
            for table in metadata.sorted_tables
        }
