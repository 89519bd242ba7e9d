"""Tools: one of each name in a project."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.errors import Conflict, UnknownTools
from shared.domain.ids import AgentId, IdMaker, ProjectId, ToolId
from shared.domain.tool_catalog import BASE_TOOLS, BaseTool, is_base_tool, why_missing
from shared.domain.tools import BASE_TYPES, Tool
from shared.secret_keys import StoredSecrets
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agents import (
    definitions_lock,
    load_agent,
    load_tools,
    tool_of,
    tool_values,
    tools_of_agents,
)
from shared.sql.engine import Store
from shared.sql.paging import Page, contains, count_rows, field_of_document, remember_place, rows_of_page
from shared.sql.tables import agent_tools, agents, made_of, tools


class ToolFilter(msgspec.Struct, frozen=True):
    """Which tools of a project a list shows. All given conditions must hold."""

    name: str | None = None
    names: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    search: str | None = None
    """Part of the name, in any case."""
    agent_id: AgentId | None = None
    types: Sequence[str] | None = None
    other_types_than: Sequence[str] = ()
    base_tools: bool | None = None
    """True: only the product's own tools; False: only other tools."""


def _as_it_is(tool: Tool) -> Tool:
    return tool


class ToolStore(Store):
    """Reads and writes tools."""

    async def upsert(self, tool: Tool, change: Callable[[Tool], Tool] = _as_it_is) -> Tool:
        """Stores a new tool, or changes the project's tool of this name. Returns the stored tool.

        `change` must be quick and pure, and keep the name.
        """
        async with self._database.write(None, definitions_lock(tool.project_id)) as connection:
            found = await connection.execute(
                sa.select(tools).where(tools.c.project_id == tool.project_id, tools.c.name == tool.name)
            )
            row = found.mappings().one_or_none()
            if row is None:
                await connection.execute(sa.insert(tools).values(tool_values(tool)))
                await record(connection, tool.project_id, "tool.created", tool.id)
                return tool
            before = tool_of(row)
            changed = replace(change(before), updated_at=tool.updated_at)
            await connection.execute(sa.update(tools).where(tools.c.id == changed.id).values(tool_values(changed)))
            await _record_change(connection, before, changed)
            return changed

    async def add_base_tools(self, project_id: ProjectId, wanted: Sequence[Tool]) -> list[Tool]:
        """Stores those of the product's own tools whose names the project does not use, and replaces older versions of
        them. Returns the project's tools of all these names."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            names = [tool.name for tool in wanted]
            found = await connection.execute(
                sa.select(tools).where(tools.c.project_id == project_id, tools.c.name.in_(names))
            )
            present = {row["name"]: tool_of(row) for row in found.mappings()}
            for tool in wanted:
                before = present.get(tool.name)
                if before is None:
                    await connection.execute(sa.insert(tools).values(tool_values(tool)))
                elif is_base_tool(before) and before.json_schema != tool.json_schema:
                    tool = replace(before, description=tool.description, json_schema=tool.json_schema)
                    await connection.execute(sa.update(tools).where(tools.c.id == tool.id).values(tool_values(tool)))
                else:
                    continue
                present[tool.name] = tool
        return [present[name] for name in names]

    async def get(self, project_id: ProjectId, tool_id: ToolId) -> Tool:
        """One tool of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            [tool] = await load_tools(connection, project_id, [tool_id])
            return tool

    async def ids_by_name(
        self, project_id: ProjectId, names: Sequence[str], *, if_there: Sequence[str] = ()
    ) -> Sequence[ToolId]:
        """Returns the ids of the tools with these names, in this order, then of the project's tools in `if_there`.

        Raises `UnknownTools` naming those that are missing.
        """
        listed = list(dict.fromkeys([*names, *if_there]))
        if not listed:
            return []
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(tools.c.name, tools.c.id).where(tools.c.project_id == project_id, tools.c.name.in_(listed))
            )
            ids = {row.name: row.id for row in found}
        missing = [name for name in names if name not in ids]
        if missing:
            raise UnknownTools(missing, why_missing(missing))
        return [ids[name] for name in listed if name in ids]

    async def names(self, project_id: ProjectId, ids: Sequence[str]) -> Sequence[str]:
        """Returns the names of these tools, in order, without those that the project lacks."""
        if not ids:
            return []
        async with self._database.read() as connection:
            found = await connection.scalars(
                sa.select(tools.c.name)
                .where(tools.c.project_id == project_id, tools.c.id.in_(ids))
                .order_by(tools.c.name)
            )
            return found.all()

    async def list(self, project_id: ProjectId, wanted: ToolFilter, page: Page) -> list[Tool]:
        """A page of the project's tools."""
        async with self._database.read() as connection:
            rows = await rows_of_page(connection, tools, project_id, page, *_conditions(wanted))
            return await made_of(rows, tool_of, "document")

    async def count(self, project_id: ProjectId, wanted: ToolFilter) -> int:
        """Returns how many tools of the project match."""
        async with self._database.read() as connection:
            return await count_rows(connection, tools, project_id, *_conditions(wanted))

    async def for_agent(self, project_id: ProjectId, agent_id: AgentId) -> Sequence[Tool]:
        """The agent's tools, in the order in which they were attached. Raises `NotFound`."""
        async with self._database.read() as connection:
            await load_agent(connection, project_id, agent_id)
            return (await tools_of_agents(connection, [agent_id]))[agent_id]

    async def update(
        self, project_id: ProjectId, tool_id: ToolId, change: Callable[[Tool], Tool], now: datetime
    ) -> Tool:
        """Changes the stored tool in one transaction. Raises `NotFound`, and `Conflict` when its new name is taken.

        `change` must be quick and pure.
        """
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            [before] = await load_tools(connection, project_id, [tool_id])
            tool = replace(change(before), updated_at=now)
            if tool.name != before.name:
                await _refuse_taken_name(connection, tool)
            await connection.execute(sa.update(tools).where(tools.c.id == tool_id).values(tool_values(tool)))
            await _record_change(connection, before, tool)
            return tool

    async def delete(self, project_id: ProjectId, tool_id: ToolId) -> None:
        """Deletes a tool and takes it from all agents. Raises `NotFound`."""
        async with self._database.write(None, definitions_lock(project_id)) as connection:
            await load_tools(connection, project_id, [tool_id])
            await connection.execute(sa.delete(agent_tools).where(agent_tools.c.tool_id == tool_id))
            await remember_place(connection, tools, tool_id)
            await connection.execute(sa.delete(tools).where(tools.c.id == tool_id))
            await record(connection, project_id, "tool.deleted", tool_id)


