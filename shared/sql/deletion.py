"""Deleting histories with everything that hangs on their runs, inside somebody's transaction."""

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.sql.tables import (
    approvals,
    callbacks,
    event_blocks,
    injected_messages,
    messages,
    runs,
    steps,
    submission_keys,
    tool_intents,
)

_OF_A_RUN = (approvals, callbacks, event_blocks, injected_messages, steps, submission_keys, tool_intents)


async def delete_histories(
    connection: AsyncConnection, owner: Literal["agent_id", "conversation_id"], owner_id: str
) -> None:
    """Deletes the runs and messages of an agent (in all its histories) or of one conversation.

    A worker that is still in one of the runs learns it from its next fenced write, which finds nothing.
    """
    of_owner = sa.select(runs.c.id).where(runs.c[owner] == owner_id)
    for table in _OF_A_RUN:
        await connection.execute(sa.delete(table).where(table.c.run_id.in_(of_owner)))
    await connection.execute(sa.delete(messages).where(messages.c[owner] == owner_id))
    await connection.execute(sa.delete(runs).where(runs.c[owner] == owner_id))
