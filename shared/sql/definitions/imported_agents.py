"""Imported agents. One transaction stores all of them with their tools, blocks and histories, or nothing."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import with_default_approvals
from shared.domain.ids import ProjectId
from shared.domain.imported_agents import BroughtAgent, ImportedAgents, ImportReport, without_missing
from shared.domain.mcp_servers import MCP_TYPE
from shared.domain.tool_catalog import is_base_tool
from shared.domain.tools import Tool
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import agent_values, begin_history, link_agent
from shared.sql.definitions.agents import block_values, load_blocks, lock_definitions, tool_of, tool_values
from shared.sql.definitions.groups import insert_group
from shared.sql.engine import Database
from shared.sql.history.messages import insert_brought_history
from shared.sql.paging import made_of
from shared.sql.tables import agents, blocks, tools

TOOLS_AT_ONCE = 100
"""The limit for one statement, in rows: a tool's source may be long."""


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
            for group in brought.groups:
                await insert_group(connection, group)
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
