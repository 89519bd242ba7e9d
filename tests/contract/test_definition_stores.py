"""Tools, blocks and conversations in SQL."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.errors import NotFound, UnknownTools
from shared.domain.ids import AgentId, IdMaker, ThreadId
from shared.domain.messages import NewMessage, SystemMessage, UserMessage
from shared.domain.threads import Conversation
from shared.sql import tables
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.blocks import BlockFilter, BlockStore
from shared.sql.definitions.conversations import ConversationFilter, ConversationStore
from shared.sql.definitions.tools import ToolFilter, ToolStore
from shared.sql.engine import Database
from shared.sql.history.messages import MessageStore
from shared.sql.paging import Page
from shared.sql.tables import document_of
from tests.kit.runs.definitions import NOW, OTHER_PROJECT, PROJECT, some_agent, some_block, some_tool
from tests.kit.services.databases import open_database

LATER = NOW + timedelta(seconds=1)


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


@pytest.fixture
def tools(database: Database) -> ToolStore:
    return ToolStore(database)


async def test_an_upsert_changes_the_tool_of_the_name(tools: ToolStore) -> None:
    first = await tools.upsert(some_tool(tags=["kept"]))
    new = some_tool(description="Second.", created_at=LATER, updated_at=LATER)
    second = await tools.upsert(new, lambda tool: replace(tool, description=new.description))
    theirs = await tools.upsert(some_tool(project_id=OTHER_PROJECT))

    assert second == replace(first, description="Second.", updated_at=LATER)
    assert await tools.get(PROJECT, first.id) == second
    assert theirs.id != first.id


async def test_tool_lists(database: Database, tools: ToolStore) -> None:
    one, two = await tools.upsert(some_tool("one_tool")), await tools.upsert(some_tool("two_tool"))
    await tools.upsert(some_tool("one_tool", project_id=OTHER_PROJECT))
    agent = (
        await AgentEditor(database).create(some_agent(tool_ids=[two.id]), system_message_id=IdMaker().message())
    ).agent

    async def found(wanted: ToolFilter) -> list[str]:
        return [tool.name for tool in await tools.list(PROJECT, wanted, Page(ascending=True))]

    assert await found(ToolFilter()) == ["one_tool", "two_tool"]
    assert await found(ToolFilter(name="one_tool")) == ["one_tool"]
    assert await found(ToolFilter(names=["two_tool", "three"])) == ["two_tool"]
    assert await found(ToolFilter(ids=[one.id])) == ["one_tool"]
    assert await found(ToolFilter(search="E_T")) == ["one_tool"]
    assert await found(ToolFilter(agent_id=agent.id)) == ["two_tool"]
    await tools.upsert(some_tool("ours", tool_type="letta_core"))
    assert await found(ToolFilter(types=["letta_core"])) == ["ours"]
    assert await found(ToolFilter(other_types_than=["letta_core"])) == ["one_tool", "two_tool"]
    assert await found(ToolFilter(base_tools=True)) == ["ours"]
    assert await found(ToolFilter(base_tools=False)) == ["one_tool", "two_tool"]
    assert await tools.count(PROJECT, ToolFilter(search="tool")) == 2
    assert await tools.for_agent(PROJECT, agent.id) == [two]
    assert await tools.ids_by_name(PROJECT, ["two_tool", "one_tool"]) == [two.id, one.id]
    with pytest.raises(UnknownTools, match="'three'"):
        await tools.ids_by_name(PROJECT, ["one_tool", "three"])


async def test_a_deleted_tool_leaves_its_agents(database: Database, tools: ToolStore) -> None:
    tool = await tools.upsert(some_tool())
    agents = AgentEditor(database)
    agent = (await agents.create(some_agent(tool_ids=[tool.id]), system_message_id=IdMaker().message())).agent

    await tools.delete(PROJECT, tool.id)

    assert (await agents.get(PROJECT, agent.id)).tool_ids == []
    with pytest.raises(NotFound):
        await tools.delete(PROJECT, tool.id)


TAGGED = {"one": ['a "b"'], "two": ["Ü", "b"], "both": ["Ü", 'a "b"']}


async def test_block_lists(database: Database) -> None:
    blocks = BlockStore(database)
    human = await blocks.create(some_block("human", description="The user's tastes"))
    await blocks.create(some_block("persona", value="Dry wit"))
    agent = (
        await AgentEditor(database).create(some_agent(block_ids=[human.id]), system_message_id=IdMaker().message())
    ).agent

    async def found(wanted: BlockFilter) -> list[str]:
        return [block.label for block in await blocks.list(PROJECT, wanted, Page(ascending=True))]

    assert await found(BlockFilter()) == ["human", "persona"]
    assert await found(BlockFilter(label="persona")) == ["persona"]
    assert await found(BlockFilter(label_search="MAN")) == ["human"]
    assert await found(BlockFilter(description_search="TASTES")) == ["human"]
    assert await found(BlockFilter(value_search="wit")) == ["persona"]
    assert await found(BlockFilter(agent_id=agent.id)) == ["human"]
    tagged = [await blocks.create(some_block(label, tags=tags)) for label, tags in TAGGED.items()]
    assert await found(BlockFilter(tags=['a "b"'])) == ["one", "both"]
    assert await found(BlockFilter(tags=['a "b"', "Ü"])) == ["one", "two", "both"]
    assert await found(BlockFilter(tags=['a "b"', "Ü"], match_all_tags=True)) == ["both"]
    assert await found(BlockFilter(tags=["ü"])) == []
    assert await found(BlockFilter(agents_more_than=0)) == ["human"]
    assert await found(BlockFilter(agents_less_than=1)) == ["persona", "one", "two", "both"]
    assert await found(BlockFilter(agents_exactly=[1, 7])) == ["human"]
    for block in tagged:
        await blocks.delete(PROJECT, block.id)
    assert await blocks.for_agent(PROJECT, agent.id) == [human]
    assert await blocks.with_label(PROJECT, agent.id, "human") == human
    with pytest.raises(NotFound, match="'persona'"):
        await blocks.with_label(PROJECT, agent.id, "persona")


def some_conversation(agent_id: AgentId, **fields: object) -> Conversation:
    blank = Conversation(
        id=IdMaker().conversation(), project_id=PROJECT, agent_id=agent_id, created_at=NOW, updated_at=NOW
    )
    return replace(blank, **fields)


async def test_conversations_have_histories_of_their_own(database: Database) -> None:
    conversations, messages = ConversationStore(database), MessageStore(database)
    agent = (await AgentEditor(database).create(some_agent(), system_message_id=IdMaker().message())).agent
    message = NewMessage(id=IdMaker().message(), created_at=NOW, body=UserMessage("hello"))
    system_id = IdMaker().message()
    one = await conversations.create(
        some_conversation(agent.id, summary="Tea"), system_message_id=system_id, copies={1: [message]}
    )

    [details] = await conversations.details([one])
    assert details.message_ids == [system_id, message.id]
    await conversations.delete(PROJECT, one.id)
    assert await messages.context(PROJECT, ThreadId(one.id)) == []
    assert len(await messages.context(PROJECT, ThreadId(agent.id))) == 1
    with pytest.raises(NotFound, match=one.id):
        await conversations.get(PROJECT, one.id)


async def test_conversation_lists(database: Database) -> None:
    conversations = ConversationStore(database)
    agents = AgentEditor(database)
    agent = (await agents.create(some_agent(), system_message_id=IdMaker().message())).agent
    other = (await agents.create(some_agent(), system_message_id=IdMaker().message())).agent
    tea = await conversations.create(
        some_conversation(agent.id, summary="All about tea"), system_message_id=IdMaker().message()
    )
    old = await conversations.create(some_conversation(agent.id), system_message_id=IdMaker().message())
    await conversations.create(some_conversation(agent.id, hidden=True), system_message_id=IdMaker().message())
    theirs = await conversations.create(some_conversation(other.id), system_message_id=IdMaker().message())
    await conversations.update(PROJECT, old.id, lambda one: replace(one, archived_at=LATER), LATER)

    async def found(wanted: ConversationFilter) -> list[str]:
        return [one.id for one in await conversations.list(PROJECT, wanted, Page(ascending=True))]

    assert await found(ConversationFilter()) == [tea.id, theirs.id]
    assert await found(ConversationFilter(agent_id=agent.id)) == [tea.id]
    assert await found(ConversationFilter(archive_status="all")) == [tea.id, old.id, theirs.id]
    assert await found(ConversationFilter(archive_status="archived")) == [old.id]
    assert await found(ConversationFilter(summary_search="TEA")) == [tea.id]
    with pytest.raises(NotFound):
        await conversations.create(some_conversation(IdMaker().agent()), system_message_id=IdMaker().message())


@pytest.mark.parametrize("blocks", [[], ["persona"]])
async def test_a_name_is_one_conversation_of_all_who_make_it_at_once(database: Database, blocks: list[str]) -> None:
    conversations, messages = ConversationStore(database), MessageStore(database)
    stored = [await BlockStore(database).create(some_block(label=label)) for label in blocks]
    agent = some_agent(block_ids=[one.id for one in stored])
    agent = (await AgentEditor(database).create(agent, system_message_id=IdMaker().message())).agent

    async def made() -> Conversation:
        new = some_conversation(agent.id, name="desk/1")
        return await conversations.ensure(new, system_message_id=IdMaker().message())

    first, *others = await asyncio.gather(*(made() for _ in range(5)))
    assert {one.id for one in others} == {first.id}
    assert (await conversations.named(PROJECT, agent.id, "desk/1"))[1] == first
    [system] = await messages.context(PROJECT, ThreadId(first.id))
    assert isinstance(system.body, SystemMessage)
    assert all(label in system.body.text for label in blocks)
    assert [one.id for one in await conversations.list(PROJECT, ConversationFilter(), Page())] == [first.id]


async def test_a_name_waits_for_the_process_that_is_making_it(database: Database) -> None:
    conversations = ConversationStore(database)
    agent = (await AgentEditor(database).create(some_agent(), system_message_id=IdMaker().message())).agent
    ours, theirs = (some_conversation(agent.id, name="desk") for _ in range(2))
    inserted, may_end = asyncio.Event(), asyncio.Event()

    async def make_theirs() -> None:
        async with database.write() as connection:
            await connection.execute(
                sa.insert(tables.conversations).values(
                    id=theirs.id, project_id=PROJECT, agent_id=agent.id, document=document_of(theirs), name="desk",
                    created_at=NOW, updated_at=NOW,
                )
            )  # fmt: skip
            inserted.set()
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(make_theirs())
        await inserted.wait()
        made = group.create_task(conversations.ensure(ours, system_message_id=IdMaker().message()))
        may_end.set()
    assert made.result().id == theirs.id


async def test_a_name_of_an_agent_that_is_gone_makes_nothing(database: Database) -> None:
    new = some_conversation(IdMaker().agent(), name="desk")
    with pytest.raises(NotFound, match=new.agent_id):
        await ConversationStore(database).ensure(new, system_message_id=IdMaker().message())
