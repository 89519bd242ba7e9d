"""An agent's memory as a run sees it and edits it: its blocks, the edits of its memory tools, and the passages that its
tools store.

An edit is one transaction. It is worked out on the blocks as they are then, and what it came to is stored beside them,
in the row that says that the call was started. So it happens once: a call that is made again, because the answer to its
commit or its worker was lost, gets the result that is stored.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

import sqlalchemy as sa
from msgspec.structs import replace

from shared.crash_points import CrashPoint
from shared.domain.agents import Block
from shared.domain.archival import NewPassage
from shared.domain.errors import Conflict
from shared.domain.ids import AgentId, ArchiveId
from shared.domain.memory import EditedBlock, EditedMemory, FinishedEdit, RefusedEdit
from shared.domain.messages import ToolCall, ToolReturn
from shared.domain.runs import Run
from shared.sql.archival.passages import insert_for_agent
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import render_agents, render_agents_of
from shared.sql.definitions.links import block_values, blocks_of_agents, lock_definitions
from shared.sql.engine import Database
from shared.sql.runs.rows import lock_owned
from shared.sql.runs.tool_intents import finish_intent, finished_edit
from shared.sql.tables import agent_blocks, blocks

Edit = Callable[[Sequence[Block]], EditedMemory]


class MemoryStore:
    """Reads and edits the memory of running agents."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def edit(self, run: Run, call: ToolCall, edit: Edit, now: datetime) -> FinishedEdit:
        """Makes the edit of a call, or finds that it was made.

        `edit` must be quick and pure. Raises `RefusedEdit` when nothing was changed, `StaleFence` when the run
        has a new owner.
        """
        async with self._database.write(CrashPoint.EDIT_MEMORY) as connection:
            # In this order everywhere: who deletes an agent locks its runs after the project's definitions.
            await lock_definitions(connection, run.project_id)
            await lock_owned(connection, run.id, run.fence)
            done = await finished_edit(connection, run.id, call.id)
            if done is not None:
                return done
            edited = edit((await blocks_of_agents(connection, [run.agent_id]))[run.agent_id])
            try:
                await _store(connection, run.agent_id, edited, now)
            except Conflict as error:
                raise RefusedEdit(error.message) from error
            result = ToolReturn(tool_call_id=call.id, tool_name=call.name, status="success", text=edited.text)
            finished = FinishedEdit(result, [EditedBlock(before.id, before.version) for before in edited.changed])
            await finish_intent(connection, run.id, finished, now)
            return finished

    async def remember(
        self, run: Run, call: ToolCall, passage: NewPassage, *, new_archive_id: ArchiveId, now: datetime
    ) -> ToolReturn:
        """Stores the passage of a call in the agent's archive, or finds that it was stored; what the model is told.

        Its vector comes with the upkeep. Raises `StaleFence` when the run has a new owner.
        """
        async with self._database.write(CrashPoint.REMEMBER) as connection:
            await lock_definitions(connection, run.project_id)
            await lock_owned(connection, run.id, run.fence)
            done = await finished_edit(connection, run.id, call.id)
            if done is not None:
                return done.result
            await insert_for_agent(
                connection, run.project_id, run.agent_id, passage, new_archive_id=new_archive_id, now=now
            )
            result = ToolReturn(
                tool_call_id=call.id, tool_name=call.name, status="success", text=f"Stored as {passage.id}."
            )
            await finish_intent(connection, run.id, FinishedEdit(result), now)
            return result


async def _store(connection: Connection, agent_id: AgentId, edited: EditedMemory, now: datetime) -> None:
    """Stores what an edit came to, and the instructions of every agent that it changes. Raises `Conflict` (labels)."""
    if edited.detached:
        is_link = sa.and_(agent_blocks.c.agent_id == agent_id, agent_blocks.c.block_id.in_(edited.detached))
        await connection.execute(sa.delete(agent_blocks).where(is_link))
    for block in edited.changed:
        changed = replace(block, updated_at=now, version=block.version + 1)
        await connection.execute(sa.update(blocks).where(blocks.c.id == changed.id).values(block_values(changed)))
    for block in edited.made:
        await connection.execute(sa.insert(blocks).values(block_values(block)))
        await connection.execute(sa.insert(agent_blocks).values(agent_id=agent_id, block_id=block.id))
    # Behind all writes: between two of them, two blocks may have one label.
    for block in edited.changed:
        await render_agents_of(connection, block.id)
    if edited.made or edited.detached:
        await render_agents(connection, [agent_id])
