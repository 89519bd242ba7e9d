"""Summaries that take the place of messages, and how a run's part of a history is taken back. Inside a caller's
transaction."""

import sqlalchemy as sa

from shared.domain.compaction import Compaction
from shared.domain.ids import RunId
from shared.domain.runs import Run
from shared.sql.connection import Connection
from shared.sql.history.messages import FIRST_TURN, insert_into_thread
from shared.sql.tables import messages

IDS_AT_ONCE = 500
"""Ids in one statement: databases limit the parameters of a query."""


def compacted_by(run_id: RunId) -> str:
    """Why a message has left the context: a summary of this run has taken its place."""
    return f"compacted by {run_id}"


async def has_compacted_its_own(connection: Connection, run_id: RunId) -> bool:
    """Whether a summary of the run stands for steps of the run itself."""
    found = await connection.execute(
        sa.select(messages.c.id)
        .where(messages.c.run_id == run_id, messages.c.turn != FIRST_TURN)
        .where(messages.c.left_because == compacted_by(run_id))
        .limit(1)
    )
    return found.one_or_none() is not None


async def replace_by_summary(connection: Connection, run: Run, compaction: Compaction) -> None:
    """Takes messages out of the context and puts a summary before those that stay. A repetition changes nothing."""
    known = await connection.execute(sa.select(messages.c.id).where(messages.c.id == compaction.summary.id))
    if known.one_or_none() is not None:
        return
    for start in range(0, len(compaction.gone), IDS_AT_ONCE):
        some = compaction.gone[start : start + IDS_AT_ONCE]
        await connection.execute(
            sa.update(messages)
            .where(messages.c.thread_id == run.thread_id, messages.c.id.in_(some))
            .values(in_context=False, left_because=compacted_by(run.id))
        )
    # Turn 0 comes before every run's. It holds the system message, the messages that an agent was made with, and the
    # summaries.
    last = await connection.execute(
        sa.select(sa.func.coalesce(sa.func.max(messages.c.position), 0)).where(
            messages.c.thread_id == run.thread_id, messages.c.turn == FIRST_TURN
        )
    )
    insert_into_thread(
        connection,
        [compaction.summary],
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        turn=FIRST_TURN,
        after=last.scalar_one(),
    )


async def take_out_of_context(connection: Connection, run_id: RunId) -> None:
    """The messages of the run's turn leave the context and every list; the rows stay. Its summaries stay, too: they
    stand for other turns."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.run_id == run_id, messages.c.turn != FIRST_TURN)
        .values(in_context=False, left_because="rolled_back")
    )


async def roll_back(connection: Connection, run: Run) -> None:
    """The history is as it was before the run: its messages leave the context and every list, its summaries too, and
    what those stood for comes back."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.thread_id == run.thread_id, messages.c.left_because == compacted_by(run.id))
        .values(in_context=True, left_because=None)
    )
    await connection.execute(
        sa.update(messages).where(messages.c.run_id == run.id).values(in_context=False, left_because="rolled_back")
    )
