"""Rows of tools and blocks, and their links to agents, inside a caller's transaction."""

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.agents import Block
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ProjectId
from shared.domain.packages import ToolPackages
from shared.domain.tools import Tool, ToolLimits
from shared.sql.connection import Connection
from shared.sql.made_rows import made_of
from shared.sql.tables import agent_blocks, agent_tools, blocks, document_of, from_json, tools

Noun = TypeVar("Noun", Tool, Block)

_FIELDS = frozenset(Tool.__struct_fields__)
_STRUCTS = {"packages": ToolPackages, "limits": ToolLimits}

_SEED = 1
"""Keeps these advisory locks apart from those of other nouns."""


_LOCK = sa.select(
    sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(sa.bindparam("of_project", type_=sa.Text), _SEED))
)


async def lock_definitions(connection: Connection, project_id: ProjectId) -> None:
    """One change of a project's agents, tools and blocks at a time, until the transaction ends.

    An agent's stored instructions are made of its own text and of its blocks': of two changes at once, each would see
    half. On SQLite the write lock does it already.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(_LOCK, {"of_project": project_id})


def tool_of(row: RowMapping) -> Tool:
    """The tool of a row of `tools`. The columns win over the document: an upsert keeps the row's id. What only a newer
    release knows of a tool is passed over."""
    document = from_json(row["document"], dict[str, Any])
    known = {name: value for name, value in document.items() if name in _FIELDS}
    for name, kind in _STRUCTS.items():
        known[name] = known.get(name) and msgspec.convert(known[name], kind)
    columns = {name: row[name] for name in ("id", "project_id", "name", "created_at", "updated_at")}
    return Tool(**known | columns)


def tool_values(tool: Tool) -> dict[str, Any]:
    """The columns of a tool's row."""
    return _values(tool, tool.name, "name")


def block_of(row: RowMapping) -> Block:
    """The block of a row of `blocks`."""
    return from_json(row["document"], Block)


def block_values(block: Block) -> dict[str, Any]:
    """The columns of a block's row."""
    return _values(block, block.label, "label")


def _values(noun: Tool | Block, name: str, column: str) -> dict[str, Any]:
    return {
        "id": noun.id,
        "project_id": noun.project_id,
        column: name,
        "document": document_of(noun),
        "created_at": noun.created_at,
        "updated_at": noun.updated_at,
    }


async def load_tools(connection: Connection, project_id: ProjectId, ids: Sequence[str]) -> list[Tool]:
    """The project's tools with these ids, in this order. Raises `NotFound` naming those that are missing."""
    return await made_of(await _load(connection, tools, project_id, ids, "Tool"), tool_of, "document")


async def load_blocks(connection: Connection, project_id: ProjectId, ids: Sequence[str]) -> list[Block]:
    """The project's blocks with these ids, in this order. Raises `NotFound` naming those that are missing."""
    return await made_of(await _load(connection, blocks, project_id, ids, "Block"), block_of, "document")


async def _load(
    connection: Connection, table: sa.Table, project_id: ProjectId, ids: Sequence[str], noun: str
) -> list[RowMapping]:
    if not ids:
        return []
    found = await connection.execute(sa.select(table).where(table.c.project_id == project_id, table.c.id.in_(ids)))
    rows = {row["id"]: row for row in found.mappings()}
    missing = [row_id for row_id in ids if row_id not in rows]
    if missing:
        raise NotFound(f"{noun} with ID {', '.join(missing)} not found")
    return [rows[row_id] for row_id in ids]


async def tools_of_agents(connection: Connection, agent_ids: Collection[AgentId]) -> dict[str, list[Tool]]:
    """Each agent's tools, in the order in which they were attached."""
    return await _linked(connection, tools, agent_tools, agent_tools.c.tool_id, agent_ids, tool_of)


async def blocks_of_agents(connection: Connection, agent_ids: Collection[AgentId]) -> dict[str, list[Block]]:
    """Each agent's blocks, in the order in which they were attached."""
    return await _linked(connection, blocks, agent_blocks, agent_blocks.c.block_id, agent_ids, block_of)


async def _linked(
    connection: Connection,
    table: sa.Table,
    links: sa.Table,
    target: sa.Column[Any],
    agent_ids: Collection[AgentId],
    make: Callable[[RowMapping], Noun],
) -> dict[str, list[Noun]]:
    grouped: dict[str, list[Noun]] = {agent_id: [] for agent_id in agent_ids}
    if agent_ids:
        found = await connection.execute(_linked_rows(table, links, target), {"agent_ids": list(agent_ids)})
        rows = found.mappings().all()
        for row, noun in zip(rows, await made_of(rows, make, "document"), strict=True):
            grouped[row["owner"]].append(noun)
    return grouped


@cache
def _linked_rows(table: sa.Table, links: sa.Table, target: sa.Column[Any]) -> sa.Select[*tuple[Any, ...]]:
    return (
        sa.select(links.c.agent_id.label("owner"), table)
        .join_from(links, table, table.c.id == target)
        .where(links.c.agent_id.in_(sa.bindparam("agent_ids", expanding=True)))
        .order_by(links.c.number)
    )


async def set_links(
    connection: Connection, links: sa.Table, target: str, agent_id: AgentId, wanted: Sequence[str]
) -> None:
    """Makes `wanted` the agent's links, in this order. Links that stay keep their place."""
    found = await connection.execute(sa.select(links.c[target]).where(links.c.agent_id == agent_id))
    present = set(found.scalars())
    gone = present.difference(wanted)
    if gone:
        await connection.execute(sa.delete(links).where(links.c.agent_id == agent_id, links.c[target].in_(gone)))
    await add_links(connection, links, target, agent_id, [row_id for row_id in wanted if row_id not in present])


async def add_links(
    connection: Connection, links: sa.Table, target: str, agent_id: AgentId, new: Sequence[str]
) -> None:
    """Links the agent with what it has no link to yet, in this order."""
    rows = [{"agent_id": agent_id, target: row_id} for row_id in dict.fromkeys(new)]
    if rows:
        await connection.execute(sa.insert(links), rows)
