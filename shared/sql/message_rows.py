"""Writing messages into a history, inside somebody's transaction."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.compaction import Compaction
from shared.domain.ids import AgentId, ConversationId, RunId, ThreadId
from shared.domain.messages import AssistantMessage, Message, NewMessage
from shared.domain.runs import Run
from shared.sql.columns import message_of, to_json
from shared.sql.tables import messages

FIRST_TURN = 0
"""The turn before the first run's."""


async def insert_messages(connection: AsyncConnection, run: Run, new: Sequence[NewMessage]) -> None:
    """Appends messages to the run's turn. Those that the turn already has are left as they are."""
    if not new or run.turn is None:
        return
    place = await connection.execute(
        sa.select(messages.c.id, messages.c.position).where(
            messages.c.thread_id == run.thread_id, messages.c.turn == run.turn
        )
    )
    known = {row.id: row.position for row in place}
    start = max(known.values(), default=0)
    fresh = [message for message in new if message.id not in known]
    await insert_into_thread(
        connection,
        fresh,
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        turn=run.turn,
        after=start,
    )


async def insert_into_thread(
    connection: AsyncConnection,
    new: Sequence[NewMessage],
    *,
    agent_id: AgentId,
    thread_id: ThreadId,
    conversation_id: ConversationId | None,
    run_id: RunId | None,
    turn: int,
    after: int,
) -> None:
    """Appends messages to a turn of a thread; `after` is the last position that is taken there."""
    if not new:
        return
    rows = [
        {
            "id": message.id,
            "agent_id": agent_id,
            "thread_id": thread_id,
            "conversation_id": conversation_id,
            "run_id": run_id,
            "step_id": message.step_id,
            "turn": turn,
            "position": position,
            "sibling_id": message.body.sibling_id if isinstance(message.body, AssistantMessage) else None,
            "in_context": True,
            "body": to_json(message.body),
            "created_at": message.created_at,
        }
        for position, message in enumerate(new, start=after + 1)
    ]
    await connection.execute(sa.insert(messages), rows)


async def replace_by_summary(connection: AsyncConnection, run: Run, compaction: Compaction) -> None:
    """Takes messages out of the context and puts a summary in front of those that stay."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.thread_id == run.thread_id, messages.c.id.in_(compaction.gone))
        .values(in_context=False, left_because="compacted")
    )
    # Turn 0 comes before every run's. It holds the system message and the summaries, nothing else.
    last = await connection.execute(
        sa.select(sa.func.coalesce(sa.func.max(messages.c.position), 0)).where(
            messages.c.thread_id == run.thread_id, messages.c.turn == FIRST_TURN
        )
    )
    await insert_into_thread(
        connection,
        [compaction.summary],
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        turn=FIRST_TURN,
        after=last.scalar_one(),
    )


async def messages_of_turn(connection: AsyncConnection, thread_id: ThreadId, turn: int) -> list[Message]:
    """The messages of one turn that are in the context, in order."""
    found = await connection.execute(
        sa.select(messages)
        .where(messages.c.thread_id == thread_id, messages.c.turn == turn, messages.c.in_context)
        .order_by(messages.c.position)
    )
    return [message_of(row) for row in found.mappings()]


async def take_out_of_context(connection: AsyncConnection, run_id: RunId, because: str) -> None:
    """The run's messages leave the context and every list; the rows stay."""
    await connection.execute(
        sa.update(messages).where(messages.c.run_id == run_id).values(in_context=False, left_because=because)
    )
