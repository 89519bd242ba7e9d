"""Changes of agents, of their tools, blocks and sleep-time groups, and of the system message that heads their history.

The transaction of each change records it in the audit log."""

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
from shared.domain.errors import Conflict, NotFound
from shared.domain.groups import ENABLED, SLEEPTIME_AGENT, Group, Sleeper, with_group_flag
from shared.domain.ids import AgentId, BlockId, ConversationId, GroupId, MessageId, ProjectId, ThreadId, ToolId
from shared.domain.messages import NewMessage, SystemMessage
from shared.domain.threads import Conversation
from shared.domain.tools import refuse_foreign_rules
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
    definitions_lock,
    load_agent,
    load_blocks,
    load_tools,
    set_links,
)
from shared.sql.definitions.groups import (
    delete_group,
    groups_of,
    groups_of_member,
    has_member,
    insert_group,
    load_group,
    managed_groups,
    members_of_no_other,
    remove_member,
    share_blocks,
    turn_group,
    write_group,
)
from shared.sql.engine import Database
from shared.sql.history.messages import FIRST_TURN, IS_SYSTEM, SYSTEM_POSITION, ids_of, insert_into_thread
from shared.sql.paging import Page, count_rows, remember_place, rows_of_page
from shared.sql.runs.listing import delete_histories
from shared.sql.tables import (
    agent_blocks,
    agent_groups,
    agent_tags,
    agent_tools,
    agents,
    blocks,
    columns_of,
    conversations,
    document_of,
    messages,
    to_json,
)

