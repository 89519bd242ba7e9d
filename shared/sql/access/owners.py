"""Which agent a thing belongs to, for keys that see single agents only."""

import sqlalchemy as sa

from shared.domain.ids import AgentId, ProjectId, is_id
from shared.sql.engine import Database
from shared.sql.run_tables import approvals, runs, steps
from shared.sql.tables import conversations, messages

_TABLES = {"run": runs, "step": steps, "approval": approvals, "conv": conversations}


class OwnerStore:
    """Looks up owners by the id of what they own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def agents_of(self, project_id: ProjectId, object_id: str) -> frozenset[AgentId]:
        """The agent to whose run, step, approval, conversation or message the id belongs. Empty: nothing of the project
        has this id."""
        if is_id(object_id, "message"):
            # The calls and the approval requests of one stored answer may have an id each. The agent is to be one that
            # the key names, and those are of its project.
            query = sa.select(messages.c.agent_id).where(
                sa.or_(messages.c.id == object_id, messages.c.sibling_id == object_id)
            )
        else:
            table = _TABLES.get(object_id.partition("-")[0])
            if table is None:
                return frozenset()
            query = sa.select(table.c.agent_id).where(table.c.id == object_id, table.c.project_id == project_id)
        async with self._database.read() as connection:
            return frozenset(AgentId(agent_id) for agent_id in await connection.scalars(query))
