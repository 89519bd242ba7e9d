"""Reads the present states of the runs of a project or of one agent, for dashboards that follow them."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from shared.domain.ids import RunId
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.turns import RunGlance, RunScope
from shared.sql.engine import Database
from shared.sql.run_tables import approvals, has_one_of, runs
from shared.sql.runs.rows import status_of

AT_ONCE = 1000


_OPEN_CALLS = (
    sa.select(sa.func.count())
    .select_from(approvals)
    .where(approvals.c.run_id == runs.c.id, approvals.c.decided_at.is_(None))
    .scalar_subquery()
)

_GLANCE = sa.select(
    runs.c.id,
    runs.c.number,
    runs.c.agent_id,
    runs.c.conversation_id,
    runs.c.status,
    runs.c.stop_reason,
    sa.case((runs.c.status == RunStatus.AWAITING_APPROVAL, _OPEN_CALLS), else_=0).label("waiting"),
)


class RunChangeStore:
    """Reads the states of many runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest_number(self, scope: RunScope) -> int:
        """Returns the number of the scope's newest run; 0 if it has none."""
        newest = sa.select(sa.func.max(runs.c.number)).where(*_of(scope))
        async with self._database.read() as connection:
            return (await connection.execute(newest)).scalar_one() or 0

    async def active(self, scope: RunScope) -> list[RunGlance]:
        """Returns the scope's runs that have not ended, newest first: `AT_ONCE` at most."""
        return await self._some(_GLANCE.where(*_of(scope), has_one_of(runs, ACTIVE)).order_by(runs.c.number.desc()))

    async def since(self, scope: RunScope, number: int) -> list[RunGlance]:
        """Returns the scope's first runs that were submitted after the one with this number."""
        return await self._some(_GLANCE.where(*_of(scope), runs.c.number > number).order_by(runs.c.number))

    async def among(self, scope: RunScope, run_ids: Collection[RunId]) -> list[RunGlance]:
        """Returns those of these runs that are in the scope."""
        wanted, found = list(run_ids), list[RunGlance]()
        for start in range(0, len(wanted), AT_ONCE):
            named = runs.c.id.in_(wanted[start : start + AT_ONCE])
            found += await self._some(_GLANCE.where(*_of(scope), named).order_by(runs.c.number))
        return found

    async def _some(self, query: sa.Select[Any, Any, Any, Any, Any, Any, Any]) -> list[RunGlance]:
        async with self._database.read() as connection:
            found = await connection.execute(query.limit(AT_ONCE))
            return [
                RunGlance(
                    row.id,
                    row.number,
                    row.agent_id,
                    row.conversation_id,
                    status_of(row.status),
                    row.stop_reason,
                    row.waiting,
                )
                for row in found
            ]


def _of(scope: RunScope) -> Sequence[sa.ColumnElement[bool]]:
    of_agent = () if scope.agent_id is None else (runs.c.agent_id == scope.agent_id,)
    return (runs.c.project_id == scope.project_id, *of_agent)
