"""Changes of agents, of their tools and blocks, and of the system message that heads their history."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

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
from shared.domain.imported_agents import BroughtAgent, ImportedAgents, ImportReport, without_missing
from shared.domain.mcp_servers import MCP_TYPE
from shared.domain.messages import NewMessage, SystemMessage
from shared.domain.tool_catalog import is_base_tool
from shared.domain.tools import Tool, refuse_foreign_rules
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.archival.archives import forget_agent
from shared.sql.connection import Connection
from shared.sql.definitions.agents import (
    AgentDetails,
    AgentStore,
    add_links,
    agents_of,
    block_values,
    blocks_of_agents,
    load_agent,
    load_blocks,
    load_tools,
    lock_definitions,
    set_links,
    tool_of,
    tool_values,
)
from shared.sql.engine import Database
from shared.sql.history.messages import FIRST_TURN, SYSTEM_POSITION, ids_of, insert_brought_history, insert_into_thread
from shared.sql.paging import made_of, remember_place
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
    tools,
)


class AgentEditor(AgentStore):
    """Reads and changes agents. If a key is configured, every write encrypts the agent's secrets, also those that were
    stored before there was a key."""

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
        """Stores an agent, the blocks that are made with it, its system message and the history's first messages.
        Returns the agent as stored, with its tools and blocks.

        Raises `NotFound` for tools or blocks that the project does not have, `Conflict` for two blocks of one label,
        `InvalidRequest` for a rule about a tool that the agent does not have.
        """
        async with self._database.write() as connection:
            if agent.tool_ids or agent.block_ids:  # no other transaction can see or change blocks that this one makes
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

    async def ensure(self, agent: Agent, *, system_message_id: MessageId) -> Agent:
        """Stores an agent without tools and blocks unless it is there already; the agent as it is stored."""
        async with self._database.write() as connection:
            await lock_definitions(connection, agent.project_id)
            known = sa.select(agents.c.id).where(agents.c.id == agent.id, agents.c.project_id == agent.project_id)
            if (await connection.execute(known)).one_or_none() is None:
                await connection.execute(_INSERT_AGENT, agent_values(agent, self._secret_keys))
                begin_history(connection, agent, [], system_message_id)
            return await load_agent(connection, agent.project_id, agent.id)

    async def update(
        self, project_id: ProjectId, agent_id: AgentId, change: Callable[[Agent], Agent], now: datetime
    ) -> Agent:
        """Changes the stored agent in one transaction and returns the changed agent. `change` must be quick and pure.

        The agent gets the default approval rules of tools that are new to it. Raises `NotFound` and `Conflict` as
        `create` does.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            before = await load_agent(connection, project_id, agent_id)
            agent = replace(change(before), updated_at=now)
            tools = await load_tools(connection, project_id, agent.tool_ids)
            await load_blocks(connection, project_id, agent.block_ids)
            # A rule stays when its tool is detached: attached again, the tool must not get more rights.
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
        """Attaches a tool to the agent; does nothing if it is attached already. Raises `NotFound`."""

        def attach(agent: Agent) -> Agent:
            return agent if tool_id in agent.tool_ids else replace(agent, tool_ids=[*agent.tool_ids, tool_id])

        return await self.update(project_id, agent_id, attach, now)

    async def detach_tool(self, project_id: ProjectId, agent_id: AgentId, tool_id: ToolId, now: datetime) -> Agent:
        """Detaches a tool from the agent. Rules that name it stay: attached again, the tool must not need less
        approval."""

        def detach(agent: Agent) -> Agent:
            return replace(agent, tool_ids=[other for other in agent.tool_ids if other != tool_id])

        return await self.update(project_id, agent_id, detach, now)

    async def attach_block(self, project_id: ProjectId, agent_id: AgentId, block_id: BlockId, now: datetime) -> Agent:
        """Attaches a block to the agent. Raises `NotFound`, and `Conflict` if the agent has a block of this label."""

        def attach(agent: Agent) -> Agent:
            return agent if block_id in agent.block_ids else replace(agent, block_ids=[*agent.block_ids, block_id])

        return await self.update(project_id, agent_id, attach, now)

    async def detach_block(self, project_id: ProjectId, agent_id: AgentId, block_id: BlockId, now: datetime) -> Agent:
        """Detaches a block from the agent; the block itself stays."""

        def detach(agent: Agent) -> Agent:
            return replace(agent, block_ids=[other for other in agent.block_ids if other != block_id])

        return await self.update(project_id, agent_id, detach, now)

    async def set_approval_override(
        self, project_id: ProjectId, agent_id: AgentId, tool_name: str, *, required: bool, now: datetime
    ) -> Agent:
        """Sets whether the agent's calls of a tool wait for approval. Raises `NotFound` if it has no such tool."""
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
    """Returns the audit actions for the parts of a change that decide which code runs for the agent, with which
    secrets, and whether calls need approval. Other changes of an agent are not audited. Tools go by their own ids, the
    rest by the agent's."""
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
    """Replaces the stored links to tools, blocks and tags by those of `agent`."""
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
    """Renders the stored system messages again from the agents and their blocks as they are now. Raises `Conflict`
    (labels)."""
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
    """Calls `render_agents` for every agent that has this block."""
    linked = sa.select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == block_id)
    found = await connection.execute(linked)
    await render_agents(connection, list(found.scalars()))


