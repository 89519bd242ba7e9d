"""Reading histories: what the model is told, what a client lists. Runs write them."""

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import MessageId, ProjectId, RunId, StepId, ThreadId
from shared.domain.messages import Message
from shared.sql.columns import message_of
from shared.sql.engine import Database
from shared.sql.tables import agents, messages
from shared.sql.thread_line import lock_thread, run_in_progress

Order = Literal["asc", "desc"]


class MessageStore:
    """Reads messages, and empties contexts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def context(self, thread_id: ThreadId, *, up_to_turn: int | None = None) -> list[Message]:
        """What a thread's context holds, in order; without the turns that come after `up_to_turn`."""
        query = sa.select(messages).where(messages.c.thread_id == thread_id, messages.c.in_context)
        if up_to_turn is not None:
            query = query.where(messages.c.turn <= up_to_turn)
        async with self._database.read() as connection:
            found = await connection.execute(query.order_by(messages.c.turn, messages.c.position))
            return [message_of(row) for row in found.mappings()]

    async def list_of_run(self, run_id: RunId) -> list[Message]:
        """A run's messages in order, those that were rolled back left out."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(messages)
                .where(messages.c.run_id == run_id, _listed())
                .order_by(messages.c.turn, messages.c.position)
            )
            return [message_of(row) for row in found.mappings()]

    async def list_of_step(self, step_id: StepId) -> list[Message]:
        """A step's messages in order, those that were rolled back left out."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(messages)
                .where(messages.c.step_id == step_id, _listed())
                .order_by(messages.c.turn, messages.c.position)
            )
            return [message_of(row) for row in found.mappings()]

    async def page(
        self,
        thread_id: ThreadId,
        *,
        limit: int,
        before: MessageId | None = None,
        after: MessageId | None = None,
        order: Order = "desc",
    ) -> list[Message]:
        """A page of a thread, listed oldest first. `desc` takes the newest that fit, `asc` the oldest.

        `after` means newer than, `before` older than, whatever the order. Raises `NotFound` for an unknown cursor.
        """
        place = sa.tuple_(messages.c.turn, messages.c.position)
        query = sa.select(messages).where(messages.c.thread_id == thread_id, _listed())
        async with self._database.read() as connection:
            if after is not None:
                query = query.where(place > sa.tuple_(*await _place_of(connection, thread_id, after)))
            if before is not None:
                query = query.where(place < sa.tuple_(*await _place_of(connection, thread_id, before)))
            if order == "asc":
                query = query.order_by(messages.c.turn, messages.c.position)
            else:
                query = query.order_by(messages.c.turn.desc(), messages.c.position.desc())
            found = await connection.execute(query.limit(limit))
            page = [message_of(row) for row in found.mappings()]
        return page if order == "asc" else page[::-1]

    async def find(self, project_id: ProjectId, message_id: MessageId) -> Message:
        """One message of this project, by either of its ids. Raises `NotFound`."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(messages)
                .join(agents, agents.c.id == messages.c.agent_id)
                .where(_is(message_id), agents.c.project_id == project_id)
            )
            row = found.mappings().first()
        if row is None:
            raise NotFound(f"Message {message_id} not found")
        return message_of(row)

    async def reset(self, thread_id: ThreadId) -> None:
        """Empties a thread's context, but for its system message.

        Raises `Conflict` while a run of the thread goes on: what it has asked for would be left without its question.
        """
        async with self._database.write() as connection:
            await lock_thread(connection, thread_id)
            active = await run_in_progress(connection, thread_id)
            if active is not None:
                raise Conflict(f"run {active} has not ended: wait for it or cancel it before the messages are reset")
            await connection.execute(
                sa.update(messages)
                .where(messages.c.thread_id == thread_id, messages.c.in_context, messages.c.body.not_like(_SYSTEM))
                .values(in_context=False, left_because="reset")
            )


_SYSTEM = '{"type":"system"%'


def _listed() -> sa.ColumnElement[bool]:
    return sa.or_(messages.c.in_context, messages.c.left_because != "rolled_back")


def _is(message_id: MessageId) -> sa.ColumnElement[bool]:
    return sa.or_(messages.c.id == message_id, messages.c.sibling_id == message_id)


async def _place_of(connection: AsyncConnection, thread_id: ThreadId, message_id: MessageId) -> tuple[int, int]:
    found = await connection.execute(
        sa.select(messages.c.turn, messages.c.position).where(messages.c.thread_id == thread_id, _is(message_id))
    )
    place = found.one_or_none()
    if place is None:
        raise NotFound(f"Message {message_id} not found: a cursor must be the id of a message of this list")
    return place.turn, place.position
