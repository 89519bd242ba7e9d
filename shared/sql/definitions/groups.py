"""Rows of sleep-time groups, inside a caller's transaction that has locked the project's definitions, and the lists of
groups."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.agents import Block
from shared.domain.errors import Conflict, NotFound
from shared.domain.groups import Group, first_counter, refuse_group
from shared.domain.ids import AgentId, GroupId, ProjectId
from shared.sql.connection import Connection
from shared.sql.paging import field_of_document, remember_place
from shared.sql.tables import agent_blocks, agent_group_members, agent_groups, agents, blocks, document_of, group_turns

_COLUMNS = (
    "id", "project_id", "manager_agent_id", "description", "frequency", "turns_counter", "last_message_id", "is_on",
    "hidden", "created_at", "updated_at",
)  # fmt: skip


async def groups_of(connection: Connection, rows: Sequence[RowMapping]) -> list[Group]:
    """The groups of rows of `agent_groups`, with their agents."""
    members: dict[str, list[AgentId]] = {row["id"]: [] for row in rows}
    if not rows:
        return []
    found = await connection.execute(
        sa.select(agent_group_members.c.group_id, agent_group_members.c.agent_id)
        .where(agent_group_members.c.group_id.in_(list(members)))
        .order_by(agent_group_members.c.number)
    )
    for group_id, agent_id in found:
        members[group_id].append(agent_id)
    return [Group(agent_ids=members[row["id"]], **{name: row[name] for name in _COLUMNS}) for row in rows]


async def load_group(connection: Connection, project_id: ProjectId, group_id: GroupId, *, lock: bool = False) -> Group:
    """One group of this project. Raises `NotFound`."""
    is_it = (agent_groups.c.id == group_id, agent_groups.c.project_id == project_id)
    query = sa.select(agent_groups).where(*is_it)
    found = await connection.execute(query.with_for_update() if lock else query)
    groups = await groups_of(connection, found.mappings().all())
    if not groups:
        raise NotFound(f"Group with ID {group_id} not found")
    return groups[0]


async def lock_group(connection: Connection, group_id: GroupId) -> None:
    """Locks a group's row. Every transaction that writes the group and rows of `group_turns` locks the group first."""
    row = sa.select(agent_groups.c.number).where(agent_groups.c.id == group_id)
    await connection.execute(row.with_for_update())


async def managed_groups(connection: Connection, agent_ids: Collection[AgentId]) -> dict[AgentId, Group]:
    """Returns the group that each agent manages, by the agent."""
    if not agent_ids:
        return {}
    found = await connection.execute(sa.select(agent_groups).where(agent_groups.c.manager_agent_id.in_(agent_ids)))
    groups = await groups_of(connection, found.mappings().all())
    return {group.manager_agent_id: group for group in groups}


async def groups_of_member(connection: Connection, agent_id: AgentId) -> list[Group]:
    """The groups that have this agent as one of their sleep-time agents, the oldest first."""
    found = await connection.execute(
        sa.select(agent_groups).where(agent_groups.c.id.in_(_ids_of_member(agent_id))).order_by(agent_groups.c.number)
    )
    return await groups_of(connection, found.mappings().all())


def _ids_of_member(agent_id: AgentId) -> sa.Select[tuple[str]]:
    return sa.select(agent_group_members.c.group_id).where(agent_group_members.c.agent_id == agent_id)


def has_member(agent_id: AgentId) -> sa.ColumnElement[bool]:
    """Whether a group has the agent, as its manager or as a sleep-time agent."""
    return (agent_groups.c.manager_agent_id == agent_id) | agent_groups.c.id.in_(_ids_of_member(agent_id))


async def insert_group(connection: Connection, group: Group) -> Group:
    """Stores a new group. Raises `NotFound`, `Conflict` and `InvalidRequest` as `_refuse_members`."""
    await _refuse_members(connection, group)
    group = replace(group, turns_counter=first_counter(group.frequency))
    await connection.execute(sa.insert(agent_groups).values(_values(group)))
    await _insert_members(connection, group)
    return group


async def write_group(connection: Connection, before: Group, after: Group, now: datetime) -> Group:
    """Stores a changed group, whose row the caller has locked. The count restarts if the group had no frequency
    before."""
    await _refuse_members(connection, after)
    counter = before.turns_counter if before.frequency else first_counter(after.frequency)
    after = replace(after, turns_counter=counter, updated_at=now)
    if after.agent_ids != before.agent_ids:
        await connection.execute(sa.delete(agent_group_members).where(agent_group_members.c.group_id == after.id))
        await _insert_members(connection, after)
    await connection.execute(sa.update(agent_groups).where(agent_groups.c.id == after.id).values(_values(after)))
    return after


