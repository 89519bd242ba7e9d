"""Rows of agents and the system message that heads their history, inside a caller's transaction."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.concurrency import beside
from shared.domain.agents import Agent, Block
from shared.domain.errors import NotFound
from shared.domain.groups import ENABLED, Group
from shared.domain.ids import AgentId, ArchiveId, BlockId, MessageId, ProjectId, ToolId
from shared.domain.tools import Tool, ToolLimits, ToolPackages
from shared.sql.connection import Connection, Filled
from shared.sql.definitions.groups import managed_groups
from shared.sql.engine import Store
from shared.sql.history.messages import ids_in_context
from shared.sql.paging import Page, contains, count_rows, field_of_document, nulls_last, rows_of_page
from shared.sql.portable import AdvisoryLock, OwnedBy
from shared.sql.run_tables import runs
from shared.sql.tables import (
    agent_archives,
    agent_blocks,
    agent_tags,
    agent_tools,
    agents,
    blocks,
    columns_of,
    document_of,
    from_json,
    made_of,
    tools,
)

# Rows of tools and blocks, and their links to agents, inside a caller's transaction.


Noun = TypeVar("Noun", Tool, Block)

_FIELDS = frozenset(Tool.__struct_fields__)
_STRUCTS = {"packages": ToolPackages, "limits": ToolLimits}

_SEED = 1
"""Separates these advisory locks from the locks of other nouns."""


_LOCK = sa.select(AdvisoryLock(sa.func.hashtextextended(sa.bindparam("of_project", type_=sa.Text), _SEED)))


def definitions_lock(project_id: ProjectId) -> Filled:
    """Returns the lock that lets one transaction at a time change the project's agents, tools and blocks.

    An agent's stored instructions combine its own text with that of its blocks: of two concurrent changes, each would
    miss the other.
    """
    return Filled(_LOCK, {"of_project": project_id})


def tool_of(row: RowMapping) -> Tool:
    """Returns the tool of a row of `tools`. The columns override the document, because an upsert keeps the row's id.
    Ignores fields that only a newer release knows."""
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
    columns = columns_of(noun, "id", "project_id", "created_at", "updated_at")
    return {**columns, column: name, "document": document_of(noun)}


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
    """Adds the links that the agent does not have yet, in this order."""
    rows = [{"agent_id": agent_id, target: row_id} for row_id in dict.fromkeys(new)]
    if rows:
        await connection.execute(sa.insert(links), rows)


# When an agent or a conversation last worked. The rows of its runs show this; no other column stores it.
#
# Runs outside of any history do not count, because a client started them, and not the agent.


LastRunOrder = Literal["last_run_completion", "last_message_at"]


class LastRun(NamedTuple):
    """The newest run that has ended, or waits for a person."""

    submitted_at: datetime
    completed_at: datetime


async def last_runs(connection: Connection, agent_ids: Collection[AgentId]) -> dict[str, LastRun]:
    """The last run of each agent that has one."""
    query = _last_runs()
    found = await connection.execute(query, {"agent_ids": list(agent_ids)})
    return {row.id: LastRun(row.created_at, row.completed_at) for row in found}


@cache
def _last_runs() -> sa.Select[*tuple[Any, ...]]:
    newest = _newest(runs.c.number, runs.c.agent_id, agents.c.id, has_ended=True)
    return (
        sa.select(agents.c.id, runs.c.created_at, runs.c.completed_at)
        .join(runs, runs.c.number == newest)
        .where(agents.c.id.in_(sa.bindparam("agent_ids", expanding=True)))
    )


def last_run_keys(
    connection: Connection, order: LastRunOrder, owner: sa.Column[str], rows: sa.Table, *, ascending: bool
) -> list[sa.ColumnElement[Any]]:
    """Returns the keys that order `rows` by their last run, whose given column refers to the row. Rows without a run
    come last."""
    by = runs.c.completed_at if order == "last_run_completion" else runs.c.created_at
    newest = _newest(by, owner, rows.c.id, has_ended=order == "last_run_completion")
    return [nulls_last(newest, ascending=ascending), rows.c.number]


def _newest(
    wanted: sa.Column[Any], owner: sa.Column[str], row_id: sa.Column[str], *, has_ended: bool
) -> sa.ScalarSelect[Any]:
    is_in_history = runs.c.thread_id != runs.c.id
    query = sa.select(wanted).where(OwnedBy(owner, row_id), is_in_history)
    if has_ended:
        query = query.where(runs.c.completed_at.is_not(None))
    newest_first = query.order_by(owner.desc(), runs.c.number.desc()).limit(1)
    return newest_first.correlate(row_id.table).scalar_subquery()


async def agents_of(connection: Connection, rows: Sequence[RowMapping]) -> list[Agent]:
    """The agents of rows of `agents`, with their links and tags."""
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    links = await _links_of(connection, ids)

    def linked(row: RowMapping) -> Agent:
        return replace(
            unlinked_agent(row),
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
"""The cost of a link, as `CHARACTERS_OF_A_ROW`."""

# Built once: every run and every shown agent needs it, and to build it costs more than to execute it.
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


AGENT_ROW = sa.select(agents).where(
    agents.c.id == sa.bindparam("agent_id"), agents.c.project_id == sa.bindparam("of_project")
)
"""One agent of a project, for `agent_row`."""

_AGENT_TO_EQUIP = AGENT_ROW.add_columns(
    sa.exists().where(agent_tools.c.agent_id == agents.c.id).label("has_tools"),
    sa.exists().where(agent_blocks.c.agent_id == agents.c.id).label("has_blocks"),
)


async def load_agent(connection: Connection, project_id: ProjectId, agent_id: AgentId) -> Agent:
    """One agent of this project. Raises `NotFound`."""
    [agent] = await agents_of(connection, [await agent_row(connection, AGENT_ROW, project_id, agent_id)])
    return agent


async def agent_row(
    connection: Connection, query: sa.Executable, project_id: ProjectId, agent_id: AgentId, **given: Any
) -> RowMapping:
    """Returns the row of a query that extends `AGENT_ROW`; `given` are the values of its further parameters. Raises
    `NotFound`."""
    found = await connection.execute(query, {"agent_id": agent_id, "of_project": project_id, **given})
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return row


def unlinked_agent(row: RowMapping) -> Agent:
    """The agent of a row of `agents`, without its links and tags."""
    agent = from_json(row["document"], Agent)
    return replace(agent, last_stop_reason=row["last_stop_reason"], updated_at=row["updated_at"])


class AgentFilter(msgspec.Struct, frozen=True):
    """Which agents of a project a list shows. All given conditions must hold."""

    ids: Collection[AgentId] | None = None
    between: tuple[AgentId, AgentId] | None = None
    """The first and the last id of a range."""
    name: str | None = None
    query_text: str | None = None
    """Part of the name, in any case."""
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
"""All agents but the hidden ones."""

AgentOrder = Literal["created_at", "updated_at", "last_run_completion"]


class EquippedAgent(NamedTuple):
    """The parts of an agent that a run needs. Tools and blocks are in the order in which they were attached."""

    agent: Agent
    """Without its links and its tags."""
    tools: Sequence[Tool]
    blocks: Sequence[Block]


class AgentDetails(msgspec.Struct, frozen=True):
    """An agent with its tools, blocks and message ids."""

    agent: Agent
    tools: list[Tool]
    blocks: list[Block]
    message_ids: list[MessageId]
    """The ids of the messages in its default context, in the clients' order."""
    last_run: LastRun | None = None
    group: Group | None = None
    """The group that the agent manages."""