MakeSleeper = Callable[[Agent], Sleeper]
"""Makes the sleep-time agent for an agent; quick and pure."""


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
        sleeper: MakeSleeper | None = None,
    ) -> AgentDetails:
        """Stores an agent, its new blocks, its system message and the history's first messages. Also stores the
        sleep-time agent that `sleeper` makes, if any. Returns the agent as stored, with its tools and blocks.

        Raises `NotFound` for tools or blocks that the project does not have, `Conflict` for two blocks of one label,
        and `InvalidRequest` for a rule about a tool that the agent does not have.
        """
        # No other transaction can see or change blocks that this one creates.
        shares = agent.tool_ids or agent.block_ids or sleeper
        locks = [definitions_lock(agent.project_id)] if shares else []
        async with self._database.write(None, *locks) as connection:
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
            group = None if sleeper is None else await self._add_sleeper(connection, sleeper(agent), attached)
        ids = [system_message_id, *ids_of(first_messages)]
        return AgentDetails(agent, [*{tool.id: tool for tool in tools}.values()], attached, ids, group=group)

    async def ensure(self, agent: Agent, *, system_message_id: MessageId) -> Agent:
        """Stores an agent without tools and blocks unless it exists. Returns the agent as stored."""
        async with self._database.write(None, definitions_lock(agent.project_id)) as connection:
            known = sa.select(agents.c.id).where(agents.c.id == agent.id, agents.c.project_id == agent.project_id)
            if (await connection.execute(known)).one_or_none() is None:
                await connection.execute(_INSERT_AGENT, agent_values(agent, self._secret_keys))
                begin_history(connection, agent, [], system_message_id)
            return await load_agent(connection, agent.project_id, agent.id)

    async def update(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        change: Callable[[Agent], Agent],
        now: datetime,
        *,
        sleeper: MakeSleeper | None = None,
    ) -> Agent:
        """Changes the stored agent in one transaction and returns it. `change` must be quick and pure. If the agent is
        to have a sleep-time agent and has none, `sleeper` makes it.

        The agent gets the default approval rules of tools that are new to it. Raises `NotFound` and `Conflict` as
        `create` does.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            before = await load_agent(connection, project_id, agent_id)
            agent = replace(change(before), updated_at=now)
            tools = await load_tools(connection, project_id, agent.tool_ids)
            attached = await load_blocks(connection, project_id, agent.block_ids)
            # A rule stays after its tool is detached. Otherwise the tool would have more rights when it is attached
            # again.
            new_rules = [rule for rule in agent.tool_rules if rule not in before.tool_rules]
            refuse_foreign_rules(new_rules, [tool.name for tool in tools])
            agent = with_default_approvals(agent, [tool for tool in tools if tool.id not in before.tool_ids])
            values = agent_values(agent, self._secret_keys)
            await connection.execute(sa.update(agents).where(agents.c.id == agent_id).values(values))
            await link_agent(connection, agent)
            new_blocks = [block for block in attached if block.id not in before.block_ids]
            sleepers = await share_blocks(connection, agent_id, new_blocks)
            await render_agents(connection, [agent_id, *sleepers])
            await self._follow_flag(connection, before, agent, attached, sleeper)
            for action, object_ids in _acts(before, agent):
                await record(connection, project_id, action, *object_ids)
            return agent

    async def attach_tool(self, project_id: ProjectId, agent_id: AgentId, tool_id: ToolId, now: datetime) -> Agent:
        """Attaches a tool to the agent; does nothing if it is attached already. Raises `NotFound`."""

        def attach(agent: Agent) -> Agent:
            return agent if tool_id in agent.tool_ids else replace(agent, tool_ids=[*agent.tool_ids, tool_id])

        return await self.update(project_id, agent_id, attach, now)

    async def detach_tool(self, project_id: ProjectId, agent_id: AgentId, tool_id: ToolId, now: datetime) -> Agent:
        """Detaches a tool from the agent. Rules that name it stay. Otherwise the tool would need less approval when it
        is attached again."""

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
        """Deletes the agent with its histories, its runs and the archive that was created for it alone. Its tools,
        blocks and other archives stay. Raises `NotFound`.

        Also deletes the sleep-time agents of the agent's group. If the agent is a group's last sleep-time agent,
        deletes that group.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            await load_agent(connection, project_id, agent_id)
            sleepers = await leave_groups(connection, agent_id, self._secret_keys)
            for gone in (agent_id, *sleepers):
                await _delete_agent(connection, project_id, gone)

    async def _add_sleeper(self, connection: Connection, made: Sleeper, shared: Sequence[Block]) -> Group:
        """Stores a sleep-time agent with its shared blocks, its own block and its group. It gets no block of its own if
        a shared one has that label."""
        own = [] if any(block.label == made.persona.label for block in shared) else [made.persona]
        if own:
            await connection.execute(sa.insert(blocks), [block_values(block) for block in own])
        attached = [*shared, *own]
        tools = await load_tools(connection, made.agent.project_id, made.agent.tool_ids)
        agent = with_default_approvals(replace(made.agent, block_ids=[block.id for block in attached]), tools)
        await connection.execute(_INSERT_AGENT, agent_values(agent, self._secret_keys))
        await link_new_agent(connection, agent)
        begin_history(connection, agent, attached, made.system_message_id)
        return await insert_group(connection, made.group)

    async def _follow_flag(
        self,
        connection: Connection,
        before: Agent,
        agent: Agent,
        attached: Sequence[Block],
        sleeper: MakeSleeper | None,
    ) -> None:
        """Creates, stops or resumes the agent's sleep-time agent after a change of `enable_sleeptime`."""
        is_on = bool(agent.extra.get(ENABLED))
        if sleeper is None and is_on == bool(before.extra.get(ENABLED)):
            return
        group = (await managed_groups(connection, [agent.id])).get(agent.id)
        if group is None and sleeper is not None:
            made = await self._add_sleeper(connection, sleeper(agent), attached)
            await record(connection, agent.project_id, "group.created", made.id)
        elif group is not None and group.is_on != is_on:
            await turn_group(connection, group, is_on=is_on, now=agent.updated_at)
            await record(connection, agent.project_id, "group.changed", group.id)


async def _delete_agent(connection: Connection, project_id: ProjectId, agent_id: AgentId) -> None:
    # The conversations are locked before their runs, as in the deletion of one: otherwise the two could deadlock. They
    # are deleted last, together with those that were created meanwhile.
    known = sa.select(conversations.c.id).where(conversations.c.agent_id == agent_id).order_by(conversations.c.id)
    await connection.execute(known.with_for_update())
    await delete_histories(connection, "agent_id", agent_id)
    await forget_agent(connection, project_id, agent_id)
    for table in (agent_tools, agent_blocks, agent_tags, conversations):
        await connection.execute(sa.delete(table).where(table.c.agent_id == agent_id))
    await remember_place(connection, agents, agent_id)
    await connection.execute(sa.delete(agents).where(agents.c.id == agent_id))
    await record(connection, project_id, "agent.deleted", agent_id)


