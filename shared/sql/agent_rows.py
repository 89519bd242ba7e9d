"""Rows of agents and the system message that heads their history, inside somebody's transaction."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.agents import Agent, Block
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, BlockId, MessageId, ProjectId, ThreadId, ToolId
from shared.domain.messages import NewMessage, SystemMessage
from shared.domain.prompt import render_system
from shared.sql.columns import from_json, to_json
from shared.sql.definition_rows import blocks_of_agents, set_links
from shared.sql.documents import document_of
from shared.sql.message_rows import FIRST_TURN, insert_into_thread
from shared.sql.tables import agent_blocks, agent_tags, agent_tools, agents, messages

SYSTEM_POSITION = 1
"""An agent's default history begins with its system message, in the turn before the first run's."""


def agent_values(agent: Agent) -> dict[str, Any]:
    """The columns of an agent's row. Links have tables of their own, and runs write `last_stop_reason`.

    Raises `InvalidRequest` for a text that cannot be stored, the tags' included.
    """
    document_of(agent)
    document = replace(agent, tool_ids=[], block_ids=[], tags=[], last_stop_reason=None)
    return {
        "id": agent.id,
        "project_id": agent.project_id,
        "name": agent.name,
        "document": document_of(document),
        "created_at": agent.created_at,
        "updated_at": agent.updated_at,
    }


async def agents_of(connection: AsyncConnection, rows: Sequence[RowMapping]) -> list[Agent]:
    """The agents of rows of `agents`, with their links and tags."""
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    links = await _links_of(connection, ids)
    return [
        replace(
            from_json(row["document"], Agent),
            tool_ids=[ToolId(tool_id) for tool_id in links["tool", row["id"]]],
            block_ids=[BlockId(block_id) for block_id in links["block", row["id"]]],
            tags=links["tag", row["id"]],
            last_stop_reason=row["last_stop_reason"],
            updated_at=row["updated_at"],
        )
        for row in rows
    ]


def _links(kind: str, value: sa.Column[Any], place: sa.ColumnElement[int]) -> sa.Select[*tuple[Any, ...]]:
    agent_id: sa.Column[Any] = value.table.c.agent_id
    chosen = sa.select(sa.literal(kind).label("kind"), agent_id, value.label("value"), place.label("place"))
    return chosen.where(agent_id.in_(sa.bindparam("ids", expanding=True)))


# Made once: it is read for every run and every agent that is shown, and making it costs more than reading it.
_LINKS = sa.union_all(
    _links("tool", agent_tools.c.tool_id, agent_tools.c.number),
    _links("block", agent_blocks.c.block_id, agent_blocks.c.number),
    _links("tag", agent_tags.c.tag, sa.literal(0)),
).order_by("place", "value")


async def _links_of(connection: AsyncConnection, ids: Sequence[str]) -> defaultdict[tuple[str, str], list[str]]:
    """Ids of tools and blocks in the order in which they were attached, and tags by name; by kind and agent."""
    found = await connection.execute(_LINKS, {"ids": list(ids)})
    links: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in found.mappings():
        links[row["kind"], row["agent_id"]].append(row["value"])
    return links


async def load_agent(connection: AsyncConnection, project_id: ProjectId, agent_id: AgentId) -> Agent:
    """One agent of this project. Raises `NotFound`."""
    found = await connection.execute(
        sa.select(agents).where(agents.c.id == agent_id, agents.c.project_id == project_id)
    )
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    [agent] = await agents_of(connection, [row])
    return agent


async def link_agent(connection: AsyncConnection, agent: Agent) -> None:
    """Makes the stored tools, blocks and tags those of `agent`."""
    await set_links(connection, agent_tools, "tool_id", agent.id, agent.tool_ids)
    await set_links(connection, agent_blocks, "block_id", agent.id, agent.block_ids)
    await connection.execute(sa.delete(agent_tags).where(agent_tags.c.agent_id == agent.id))
    if agent.tags:
        rows = [{"agent_id": agent.id, "tag": tag} for tag in dict.fromkeys(agent.tags)]
        await connection.execute(sa.insert(agent_tags), rows)


async def insert_system_message(
    connection: AsyncConnection, agent: Agent, blocks: Sequence[Block], message_id: MessageId
) -> None:
    """Begins the agent's default history."""
    message = NewMessage(id=message_id, created_at=agent.created_at, body=_system_message(agent, blocks))
    await insert_into_thread(
        connection,
        [message],
        agent_id=agent.id,
        thread_id=ThreadId(agent.id),
        conversation_id=None,
        run_id=None,
        turn=FIRST_TURN,
        after=SYSTEM_POSITION - 1,
    )


async def render_again(connection: AsyncConnection, changed: Iterable[Agent]) -> None:
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
            .values(body=to_json(_system_message(agent, blocks[agent.id])))
        )


def _system_message(agent: Agent, blocks: Sequence[Block]) -> SystemMessage:
    labels = [block.label for block in blocks]
    for label in labels:
        if labels.count(label) > 1:
            raise Conflict(f"Agent {agent.id} would have two memory blocks labelled {label!r}: rename or detach one")
    return SystemMessage(render_system(agent, blocks))
