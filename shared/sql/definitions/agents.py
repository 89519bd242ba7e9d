"""Rows of agents and the system message that heads their history, inside a caller's transaction."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.concurrency import beside
from shared.domain.agents import Agent, Block
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ArchiveId, BlockId, MessageId, ProjectId, ToolId
from shared.domain.tools import Tool
from shared.sql.connection import Connection
from shared.sql.definitions.last_runs import LastRun, last_run_keys, last_runs
from shared.sql.definitions.links import (
    blocks_of_agents,
    tools_of_agents,
)
from shared.sql.engine import Database
from shared.sql.history.context_ids import ids_in_context
from shared.sql.made_rows import made_of
from shared.sql.paging import Page, contains, count_rows, field_of_document, rows_of_page
from shared.sql.run_tables import runs
from shared.sql.tables import agent_archives, agent_blocks, agent_tags, agent_tools, agents, from_json


async def agents_of(connection: Connection, rows: Sequence[RowMapping]) -> list[Agent]:
    """The agents of rows of `agents`, with their links and tags."""
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    links = await _links_of(connection, ids)

    def linked(row: RowMapping) -> Agent:
        return replace(
            _unlinked(row),
            tool_ids=[ToolId(tool_id) for tool_id in links["tool", row["id"]]],
            block_ids=[BlockId(block_id) for block_id in links["block", row["id"]]],
            tags=links["tag", row["id"]],
        )

    return await made_of(rows, linked, "document")


def _links(kind: str, value: sa.Column[Any], place: sa.ColumnElement[int]) -> sa.Select[*tuple[Any, ...]]:
    agent_id: sa.Column[Any] = value.table.c.agent_id
    chosen = sa.select(sa.literal(kind).label("kind"), agent_id, value.label("value"), place.label("place"))
    return chosen.where(agent_id.in_(sa.bindparam("ids", expanding=True)))


CHARACTERS_OF_A_LINK = 50
"""As `CHARACTERS_OF_A_ROW`."""

# Made once: it is read for every run and every agent that is shown, and making it costs more than reading it.
_LINKS = sa.union_all(
    _links("tool", agent_tools.c.tool_id, agent_tools.c.number),
    _links("block", agent_blocks.c.block_id, agent_blocks.c.number),
    _links("tag", agent_tags.c.tag, sa.literal(0)),
).order_by("place", "value")


async def _links_of(connection: Connection, ids: Sequence[str]) -> defaultdict[tuple[str, str], list[str]]:
    """Ids of tools and blocks in the order in which they were attached, and tags by name; by kind and agent."""
    found = await connection.execute(_LINKS, {"ids": list(ids)})
    rows = found.all()
    return await beside(partial(_grouped, rows), len(rows) * CHARACTERS_OF_A_LINK)


def _grouped(rows: Iterable[Sequence[Any]]) -> defaultdict[tuple[str, str], list[str]]:
    links: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, agent_id, value, _place in rows:
        links[kind, agent_id].append(value)
    return links


_AGENT = sa.select(agents).where(
    agents.c.id == sa.bindparam("agent_id"), agents.c.project_id == sa.bindparam("of_project")
)
_AGENT_TO_EQUIP = _AGENT.add_columns(
    sa.exists().where(agent_tools.c.agent_id == agents.c.id).label("has_tools"),
    sa.exists().where(agent_blocks.c.agent_id == agents.c.id).label("has_blocks"),
)


async def load_agent(connection: Connection, project_id: ProjectId, agent_id: AgentId) -> Agent:
    """One agent of this project. Raises `NotFound`."""
    [agent] = await agents_of(connection, [await _row_of(connection, _AGENT, project_id, agent_id)])
    return agent


async def _row_of(connection: Connection, query: sa.Executable, project_id: ProjectId, agent_id: AgentId) -> RowMapping:
    found = await connection.execute(query, {"agent_id": agent_id, "of_project": project_id})
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return row


def _unlinked(row: RowMapping) -> Agent:
    """The agent of a row of `agents`, without its links and tags."""
    agent = from_json(row["document"], Agent)
    return replace(agent, last_stop_reason=row["last_stop_reason"], updated_at=row["updated_at"])


class AgentFilter(msgspec.Struct, frozen=True):
    """Which agents of a project a list shows. Everything that is given must hold."""

    name: str | None = None
    query_text: str | None = None
    """Part of the name, whatever the case."""
    tags: Sequence[str] = ()
    match_all_tags: bool = False
    last_stop_reason: str | None = None
    block_id: BlockId | None = None
    archive_id: ArchiveId | None = None
    identity_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    show_hidden: bool = False


EVERY_SHOWN = AgentFilter()
"""All but the hidden ones."""

AgentOrder = Literal["created_at", "updated_at", "last_run_completion"]


class EquippedAgent(NamedTuple):
    """What a run needs of its agent. Tools and blocks are in the order in which they were attached."""

    agent: Agent
    """Without its links and its tags."""
    tools: Sequence[Tool]
    blocks: Sequence[Block]


class AgentDetails(msgspec.Struct, frozen=True):
    """An agent with what its links lead to."""

    agent: Agent
    tools: list[Tool]
    blocks: list[Block]
    message_ids: list[MessageId]
    """The ids of the messages in its default context, as the wire shows them."""
    last_run: LastRun | None = None


class AgentStore:
    """Reads agents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project_id: ProjectId, agent_id: AgentId) -> Agent:
        """One agent of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_agent(connection, project_id, agent_id)

    async def without_links(self, project_id: ProjectId, agent_id: AgentId) -> Agent:
        """One agent of this project without its tools, blocks and tags: for who only sends to it. Raises `NotFound`."""
        async with self._database.read() as connection:
            return _unlinked(await _row_of(connection, _AGENT, project_id, agent_id))

    async def equipped(self, project_id: ProjectId, agent_id: AgentId) -> EquippedAgent:
        """One agent of this project with what it works with. Raises `NotFound`."""
        async with self._database.read() as connection:
            row = await _row_of(connection, _AGENT_TO_EQUIP, project_id, agent_id)
            tools = (await tools_of_agents(connection, [agent_id]))[agent_id] if row["has_tools"] else []
            blocks = (await blocks_of_agents(connection, [agent_id]))[agent_id] if row["has_blocks"] else []
            return EquippedAgent(_unlinked(row), tools, blocks)

    async def list(
        self, project_id: ProjectId, wanted: AgentFilter, page: Page, order_by: AgentOrder = "created_at"
    ) -> list[Agent]:
        """A page of the project's agents. Those that have not run yet come last where runs order them."""
        conditions = _conditions(wanted, is_sqlite=self._database.is_sqlite)
        async with self._database.read() as connection:
            keys: list[sa.ColumnElement[Any]] = [agents.c.number]
            if order_by == "updated_at":
                keys = [agents.c.updated_at, agents.c.number]
            elif order_by == "last_run_completion":
                keys = last_run_keys(connection, order_by, runs.c.agent_id, agents, ascending=page.ascending)
            rows = await rows_of_page(connection, agents, project_id, page, *conditions, keys=keys)
            return await agents_of(connection, rows)

    async def count(self, project_id: ProjectId, wanted: AgentFilter = EVERY_SHOWN) -> int:
        """How many agents of the project a list would show in all."""
        conditions = _conditions(wanted, is_sqlite=self._database.is_sqlite)
        async with self._database.read() as connection:
            return await count_rows(connection, agents, project_id, *conditions)

    async def details(self, some: Sequence[Agent]) -> Sequence[AgentDetails]:
        """The agents with their tools, blocks, message ids and last runs: a query for each, however many agents."""
        ids = [agent.id for agent in some]
        async with self._database.read() as connection:
            tools = await tools_of_agents(connection, [agent.id for agent in some if agent.tool_ids])
            attached = await blocks_of_agents(connection, [agent.id for agent in some if agent.block_ids])
            message_ids = await ids_in_context(connection, ids)
            last = await last_runs(connection, ids)
        return [
            AgentDetails(
                agent,
                tools.get(agent.id, []),
                attached.get(agent.id, []),
                message_ids.get(agent.id, []),
                last.get(agent.id),
            )
            for agent in some
        ]


