"""Agents: what they are made of and the head of their history."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import (
    OVERRIDES,
    Agent,
    Block,
    refuse_large_parts,
    render_system,
    with_approval_override,
    with_default_approvals,
)
from shared.domain.conversations import Conversation
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, BlockId, ConversationId, MessageId, ProjectId, ThreadId, ToolId
from shared.domain.messages import NewMessage, SystemMessage
from shared.domain.tool_rules import refuse_foreign_rules
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.archival.archives import forget_agent
from shared.sql.connection import Connection
from shared.sql.definitions.agents import (
    AgentDetails,
    AgentStore,
    agents_of,
    load_agent,
)
from shared.sql.definitions.links import (
    add_links,
    block_values,
    blocks_of_agents,
    load_blocks,
    load_tools,
    lock_definitions,
    set_links,
)
from shared.sql.engine import Database
from shared.sql.history.context_ids import ids_of
from shared.sql.history.messages import FIRST_TURN, SYSTEM_POSITION, insert_into_thread
from shared.sql.paging import remember_place
from shared.sql.runs.listing import delete_histories
from shared.sql.tables import (
    agent_blocks,
    agent_tags,
    agent_tools,
    agents,
    blocks,
    conversations,
    document_of,
    messages,
    to_json,
)


class AgentEditor(AgentStore):
    """Reads and changes agents. Whatever it stores, secrets are encrypted if there is a key: also those that were
    stored before there was one."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        super().__init__(database)
        self._secret_keys = secret_keys

    async def create(
        self,
        agent: Agent,
        *,
        system_message_id: MessageId,
        new_blocks: Sequence[Block] = (),
        first_messages: Sequence[NewMessage] = (),
    ) -> AgentDetails:
        """Stores an agent, blocks that are made with it, its system message and the history's first messages; the agent
        as it was stored, with what it has.

        Raises `NotFound` for tools or blocks that the project does not have, `Conflict` for two blocks of one label,
        `InvalidRequest` for a rule about a tool that the agent does not have.
        """
        async with self._database.write() as connection:
            if agent.tool_ids or agent.block_ids:  # what nobody else can see yet is nobody's to change
                await lock_definitions(connection, agent.project_id)
            if new_blocks:
                await connection.execute(sa.insert(blocks), [block_values(block) for block in new_blocks])
            agent = replace(agent, block_ids=[*agent.block_ids, *(block.id for block in new_blocks)])
            tools = await load_tools(connection, agent.project_id, agent.tool_ids)
            attached = await load_blocks(connection, agent.project_id, agent.block_ids)
            refuse_foreign_rules(agent.tool_rules, [tool.name for tool in tools])
            agent = with_default_approvals(agent, tools)
            await connection.execute(_INSERT_AGENT, agent_values(agent, self._secret_keys))
            await link_new_agent(connection, agent)
            begin_history(connection, agent, attached, system_message_id, first_messages)
        ids = [system_message_id, *ids_of(first_messages)]
        return AgentDetails(agent, [*{tool.id: tool for tool in tools}.values()], attached, ids)

    async def update(
        self, project_id: ProjectId, agent_id: AgentId, change: Callable[[Agent], Agent], now: datetime
    ) -> Agent:
        """Changes the stored agent in one transaction; the agent as it is then. `change` must be quick and pure.

        Tools that are new to the agent bring their default approval rule. Raises `NotFound` and `Conflict` as `create`
        does.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            before = await load_agent(connection, project_id, agent_id)
            agent = replace(change(before), updated_at=now)
            tools = await load_tools(connection, project_id, agent.tool_ids)
            await load_blocks(connection, project_id, agent.block_ids)
            # Rules that the agent has already stay when their tool is taken away: attached again, it must not do more.
            new_rules = [rule for rule in agent.tool_rules if rule not in before.tool_rules]
            refuse_foreign_rules(new_rules, [tool.name for tool in tools])
            agent = with_default_approvals(agent, [tool for tool in tools if tool.id not in before.tool_ids])
            values = agent_values(agent, self._secret_keys)
            await connection.execute(sa.update(agents).where(agents.c.id == agent_id).values(values))
            await link_agent(connection, agent)
            await render_again(connection, [agent])
            for action, object_ids in _acts(before, agent):
                await record(connection, project_id, action, *object_ids)
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
        """Deletes the agent with its histories, its runs and the archive that was made for it alone. Its tools, blocks
        and other archives stay. Raises `NotFound`."""
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            await load_agent(connection, project_id, agent_id)
            await delete_histories(connection, "agent_id", agent_id)
            await forget_agent(connection, project_id, agent_id)
            for table in (agent_tools, agent_blocks, agent_tags, conversations):
                await connection.execute(sa.delete(table).where(table.c.agent_id == agent_id))
            await remember_place(connection, agents, agent_id)
            await connection.execute(sa.delete(agents).where(agents.c.id == agent_id))
            await record(connection, project_id, "agent.deleted", agent_id)


def _acts(before: Agent, after: Agent) -> Iterator[tuple[str, Sequence[str]]]:
    """What of a change decides which code runs for the agent, with which secrets, and whether a person is asked. The
    audit log has these; the rest of an agent is in its answer. Tools go by their own ids, the rest by the agent's."""
    yield "tool.attached", [tool_id for tool_id in after.tool_ids if tool_id not in before.tool_ids]
    yield "tool.detached", [tool_id for tool_id in before.tool_ids if tool_id not in after.tool_ids]
    for action, old, new in (
        ("secrets.changed", before.tool_environment, after.tool_environment),
        ("approvals.changed", _approvals_of(before), _approvals_of(after)),
    ):
        yield action, [] if old == new else [after.id]


