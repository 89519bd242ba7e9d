"""Steps, as clients read them: by id, by run or by agent."""

import sqlalchemy as sa

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ProjectId, RunId, StepId
from shared.domain.runs import Step
from shared.sql.engine import Database
from shared.sql.run_tables import steps
from shared.sql.tables import from_json


class StepStore:
    """Reads steps."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, project_id: ProjectId, step_id: StepId) -> Step:
        """One step of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            found = await connection.execute(
                sa.select(steps.c.document).where(steps.c.id == step_id, steps.c.project_id == project_id)
            )
            document = found.scalar_one_or_none()
        if document is None:
            raise NotFound(f"Step {step_id} not found")
        return from_json(document, Step)

    async def list_steps(
        self,
        project_id: ProjectId,
        *,
        run_id: RunId | None = None,
        agent_id: AgentId | None = None,
        limit: int = 1000,
        ascending: bool = True,
    ) -> list[Step]:
        """Steps of a run or an agent, oldest or newest first."""
        query = sa.select(steps.c.document).where(steps.c.project_id == project_id)
        if run_id is not None:
            query = query.where(steps.c.run_id == run_id)
        if agent_id is not None:
            query = query.where(steps.c.agent_id == agent_id)
        order = [steps.c.created_at, steps.c.number]
        async with self._database.read() as connection:
            found = await connection.execute(
                query.order_by(*(order if ascending else [column.desc() for column in order])).limit(limit)
            )
            return [from_json(document, Step) for document in found.scalars()]
