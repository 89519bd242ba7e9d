"""Steps, as clients read them: by id, by run or by agent."""

import sqlalchemy as sa

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ProjectId, RunId, StepId
from shared.domain.runs import Step
from shared.sql.engine import Database
from shared.sql.paging import Page, rows_of_page
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

    async def list(
        self, project_id: ProjectId, page: Page, *, run_id: RunId | None = None, agent_id: AgentId | None = None
    ) -> list[Step]:
        """A page of the project's steps, or of those of a run or an agent."""
        conditions: list[sa.ColumnElement[bool]] = []
        if run_id is not None:
            conditions.append(steps.c.run_id == run_id)
        if agent_id is not None:
            conditions.append(steps.c.agent_id == agent_id)
        keys = [steps.c.number, steps.c.id] if run_id is not None else [steps.c.created_at, steps.c.number, steps.c.id]
        async with self._database.read() as connection:
            rows = await rows_of_page(
                connection, steps, project_id, page, *conditions, columns=[steps.c.document], keys=keys
            )
            return [from_json(row["document"], Step) for row in rows]
