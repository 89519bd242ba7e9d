"""Decides when sleep-time agents start, and which turns they get.

A process counts the new turns of a group, and marks them once enough have ended to start its agents. It starts the
agents' runs by keys, and then deletes the marked rows. If it crashes in between, the rows stay marked, and the next
process starts the same runs by the same keys.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.crash_points import CrashPoint
from shared.domain.errors import NotFound
from shared.domain.groups import DueTurns, EndedTurn, Group, count_turn
from shared.domain.ids import AgentId, GroupId, ProjectId, ThreadId
from shared.domain.messages import Message, NewMessage
from shared.sql.connection import Connection
from shared.sql.definitions.groups import groups_of, lock_group, managed_groups
from shared.sql.engine import Store
from shared.sql.history.messages import append_turn, is_listed, is_of, message_of
from shared.sql.history.thread_queue import thread_lock
from shared.sql.runs.settlement import enqueue_turn
from shared.sql.tables import agent_groups, agents, group_turns, made_of, messages

AT_ONCE = 500
"""The limit for the turns of one group in a counting transaction, and for the turns whose messages one query reads."""


_NOW_DUE = group_turns.alias("now_due")


class GroupTurnStore(Store):
    """Counts turns, and finds the due ones."""

    async def to_look_at(self, now: datetime, limit: int) -> Sequence[GroupId]:
        """Returns groups with turns that are uncounted or due. Those that have waited longest come first."""
        query = (
            sa.select(group_turns.c.group_id)
            .where(group_turns.c.look_at <= now)
            .group_by(group_turns.c.group_id)
            .order_by(sa.func.min(group_turns.c.look_at))
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [GroupId(group_id) for group_id in (await connection.execute(query)).scalars()]

    async def managed_by(self, project_id: ProjectId, agent_id: AgentId) -> Group | None:
        """Returns the group that one of the project's agents manages."""
        async with self._database.read() as connection:
            group = (await managed_groups(connection, [agent_id])).get(agent_id)
        return group if group is not None and group.project_id == project_id else None

    async def capture(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        new: Sequence[NewMessage],
        *,
        submitted_by: str | None,
        now: datetime,
    ) -> None:
        """Stores a turn without a run, after all other turns of the agent's default history, and puts it into the
        outbox of the agent's group. An active run does not see the turn; the next one does. Raises `NotFound`."""
        thread_id = ThreadId(agent_id)
        async with self._database.write(None, thread_lock(thread_id)) as connection:
            known = await connection.execute(
                sa.select(agents.c.id).where(agents.c.id == agent_id, agents.c.project_id == project_id)
            )
            if known.one_or_none() is None:
                raise NotFound(f"Agent {agent_id} not found")
            if not new:
                return
            turn = await append_turn(connection, new, agent_id, thread_id, None)
            ended = EndedTurn(agent_id, project_id, thread_id, turn, new[-1].id, submitted_by, counts=True)
            enqueue_turn(connection, ended, now)

    async def due(self, group_id: GroupId, now: datetime) -> DueTurns | None:
        """Counts the group's new turns up to the first that starts its agents, and returns the turns for these. They
        stay due until `delivered`, and no further turn is counted until then. None if nothing is due."""
        async with self._database.write(CrashPoint.COUNT_TURNS) as connection:
            found = await connection.execute(
                sa.select(agent_groups).where(agent_groups.c.id == group_id).with_for_update()
            )
            groups = await groups_of(connection, found.mappings().all())
            if not groups:
                return None
            [group] = groups
            due = await _marked(connection, group)
            return due or await _marked(connection, await _count(connection, group, now))

    async def delivered(self, due: DueTurns, last: Message | None) -> None:
        """Deletes the turns once the group's agents have their runs. `last`: the last message that the agents got."""
        async with self._database.write(CrashPoint.TURNS_DELIVERED) as connection:
            await lock_group(connection, due.group.id)
            is_still_due = (_NOW_DUE.c.group_id == due.group.id, _NOW_DUE.c.cause_id == due.cause_id)
            gone = await connection.execute(
                sa.delete(group_turns).where(
                    *_is_marked(due.group.id), sa.exists().where(*is_still_due, _NOW_DUE.c.state == "due")
                )
            )
            if gone.rowcount and last is not None:
                is_it = agent_groups.c.id == due.group.id
                await connection.execute(sa.update(agent_groups).where(is_it).values(last_message_id=last.id))

    async def postpone(self, group_id: GroupId, until: datetime) -> None:
        """Hides the group's present turns from `to_look_at` until that time."""
        waits = (group_turns.c.group_id == group_id, group_turns.c.look_at.is_not(None))
        async with self._database.write() as connection:
            await connection.execute(sa.update(group_turns).where(*waits).values(look_at=until))

    async def said_in(self, due: DueTurns) -> Sequence[Message]:
        """Returns the messages of the turns, in the order in which the turns ended, without those that were rolled
        back."""
        places = {place: number for number, place in enumerate(due.places)}
        found: list[RowMapping] = []
        async with self._database.read() as connection:
            for thread_id in dict.fromkeys(thread_id for thread_id, _ in due.places):
                turns = [turn for of_thread, turn in due.places if of_thread == thread_id]
                for start in range(0, len(turns), AT_ONCE):
                    found += await _messages_of(connection, due.group, thread_id, turns[start : start + AT_ONCE])
        said = await made_of(found, message_of, "body")
        return sorted(said, key=lambda message: (places[message.thread_id, message.turn], message.position))