async def _record_change(connection: Connection, before: Tool, changed: Tool) -> None:
    """Records a change in the audit log only if it differs: scripts send their tools each time they start."""
    if replace(changed, updated_at=before.updated_at) != before:
        await record(connection, changed.project_id, "tool.changed", changed.id)


async def _refuse_taken_name(connection: Connection, tool: Tool) -> None:
    found = await connection.execute(
        sa.select(tools.c.id).where(tools.c.project_id == tool.project_id, tools.c.name == tool.name)
    )
    if found.one_or_none() is not None:
        raise Conflict(
            f"There is a tool named {tool.name!r} already: replace it with PUT /v1/tools/, or choose another name"
        )


def _conditions(wanted: ToolFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.name is not None:
        conditions.append(tools.c.name == wanted.name)
    if wanted.names is not None:
        conditions.append(tools.c.name.in_(wanted.names))
    if wanted.ids is not None:
        conditions.append(tools.c.id.in_(wanted.ids))
    if wanted.search:
        conditions.append(contains(tools.c.name, wanted.search))
    if wanted.agent_id is not None:
        linked = sa.select(agent_tools.c.tool_id).where(agent_tools.c.agent_id == wanted.agent_id)
        conditions.append(tools.c.id.in_(linked))
    kind = field_of_document(tools, "tool_type").as_string()
    if wanted.types is not None:
        conditions.append(kind.in_(wanted.types))
    if wanted.other_types_than:
        conditions.append(kind.not_in(wanted.other_types_than))
    if wanted.base_tools is not None:
        is_base = kind.startswith(BASE_TYPES, autoescape=True)
        conditions.append(is_base if wanted.base_tools else sa.not_(is_base))
    return conditions


# Agents' stored secrets, of all projects. The command that changes the encryption key uses this.


_FIELD = "tool_environment"


class StoredSecretStore(Store):
    """Reads and replaces agents' stored secrets."""

    async def some(self, after: int, limit: int) -> Sequence[StoredSecrets]:
        """Returns agents with secrets in the order of their creation, after the number `after`."""
        columns = (agents.c.number, agents.c.id, agents.c.project_id, agents.c.document)
        # A cheap filter for most agents without secrets; the check below removes those that it misses.
        wanted = sa.select(*columns).where(agents.c.number > after, agents.c.document.contains(f'"{_FIELD}":{{"'))
        async with self._database.read() as connection:
            found = await connection.execute(wanted.order_by(agents.c.number).limit(limit))
            return [_stored(*row) for row in found]

    async def newest(self, agents_at_most: int) -> Sequence[StoredSecrets]:
        """Returns the agents with secrets among the newest `agents_at_most` agents. It reads few rows however many
        agents there are."""
        columns = (agents.c.number, agents.c.id, agents.c.project_id, agents.c.document)
        last = sa.select(*columns).order_by(agents.c.number.desc()).limit(agents_at_most).subquery()
        wanted = sa.select(last).where(last.c.document.contains(f'"{_FIELD}":{{"'))
        async with self._database.read() as connection:
            return [_stored(*row) for row in await connection.execute(wanted)]

    async def replace(self, before: StoredSecrets, secrets: dict[str, str]) -> bool:
        """Stores other texts for the same secrets. Returns False and stores nothing if the agent was changed since, or
        deleted."""
        # A change of an agent reads its document first and then writes all of it. This lock keeps the two writes apart.
        async with self._database.write(None, definitions_lock(ProjectId(before.project_id))) as connection:
            done = await connection.execute(
                sa.update(agents)
                .where(agents.c.id == before.owner_id, agents.c.document == before.text)
                .values(document=_with_secrets(before.text, secrets))
            )
            return done.rowcount == 1


def _stored(number: int, agent_id: str, project_id: str, document: str) -> StoredSecrets:
    fields: dict[str, Any] = msgspec.json.decode(document)
    return StoredSecrets(number, agent_id, fields.get(_FIELD, {}), document, project_id)


def _with_secrets(document: str, secrets: dict[str, str]) -> str:
    """Returns an agent's document with these secrets. All other fields stay as written, also those that this release
    does not know."""
    fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    fields[_FIELD] = msgspec.Raw(msgspec.json.encode(secrets))
    return msgspec.json.encode(fields).decode()


class BaseToolSeeder:
    """Adds the base tools of this release to projects. A project's own tool of the same name stays."""

    def __init__(self, *, tools: ToolStore, clock: Clock, ids: IdMaker) -> None:
        self._tools = tools
        self._clock = clock
        self._ids = ids
        self._filled: set[ProjectId] = set()

    async def fill(self, project_id: ProjectId) -> None:
        """Ensures that the project has the base tools. Asks the database once per project and process."""
        if project_id not in self._filled:
            await self.add(project_id)

    async def add(self, project_id: ProjectId) -> list[Tool]:
        """Adds the missing base tools and updates the present ones to this release. Returns all of them."""
        stored = await self._tools.add_base_tools(project_id, [self._row(project_id, tool) for tool in BASE_TOOLS])
        self._filled.add(project_id)
        return stored

    def _row(self, project_id: ProjectId, tool: BaseTool) -> Tool:
        now = self._clock.now()
        return Tool(
            id=self._ids.tool(),
            project_id=project_id,
            name=tool.name,
            description=tool.description,
            source_code="",
            json_schema=tool.json_schema,
            tags=[tool.kind],
            enable_parallel_execution=tool.enable_parallel_execution,
            idempotent=not tool.starts_once,
            tool_type=tool.kind,
            created_at=now,
            updated_at=now,
        )