async def turn_group(connection: Connection, group: Group, *, is_on: bool, now: datetime) -> None:
    """Turns a group on or off. Turning it off deletes its waiting turns, because its agents would get them out of order
    later."""
    values = {"is_on": is_on, "updated_at": now}
    await connection.execute(sa.update(agent_groups).where(agent_groups.c.id == group.id).values(values))
    if not is_on:
        await connection.execute(sa.delete(group_turns).where(group_turns.c.group_id == group.id))


async def delete_group(connection: Connection, group: Group) -> None:
    """Deletes a group and its waiting turns. Its agents stay."""
    await lock_group(connection, group.id)
    for table in (group_turns, agent_group_members):
        await connection.execute(sa.delete(table).where(table.c.group_id == group.id))
    await remember_place(connection, agent_groups, group.id)
    await connection.execute(sa.delete(agent_groups).where(agent_groups.c.id == group.id))


async def remove_member(connection: Connection, group: Group, agent_id: AgentId) -> None:
    """Removes a sleep-time agent from a group."""
    is_it = (agent_group_members.c.group_id == group.id, agent_group_members.c.agent_id == agent_id)
    await connection.execute(sa.delete(agent_group_members).where(*is_it))


async def members_of_no_other(connection: Connection, group: Group, agent_type: str) -> list[AgentId]:
    """Returns the group's agents of this type that are in no other group."""
    of_others = sa.select(agent_group_members.c.agent_id).where(agent_group_members.c.group_id != group.id)
    found = await connection.execute(
        sa.select(agents.c.id).where(
            agents.c.id.in_(group.agent_ids),
            agents.c.id.not_in(of_others),
            field_of_document(agents, "agent_type").as_string() == agent_type,
        )
    )
    return list(found.scalars())


async def share_blocks(connection: Connection, agent_id: AgentId, new: Sequence[Block]) -> list[AgentId]:
    """Attaches new blocks of an agent to the sleep-time agents of its group, except to those that have the block or
    another one of its label. Returns the agents that got blocks."""
    group = (await managed_groups(connection, [agent_id])).get(agent_id) if new else None
    if group is None or not group.agent_ids:
        return []
    found = await connection.execute(
        sa.select(agent_blocks.c.agent_id, blocks.c.label)
        .join_from(agent_blocks, blocks, blocks.c.id == agent_blocks.c.block_id)
        .where(agent_blocks.c.agent_id.in_(group.agent_ids))
    )
    taken = {(row.agent_id, row.label) for row in found}
    rows = [
        {"agent_id": sleeper, "block_id": block.id}
        for sleeper in group.agent_ids
        for block in new
        if (sleeper, block.label) not in taken
    ]
    if rows:
        await connection.execute(sa.insert(agent_blocks), rows)
    return list(dict.fromkeys(AgentId(row["agent_id"]) for row in rows))


async def _refuse_members(connection: Connection, group: Group) -> None:
    """Raises `NotFound` for an agent that the project lacks, and `InvalidRequest` for a group that could not work.
    Raises `Conflict` for a manager with another group, and for a chain of groups: runs of sleep-time agents start no
    further runs."""
    refuse_group(group)
    wanted = {group.manager_agent_id, *group.agent_ids}
    found = await connection.execute(
        sa.select(agents.c.id).where(agents.c.id.in_(wanted), agents.c.project_id == group.project_id)
    )
    missing = wanted.difference(found.scalars())
    if missing:
        raise NotFound(f"Agent with ID {', '.join(sorted(missing))} not found")
    # Checks the project's own agents only: an error must not reveal another project's agents.
    other = (await managed_groups(connection, [group.manager_agent_id])).get(group.manager_agent_id)
    if other is not None and other.id != group.id:
        raise Conflict(
            f"agent {other.manager_agent_id} manages the group {other.id} already: change or delete that one"
        )
    above = sa.select(agent_group_members.c.group_id).where(
        agent_group_members.c.agent_id == group.manager_agent_id, agent_group_members.c.group_id != group.id
    )
    below = sa.select(agent_groups.c.id).where(
        agent_groups.c.manager_agent_id.in_(group.agent_ids), agent_groups.c.id != group.id
    )
    chained = (await connection.execute(sa.union_all(above, below).limit(1))).scalar_one_or_none()
    if chained is not None:
        raise Conflict(
            f"a sleep-time agent cannot manage a group, and one of {chained} would: the turns of a sleep-time agent "
            "start no other agents"
        )


async def _insert_members(connection: Connection, group: Group) -> None:
    rows = [
        {"project_id": group.project_id, "group_id": group.id, "agent_id": agent_id}
        for agent_id in dict.fromkeys(group.agent_ids)
    ]
    if rows:
        await connection.execute(sa.insert(agent_group_members), rows)


def _values(group: Group) -> dict[str, Any]:
    document_of({"description": group.description})
    return {name: getattr(group, name) for name in _COLUMNS}