def _conditions(wanted: AgentFilter, *, is_sqlite: bool) -> list[sa.ColumnElement[bool]]:
    conditions = _kept_conditions(wanted, is_sqlite=is_sqlite)
    if wanted.name is not None:
        conditions.append(agents.c.name == wanted.name)
    if wanted.query_text:
        conditions.append(contains(agents.c.name, wanted.query_text))
    if wanted.last_stop_reason is not None:
        conditions.append(agents.c.last_stop_reason == wanted.last_stop_reason)
    if wanted.block_id is not None:
        having = sa.select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == wanted.block_id)
        conditions.append(agents.c.id.in_(having))
    if wanted.archive_id is not None:
        attached = sa.select(agent_archives.c.agent_id).where(agent_archives.c.archive_id == wanted.archive_id)
        conditions.append(agents.c.id.in_(attached))
    if wanted.tags:
        tags = set(wanted.tags)
        tagged = sa.select(agent_tags.c.agent_id).where(agent_tags.c.tag.in_(tags)).group_by(agent_tags.c.agent_id)
        tagged = tagged.having(sa.func.count() >= (len(tags) if wanted.match_all_tags else 1))
        conditions.append(agents.c.id.in_(tagged))
    return conditions


def _kept_conditions(wanted: AgentFilter, *, is_sqlite: bool) -> list[sa.ColumnElement[bool]]:
    """What is asked of the fields that are only kept and given back."""

    def kept(name: str) -> Any:
        return field_of_document(agents, ("extra", name), is_sqlite=is_sqlite)

    conditions: list[sa.ColumnElement[bool]] = []
    if not wanted.show_hidden:
        conditions.append(kept("hidden").as_boolean().is_not(True))
    for name, value in (("template_id", wanted.template_id), ("base_template_id", wanted.base_template_id)):
        if value is not None:
            conditions.append(kept(name).as_string() == value)
    if wanted.identity_id is not None:
        conditions.append(contains(kept("identity_ids").as_string(), f'"{wanted.identity_id}"'))
    return conditions