def _approvals_of(agent: Agent) -> tuple[object, ...]:
    asked = [rule for rule in agent.tool_rules if rule.get("type") == "requires_approval"]
    return asked, agent.extra.get(OVERRIDES), agent.approval_expires_s, agent.on_approval_expiry


def agent_values(agent: Agent, secret_keys: SecretKeys) -> dict[str, Any]:
    """The columns of an agent's row. Links have tables of their own, and runs write `last_stop_reason`.

    Raises `InvalidRequest` for a text that cannot be stored, the tags' and the secrets' included, and for a part that
    is too large.
    """
    document_of(agent)
    refuse_large_parts(agent)
    sealed = secret_keys.seal_all(agent.id, agent.tool_environment)
    document = replace(agent, tool_ids=[], block_ids=[], tags=[], last_stop_reason=None, tool_environment=sealed)
    return {
        "id": agent.id,
        "project_id": agent.project_id,
        "name": agent.name,
        "document": document_of(document),
        "created_at": agent.created_at,
        "updated_at": agent.updated_at,
    }


_INSERT_AGENT = sa.insert(agents)


async def link_new_agent(connection: Connection, agent: Agent) -> None:
    """Stores the tools, blocks and tags of an agent that has none of them yet."""
    await add_links(connection, agent_tools, "tool_id", agent.id, agent.tool_ids)
    await add_links(connection, agent_blocks, "block_id", agent.id, agent.block_ids)
    await add_links(connection, agent_tags, "tag", agent.id, agent.tags)


async def link_agent(connection: Connection, agent: Agent) -> None:
    """Makes the stored tools, blocks and tags those of `agent`."""
    await set_links(connection, agent_tools, "tool_id", agent.id, agent.tool_ids)
    await set_links(connection, agent_blocks, "block_id", agent.id, agent.block_ids)
    await connection.execute(sa.delete(agent_tags).where(agent_tags.c.agent_id == agent.id))
    await add_links(connection, agent_tags, "tag", agent.id, agent.tags)


def begin_history(
    connection: Connection,
    agent: Agent,
    blocks: Sequence[Block],
    message_id: MessageId,
    first_messages: Sequence[NewMessage] = (),
    conversation: Conversation | None = None,
) -> None:
    """Begins the agent's default history, or a conversation's."""
    conversation_id = None if conversation is None else conversation.id
    created_at = agent.created_at if conversation is None else conversation.created_at
    body = system_message(agent, blocks, conversation_id)
    message = NewMessage(id=message_id, created_at=created_at, body=body)
    insert_into_thread(
        connection,
        [message, *first_messages],
        agent_id=agent.id,
        thread_id=ThreadId(conversation_id or agent.id),
        conversation_id=conversation_id,
        run_id=None,
        turn=FIRST_TURN,
        after=SYSTEM_POSITION - 1,
    )


async def render_again(connection: Connection, changed: Iterable[Agent]) -> None:
    """Brings the stored system messages to what the agents and their blocks say now. Raises `Conflict` (labels)."""
    by_id = {agent.id: agent for agent in changed}
    blocks = await blocks_of_agents(connection, by_id.keys())
    for agent in by_id.values():
        await connection.execute(
            sa.update(messages)
            .where(
                messages.c.thread_id == agent.id,
                messages.c.turn == FIRST_TURN,
                messages.c.position == SYSTEM_POSITION,
            )
            .values(body=to_json(system_message(agent, blocks[agent.id])))
        )


async def render_agents_of(connection: Connection, block_id: BlockId) -> None:
    """`render_agents` for every agent that has this block."""
    linked = sa.select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == block_id)
    found = await connection.execute(linked)
    await render_agents(connection, list(found.scalars()))


async def render_agents(connection: Connection, agent_ids: Sequence[AgentId]) -> None:
    """`render_again` for agents that are known by their ids."""
    found = await connection.execute(sa.select(agents).where(agents.c.id.in_(agent_ids)))
    await render_again(connection, await agents_of(connection, list(found.mappings())))


def system_message(
    agent: Agent, blocks: Sequence[Block], conversation_id: ConversationId | None = None
) -> SystemMessage:
    """What heads a history. Raises `Conflict` for two blocks of one label."""
    labels = [block.label for block in blocks]
    for label in labels:
        if labels.count(label) > 1:
            raise Conflict(f"Agent {agent.id} would have two memory blocks labelled {label!r}: rename or detach one")
    return SystemMessage(render_system(agent, blocks, conversation_id))
