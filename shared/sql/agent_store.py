"""Agents: what they are made of and the head of their history."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import Agent, Block
from shared.domain.approval_rules import with_approval_override, with_default_approvals
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, BlockId, MessageId, ProjectId, ToolId
from shared.domain.tools import Tool
from shared.sql.agent_rows import (
    agent_values,
    agents_of,
    insert_system_message,
    link_agent,
    load_agent,
    render_again,
)
from shared.sql.context_ids import ids_in_context
from shared.sql.definition_rows import (
    block_values,
    blocks_of_agents,
    load_blocks,
    load_tools,
    lock_definitions,
    tools_of_agents,
)
from shared.sql.deletion import delete_histories
from shared.sql.engine import Database
from shared.sql.paging import Page, contains, count_rows, rows_of_page
from shared.sql.tables import agent_blocks, agent_tags, agent_tools, agents, blocks, conversations


class AgentFilter(msgspec.Struct, frozen=True):
    """Which agents of a project a list shows. Everything that is given must hold."""

    name: str | None = None
    query_text: str | None = None
    """Part of the name, whatever the case."""
    tags: Sequence[str] = ()
    match_all_tags: bool = False
    last_stop_reason: str | None = None
    block_id: BlockId | None = None


class EquippedAgent(NamedTuple):
    """What a run needs of its agent. Tools and blocks are in the order in which they were attached."""

    agent: Agent
    tools: Sequence[Tool]
    blocks: Sequence[Block]


class AgentDetails(msgspec.Struct, frozen=True):
    """An agent with what its links lead to."""

    agent: Agent
    tools: list[Tool]
    blocks: list[Block]
    message_ids: list[MessageId]
    """The ids of the messages in its default context, as the wire shows them."""


class AgentStore:
    """Reads and writes agents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, agent: Agent, *, system_message_id: MessageId, new_blocks: Sequence[Block] = ()) -> Agent:
        """Stores an agent, blocks that are made with it, and its system message; the agent as it was stored.

        Raises `NotFound` for tools or blocks that the project does not have, `Conflict` for two blocks of one label.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, agent.project_id)
            if new_blocks:
                await connection.execute(sa.insert(blocks), [block_values(block) for block in new_blocks])
            agent = replace(agent, block_ids=[*agent.block_ids, *(block.id for block in new_blocks)])
            tools = await load_tools(connection, agent.project_id, agent.tool_ids)
            attached = await load_blocks(connection, agent.project_id, agent.block_ids)
            agent = with_default_approvals(agent, tools)
            await connection.execute(sa.insert(agents).values(agent_values(agent)))
            await link_agent(connection, agent)
            await insert_system_message(connection, agent, attached, system_message_id)
            return agent

    async def get(self, project_id: ProjectId, agent_id: AgentId) -> Agent:
        """One agent of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_agent(connection, project_id, agent_id)

    async def equipped(self, project_id: ProjectId, agent_id: AgentId) -> EquippedAgent:
        """One agent of this project with what it works with. Raises `NotFound`."""
        async with self._database.read() as connection:
            agent = await load_agent(connection, project_id, agent_id)
            tools = (await tools_of_agents(connection, [agent_id]))[agent_id] if agent.tool_ids else []
            blocks = (await blocks_of_agents(connection, [agent_id]))[agent_id] if agent.block_ids else []
            return EquippedAgent(agent, tools, blocks)

    async def list(self, project_id: ProjectId, wanted: AgentFilter, page: Page) -> list[Agent]:
        """A page of the project's agents."""
        async with self._database.read() as connection:
            rows = await rows_of_page(connection, agents, project_id, page, *_conditions(wanted))
            return await agents_of(connection, rows)

    async def count(self, project_id: ProjectId) -> int:
        """How many agents the project has."""
        async with self._database.read() as connection:
            return await count_rows(connection, agents, project_id)

    async def details(self, some: Sequence[Agent]) -> Sequence[AgentDetails]:
        """The agents with their tools, blocks and message ids: three queries, however many agents."""
        ids = [agent.id for agent in some]
        async with self._database.read() as connection:
            tools = await tools_of_agents(connection, ids)
            attached = await blocks_of_agents(connection, ids)
            message_ids = await ids_in_context(connection, ids)
        return [
            AgentDetails(agent, tools[agent.id], attached[agent.id], message_ids.get(agent.id, [])) for agent in some
        ]

    async def message_ids(self, project_id: ProjectId, agent_id: AgentId) -> Sequence[MessageId]:
        """The ids of the messages in the agent's default context, in order. Raises `NotFound`."""
        async with self._database.read() as connection:
            await load_agent(connection, project_id, agent_id)
            return (await ids_in_context(connection, [agent_id])).get(agent_id, [])

    async def update(
        self, project_id: ProjectId, agent_id: AgentId, change: Callable[[Agent], Agent], now: datetime
    ) -> Agent:
        """Changes an agent as it is at that moment; the agent as it is then. `change` must be quick and pure.

        Tools that are new to the agent bring their default approval rule. Raises `NotFound` and `Conflict` as
        `create` does.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            before = await load_agent(connection, project_id, agent_id)
            agent = replace(change(before), updated_at=now)
            tools = await load_tools(connection, project_id, agent.tool_ids)
            await load_blocks(connection, project_id, agent.block_ids)
            agent = with_default_approvals(agent, [tool for tool in tools if tool.id not in before.tool_ids])
            await connection.execute(sa.update(agents).where(agents.c.id == agent_id).values(agent_values(agent)))
            await link_agent(connection, agent)
            await render_again(connection, [agent])
            return agent

    async def attach_tool(self, project_id: ProjectId, agent_id: AgentId, tool_id: ToolId, now: datetime) -> Agent:
        """Gives the agent a tool; one that it has already stays. Raises `NotFound`."""

        def attach(agent: Agent) -> Agent:
            return agent if tool_id in agent.tool_ids else replace(agent, tool_ids=[*agent.tool_ids, tool_id])

        return await self.update(project_id, agent_id, attach, now)

    async def detach_tool(self, project_id: ProjectId, agent_id: AgentId, tool_id: ToolId, now: datetime) -> Agent:
        """Takes a tool from the agent. Rules that name it stay: attached again, it must not need less approval."""

        def detach(agent: Agent) -> Agent:
            return replace(agent, tool_ids=[other for other in agent.tool_ids if other != tool_id])

        return await self.update(project_id, agent_id, detach, now)

    async def attach_block(self, project_id: ProjectId, agent_id: AgentId, block_id: BlockId, now: datetime) -> Agent:
        """Gives the agent a block. Raises `NotFound`, and `Conflict` when it has one of this label."""

        def attach(agent: Agent) -> Agent:
            return agent if block_id in agent.block_ids else replace(agent, block_ids=[*agent.block_ids, block_id])

        return await self.update(project_id, agent_id, attach, now)

    async def detach_block(self, project_id: ProjectId, agent_id: AgentId, block_id: BlockId, now: datetime) -> Agent:
        """Takes a block from the agent; the block itself stays."""

        def detach(agent: Agent) -> Agent:
            return replace(agent, block_ids=[other for other in agent.block_ids if other != block_id])

        return await self.update(project_id, agent_id, detach, now)

    async def set_approval_override(
        self, project_id: ProjectId, agent_id: AgentId, tool_name: str, *, required: bool, now: datetime
    ) -> Agent:
        """Says whether the agent's calls of a tool wait for a person. Raises `NotFound` if it has no such tool."""
        agent = await self.get(project_id, agent_id)
        [known] = await self.details([agent])
        if tool_name not in {tool.name for tool in known.tools}:
            raise NotFound(f"Agent {agent_id} has no tool named {tool_name!r}")

        def override(agent: Agent) -> Agent:
            return with_approval_override(agent, tool_name, required=required)

        return await self.update(project_id, agent_id, override, now)

    async def delete(self, project_id: ProjectId, agent_id: AgentId) -> None:
        """Deletes the agent with its histories and runs. Its tools and blocks stay. Raises `NotFound`."""
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            await load_agent(connection, project_id, agent_id)
            await delete_histories(connection, "agent_id", agent_id)
            for table in (agent_tools, agent_blocks, agent_tags, conversations):
                await connection.execute(sa.delete(table).where(table.c.agent_id == agent_id))
            await connection.execute(sa.delete(agents).where(agents.c.id == agent_id))


def _conditions(wanted: AgentFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.name is not None:
        conditions.append(agents.c.name == wanted.name)
    if wanted.query_text:
        conditions.append(contains(agents.c.name, wanted.query_text))
    if wanted.last_stop_reason is not None:
        conditions.append(agents.c.last_stop_reason == wanted.last_stop_reason)
    if wanted.block_id is not None:
        having = sa.select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == wanted.block_id)
        conditions.append(agents.c.id.in_(having))
    if wanted.tags:
        tags = set(wanted.tags)
        tagged = sa.select(agent_tags.c.agent_id).where(agent_tags.c.tag.in_(tags)).group_by(agent_tags.c.agent_id)
        tagged = tagged.having(sa.func.count() >= (len(tags) if wanted.match_all_tags else 1))
        conditions.append(agents.c.id.in_(tagged))
    return conditions
