"""When an agent or a conversation was last at work. Its runs know; nothing is stored beside them.

Runs beside every conversation do not count, for a client asked for what they do, and not the agent.
"""

from collections.abc import Collection
from datetime import datetime
from functools import cache
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from shared.domain.ids import AgentId
from shared.sql.connection import Connection
from shared.sql.paging import is_owned_by, nulls_last
from shared.sql.run_tables import runs
from shared.sql.tables import agents

LastRunOrder = Literal["last_run_completion", "last_message_at"]


class LastRun(NamedTuple):
    """The newest run that has ended, or waits for a person."""

    submitted_at: datetime
    completed_at: datetime


async def last_runs(connection: Connection, agent_ids: Collection[AgentId]) -> dict[str, LastRun]:
    """The last run of each agent that has one."""
    query = _last_runs(is_sqlite=connection.dialect.name == "sqlite")
    found = await connection.execute(query, {"agent_ids": list(agent_ids)})
    return {row.id: LastRun(row.created_at, row.completed_at) for row in found}


@cache
def _last_runs(*, is_sqlite: bool) -> sa.Select[*tuple[Any, ...]]:
    newest = _newest(runs.c.number, runs.c.agent_id, agents.c.id, has_ended=True, is_sqlite=is_sqlite)
    return (
        sa.select(agents.c.id, runs.c.created_at, runs.c.completed_at)
        .join(runs, runs.c.number == newest)
        .where(agents.c.id.in_(sa.bindparam("agent_ids", expanding=True)))
    )


def last_run_keys(
    connection: Connection, order: LastRunOrder, owner: sa.Column[str], rows: sa.Table, *, ascending: bool
) -> list[sa.ColumnElement[Any]]:
    """The keys that order `rows` by their last run: a column of runs names them. Rows without a run come last."""
    by = runs.c.completed_at if order == "last_run_completion" else runs.c.created_at
    is_sqlite = connection.dialect.name == "sqlite"
    newest = _newest(by, owner, rows.c.id, has_ended=order == "last_run_completion", is_sqlite=is_sqlite)
    return [nulls_last(newest, ascending=ascending), rows.c.number]


def _newest(
    wanted: sa.Column[Any], owner: sa.Column[str], row_id: sa.Column[str], *, has_ended: bool, is_sqlite: bool
) -> sa.ScalarSelect[Any]:
    is_in_history = runs.c.thread_id != runs.c.id
    query = sa.select(wanted).where(is_owned_by(owner, row_id, is_sqlite=is_sqlite), is_in_history)
    if has_ended:
        query = query.where(runs.c.completed_at.is_not(None))
    newest_first = query.order_by(owner.desc(), runs.c.number.desc()).limit(1)
    return newest_first.correlate(row_id.table).scalar_subquery()