async def _messages_of(
    connection: Connection, group: Group, thread_id: ThreadId, turns: Sequence[int]
) -> Sequence[RowMapping]:
    is_there = (messages.c.thread_id == thread_id, messages.c.turn.in_(turns), is_listed())
    return (await connection.execute(sa.select(messages).where(*is_there, is_of(group.project_id)))).mappings().all()


def _is_marked(group_id: GroupId) -> tuple[sa.ColumnElement[bool], ...]:
    return group_turns.c.group_id == group_id, group_turns.c.state.in_(("told", "due"))


async def _marked(connection: Connection, group: Group) -> DueTurns | None:
    found = await connection.execute(sa.select(group_turns).where(*_is_marked(group.id)).order_by(group_turns.c.number))
    rows = found.all()
    last = next((row for row in rows if row.state == "due"), None)
    if last is None:
        return None
    return DueTurns(group, last.cause_id, last.submitted_by, [(row.thread_id, row.turn) for row in rows])


async def _count(connection: Connection, group: Group, now: datetime) -> Group:
    """Counts new turns up to the first that makes the counted ones due, and marks these. The caller has locked the
    group."""
    is_of_group = group_turns.c.group_id == group.id
    found = await connection.execute(
        sa.select(group_turns.c.number, group_turns.c.counts)
        .where(is_of_group, group_turns.c.state == "new")
        .order_by(group_turns.c.number)
        .limit(AT_ONCE)
    )
    counter, seen, is_due = group.turns_counter, list[int](), False
    for number, counts in found:
        seen.append(number)
        if counts:
            counter, is_due = count_turn(group.frequency, counter)
        if is_due:
            break
    # Turns that were stored meanwhile stay new, whatever their numbers.
    await _set(connection, group_turns.c.number.in_(seen), state="counted", look_at=None)
    if counter != group.turns_counter:
        await connection.execute(
            sa.update(agent_groups).where(agent_groups.c.id == group.id).values(turns_counter=counter)
        )
    if is_due:
        await _set(connection, is_of_group & (group_turns.c.state == "counted"), state="told")
        await _set(connection, group_turns.c.number == seen[-1], state="due", look_at=now)
    return replace(group, turns_counter=counter)


async def _set(connection: Connection, which: sa.ColumnElement[bool], **values: Any) -> None:
    await connection.execute(sa.update(group_turns).where(which).values(values))
