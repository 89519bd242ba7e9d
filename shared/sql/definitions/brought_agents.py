"""Agents that come from somewhere else: all of them are stored, with what belongs to them, or nothing is."""

import sqlalchemy as sa
from msgspec.structs import replace

from shared.domain.agents import with_default_approvals
from shared.domain.base_tools import is_base_tool
from shared.domain.brought_agents import Arrival, BroughtAgent, BroughtAgents, BroughtTool, without_missing
from shared.domain.ids import ProjectId
from shared.domain.tools import Tool
from shared.secret_keys import NO_KEYS, SecretKeys
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import agent_values, begin_history, link_agent
from shared.sql.definitions.links import block_values, load_blocks, lock_definitions, tool_of, tool_values
from shared.sql.engine import Database
from shared.sql.history.messages import insert_brought_history
from shared.sql.tables import agents, blocks, tools


class BroughtAgentStore:
    """Stores agents that were made elsewhere."""

    def __init__(self, database: Database, secret_keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._secret_keys = secret_keys

    async def store(self, project_id: ProjectId, brought: BroughtAgents) -> Arrival:
        """Stores tools, blocks, agents and their histories in one transaction; what became of the tools.

        A base tool of the project is never replaced. Raises `Conflict` for an agent with two blocks of one label, and
        `InvalidRequest` for a text that cannot be stored.
        """
        async with self._database.write() as connection:
            await lock_definitions(connection, project_id)
            wanted = {one.new.name for one in brought.tools}.union(*(one.tool_names for one in brought.agents))
            present = await _tools_by_name(connection, project_id, wanted)
            own = dict(present)
            replaced, kept = await _store_tools(connection, brought, present)
            guarded = [
                one.new.name
                for one in brought.tools
                if (before := own.get(one.new.name)) and not is_base_tool(before) and one.opens(before)
            ]
            if brought.blocks:
                await connection.execute(sa.insert(blocks), [block_values(block) for block in brought.blocks])
            for one in brought.agents:
                await _store_agent(connection, one, present, self._secret_keys)
            return Arrival(replaced, guarded, kept, sorted(wanted.difference(present)))


async def _tools_by_name(connection: Connection, project_id: ProjectId, names: set[str]) -> dict[str, Tool]:
    found = await connection.execute(sa.select(tools).where(tools.c.project_id == project_id, tools.c.name.in_(names)))
    return {row["name"]: tool_of(row) for row in found.mappings()}


async def _store_tools(
    connection: Connection, brought: BroughtAgents, present: dict[str, Tool]
) -> tuple[list[str], list[str]]:
    """Brings `present` to what the project has now; the names of the tools that were replaced, and of those that were
    kept although they differ."""
    replaced: list[str] = []
    kept: list[str] = []
    for one in brought.tools:
        name = one.new.name
        before = present.get(name)
        if before is None:
            present[name] = one.new
            await connection.execute(sa.insert(tools).values(tool_values(one.new)))
            await record(connection, one.new.project_id, "tool.created", one.new.id)
        elif _is_same(before, one):
            continue
        elif is_base_tool(before) or not brought.replace_tools:
            kept.append(name)
        else:
            present[name] = replace(one.in_place_of(before), updated_at=one.new.updated_at)
            replaced.append(name)
            await connection.execute(sa.update(tools).where(tools.c.id == before.id).values(tool_values(present[name])))
            await record(connection, before.project_id, "tool.changed", before.id)
    return replaced, kept


def _is_same(before: Tool, brought: BroughtTool) -> bool:
    return not is_base_tool(before) and brought.in_place_of(before) == before


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