async def render_agents(connection: Connection, agent_ids: Sequence[AgentId]) -> None:
    """Like `render_again`, for agents by their ids."""
    found = await connection.execute(sa.select(agents).where(agents.c.id.in_(agent_ids)))
    await render_again(connection, await agents_of(connection, list(found.mappings())))


def system_message(
    agent: Agent, blocks: Sequence[Block], conversation_id: ConversationId | None = None
) -> SystemMessage:
    """Returns the first message of a history. Raises `Conflict` for two blocks of one label."""
    labels = [block.label for block in blocks]
    for label in labels:
        if labels.count(label) > 1:
            raise Conflict(f"Agent {agent.id} would have two memory blocks labelled {label!r}: rename or detach one")
    return SystemMessage(render_system(agent, blocks, conversation_id))


# Imported agents. One transaction stores all of them with their tools, blocks and histories, or nothing.


TOOLS_AT_ONCE = 100
"""Rows of one statement: a tool's source may be long."""


class BroughtAgentStore:
    """Stores imported agents."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._secret_keys = secret_keys

    async def store(self, project_id: ProjectId, brought: ImportedAgents) -> ImportReport:
        """Stores tools, blocks, agents and their histories in one transaction. Returns the outcome for each tool.

        A base tool of the project is never replaced, and neither is one of an MCP server. Raises `Conflict`
        for an agent with two blocks of one label, and `InvalidRequest` for a text that cannot be stored.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            wanted = {one.new.name for one in brought.tools}.union(*(one.tool_names for one in brought.agents))
            own = await _tools_by_name(connection, project_id, wanted)
            # Each tool is compared with the project's by the source of both, and a file may have thousands.
            met = await asyncio.to_thread(_met, brought, own)
            await _store_tools(connection, project_id, met)
            if brought.blocks:
                await connection.execute(sa.insert(blocks), [block_values(block) for block in brought.blocks])
            for one in brought.agents:
                await _store_agent(connection, one, met.present, self._secret_keys)
            missing = sorted(wanted.difference(met.present))
            return ImportReport([tool.name for tool in met.replaced], met.guarded, met.kept, missing)


async def _tools_by_name(connection: Connection, project_id: ProjectId, names: set[str]) -> dict[str, Tool]:
    found = await connection.execute(sa.select(tools).where(tools.c.project_id == project_id, tools.c.name.in_(names)))
    return {tool.name: tool for tool in await made_of(found.mappings().all(), tool_of, "document")}


class _Met(NamedTuple):
    """The project's tools merged with those of a file."""

    present: dict[str, Tool]
    """The project's tools after the import, by name."""
    created: list[Tool]
    replaced: list[Tool]
    guarded: list[str]
    kept: list[str]
    """Names of the project's tools that stay although the file's differ."""


def _met(brought: ImportedAgents, own: Mapping[str, Tool]) -> _Met:
    met = _Met(dict(own), [], [], [], [])
    for one in brought.tools:
        name = one.new.name
        before = met.present.get(name)
        if before is None:
            met.present[name] = one.new
            met.created.append(one.new)
            continue
        is_fixed = is_base_tool(before) or before.tool_type == MCP_TYPE
        changed = before if is_fixed else one.in_place_of(before)
        if is_fixed or (changed != before and not brought.replace_tools):
            met.kept.append(name)
        elif changed != before:
            met.present[name] = replace(changed, updated_at=one.new.updated_at)
            met.replaced.append(met.present[name])
        if name in own and not is_fixed and one.opens(own[name]):
            met.guarded.append(name)
    return met


async def _store_tools(connection: Connection, project_id: ProjectId, met: _Met) -> None:
    for start in range(0, len(met.created), TOOLS_AT_ONCE):
        some = met.created[start : start + TOOLS_AT_ONCE]
        await connection.execute(sa.insert(tools), [tool_values(tool) for tool in some])
        await record(connection, project_id, "tool.created", *(tool.id for tool in some))
    for tool in met.replaced:
        await connection.execute(sa.update(tools).where(tools.c.id == tool.id).values(tool_values(tool)))
        await record(connection, project_id, "tool.changed", tool.id)


async def _store_agent(
    connection: Connection, brought: BroughtAgent, present: dict[str, Tool], secret_keys: SecretKeys
) -> None:
    given = [present[name] for name in dict.fromkeys(brought.tool_names) if name in present]
    rules = without_missing(brought.agent.tool_rules, [tool.name for tool in given])
    agent = replace(brought.agent, tool_ids=[tool.id for tool in given], tool_rules=rules)
    agent = with_default_approvals(agent, given)
    attached = await load_blocks(connection, agent.project_id, agent.block_ids)
    await connection.execute(sa.insert(agents).values(agent_values(agent, secret_keys)))
    await link_agent(connection, agent)
    begin_history(connection, agent, attached, brought.system_message_id, [])
    await insert_brought_history(connection, agent.id, brought.history)