class AgentStore(Store):
    """Reads agents."""

    async def get(self, project_id: ProjectId, agent_id: AgentId) -> Agent:
        """One agent of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_agent(connection, project_id, agent_id)

    async def without_links(self, project_id: ProjectId, agent_id: AgentId) -> Agent:
        """Returns an agent of this project without its tools, blocks and tags, for callers that only send to it. Raises
        `NotFound`."""
        async with self._database.read() as connection:
            return unlinked_agent(await agent_row(connection, AGENT_ROW, project_id, agent_id))

    async def equipped(self, project_id: ProjectId, agent_id: AgentId) -> EquippedAgent:
        """Returns an agent of this project with its tools and blocks. Raises `NotFound`."""
        async with self._database.read() as connection:
            row = await agent_row(connection, _AGENT_TO_EQUIP, project_id, agent_id)
            tools = (await tools_of_agents(connection, [agent_id]))[agent_id] if row["has_tools"] else []
            blocks = (await blocks_of_agents(connection, [agent_id]))[agent_id] if row["has_blocks"] else []
            return EquippedAgent(unlinked_agent(row), tools, blocks)

    async def list(
        self, project_id: ProjectId, wanted: AgentFilter, page: Page, order_by: AgentOrder = "created_at"
    ) -> list[Agent]:
        """Returns a page of the project's agents. If the last run orders them, agents without a run come last."""
        conditions = _conditions(wanted)
        async with self._database.read() as connection:
            keys: list[sa.ColumnElement[Any]] = [agents.c.number]
            if order_by == "updated_at":
                keys = [agents.c.updated_at, agents.c.number]
            elif order_by == "last_run_completion":
                keys = last_run_keys(connection, order_by, runs.c.agent_id, agents, ascending=page.ascending)
            rows = await rows_of_page(connection, agents, project_id, page, *conditions, keys=keys)
            return await agents_of(connection, rows)

    async def count(self, project_id: ProjectId, wanted: AgentFilter = EVERY_SHOWN) -> int:
        """Returns how many agents of the project match."""
        conditions = _conditions(wanted)
        async with self._database.read() as connection:
            return await count_rows(connection, agents, project_id, *conditions)

    async def details(self, some: Sequence[Agent]) -> Sequence[AgentDetails]:
        """Returns the agents with their tools, blocks, message ids and last runs: one query for each of the four,
        however many agents."""
        ids = [agent.id for agent in some]
        async with self._database.read() as connection:
            tools = await tools_of_agents(connection, [agent.id for agent in some if agent.tool_ids])
            attached = await blocks_of_agents(connection, [agent.id for agent in some if agent.block_ids])
            message_ids = await ids_in_context(connection, ids)
            last = await last_runs(connection, ids)
            groups = await managed_groups(connection, [agent.id for agent in some if ENABLED in agent.extra])
        return [
            AgentDetails(
                agent,
                tools.get(agent.id, []),
                attached.get(agent.id, []),
                message_ids.get(agent.id, []),
                last.get(agent.id),
                groups.get(agent.id),
            )
            for agent in some
        ]


def _conditions(wanted: AgentFilter) -> list[sa.ColumnElement[bool]]:
    conditions = _kept_conditions(wanted)
    if wanted.ids is not None:
        conditions.append(agents.c.id.in_(wanted.ids))
    if wanted.between is not None:
        conditions.append(agents.c.id.between(*wanted.between))
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


def _kept_conditions(wanted: AgentFilter) -> list[sa.ColumnElement[bool]]:
    """The conditions on fields that the server only stores and returns."""

    def kept(name: str) -> Any:
        return field_of_document(agents, ("extra", name))

    conditions: list[sa.ColumnElement[bool]] = []
    if not wanted.show_hidden:
        conditions.append(kept("hidden").as_boolean().is_not(True))
    for name, value in (("template_id", wanted.template_id), ("base_template_id", wanted.base_template_id)):
        if value is not None:
            conditions.append(kept(name).as_string() == value)
    if wanted.identity_id is not None:
        conditions.append(contains(kept("identity_ids").as_string(), f'"{wanted.identity_id}"'))
    return conditions