async def leave_groups(connection: Connection, agent_id: AgentId, secret_keys: SecretKeys) -> list[AgentId]:
    """Removes an agent from all groups. Returns the sleep-time agents that only it had, which the caller deletes with
    it."""
    group = (await managed_groups(connection, [agent_id])).get(agent_id)
    only_its = [] if group is None else await members_of_no_other(connection, group, SLEEPTIME_AGENT)
    if group is not None:
        await delete_group(connection, group)
    for other in await groups_of_member(connection, agent_id):
        if other.agent_ids == [agent_id]:
            await _end_group(connection, other, secret_keys)
        else:
            await remove_member(connection, other, agent_id)
    return only_its


async def _end_group(connection: Connection, group: Group, secret_keys: SecretKeys) -> None:
    """Deletes a group whose manager stays, and clears the manager's `enable_sleeptime`."""
    await delete_group(connection, group)
    await _set_group_flag(connection, group, secret_keys, is_on=None)


async def _set_group_flag(connection: Connection, group: Group, secret_keys: SecretKeys, *, is_on: bool | None) -> None:
    """Stores the value of `enable_sleeptime` that clients see in the manager of a group."""
    manager = await load_agent(connection, group.project_id, group.manager_agent_id)
    values = agent_values(with_group_flag(manager, is_on=is_on), secret_keys)
    await connection.execute(sa.update(agents).where(agents.c.id == manager.id).values(values))


def _acts(before: Agent, after: Agent) -> Iterator[tuple[str, Sequence[str]]]:
    """Returns the audit actions for the parts of a change that decide which code runs for the agent, with which
    secrets, and whether calls need approval. Other changes of an agent are not audited. Acts on tools have the tools'
    ids, all others the agent's."""
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
    columns = columns_of(agent, "id", "project_id", "name", "created_at", "updated_at")
    return {**columns, "document": document_of(document)}


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
        text = to_json(system_message(agent, blocks[agent.id]))
        is_it = (messages.c.thread_id == agent.id, IS_SYSTEM)
        await connection.execute(sa.update(messages).where(*is_it).values(body=text))


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


class GroupEditor:
    """Reads and changes groups."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._secret_keys = secret_keys

    async def get(self, project_id: ProjectId, group_id: GroupId) -> Group:
        """Returns a group of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_group(connection, project_id, group_id)

    async def list(
        self, project_id: ProjectId, page: Page, *, agent_id: AgentId | None = None, show_hidden: bool = False
    ) -> Sequence[Group]:
        """Returns a page of the project's groups. With `agent_id`, only groups that have this agent, as their manager
        or as a sleep-time agent."""
        conditions = [] if agent_id is None else [has_member(agent_id)]
        if not show_hidden:
            conditions.append(agent_groups.c.hidden.is_not(True))
        async with self._database.read() as connection:
            owner = (agent_groups.c.project_id, project_id)
            rows = await rows_of_page(connection, agent_groups, project_id, page, *conditions, owner=owner)
            return await groups_of(connection, rows)

    async def count(self, project_id: ProjectId) -> int:
        """Returns the number of the project's groups, including hidden ones."""
        async with self._database.read() as connection:
            return await count_rows(connection, agent_groups, project_id)

    async def create(self, group: Group) -> Group:
        """Stores a group. From then on its manager's turns start its agents. Raises `NotFound`, `Conflict` or
        `InvalidRequest`."""
        async with self._database.write(None, definitions_lock(group.project_id)) as connection:
            stored = await insert_group(connection, group)
            await _set_group_flag(connection, stored, self._secret_keys, is_on=True)
            await record(connection, group.project_id, "group.created", group.id)
            return stored

    async def update(
        self, project_id: ProjectId, group_id: GroupId, change: Callable[[Group], Group], now: datetime
    ) -> Group:
        """Changes a group. `change` must be quick and pure. Raises as `create`."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            before = await load_group(connection, project_id, group_id, lock=True)
            after = change(before)
            if after == before:
                return before
            stored = await write_group(connection, before, after, now)
            if after.manager_agent_id != before.manager_agent_id:
                await _set_group_flag(connection, before, self._secret_keys, is_on=None)
                await _set_group_flag(connection, after, self._secret_keys, is_on=after.is_on)
            await record(connection, project_id, "group.changed", group_id)
            return stored

    async def delete(self, project_id: ProjectId, group_id: GroupId) -> None:
        """Deletes a group. Its agents stay. Raises `NotFound`."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            await _end_group(
                connection, await load_group(connection, project_id, group_id, lock=True), self._secret_keys
            )
            await record(connection, project_id, "group.deleted", group_id)
