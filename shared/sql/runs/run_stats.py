"""Statistics of a project's runs and callbacks for operators. They are cheap even with a million runs: active runs have
a separate index, an index by time finds the last hour, and a few runs of each minute serve as a sample for the waits.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from shared.domain.ids import ProjectId, RunId
from shared.domain.lifecycle import ACTIVE, TERMINAL, RunStatus
from shared.domain.operations import MINUTE, CallbackStats, Minute, RunStats, minutes_until, percentiles
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.run_tables import callbacks, has_one_of, runs, webhook_deliveries
from shared.sql.runs.callbacks import IS_OPEN
from shared.sql.tables import EPOCH

SAMPLE = 30
"""How many runs of a minute are sampled for their waits: the first ones."""

_US_PER_MINUTE = 60_000_000

Waits = Mapping[int, list[float]]
"""The waits of runs in milliseconds, by the minute of their submission."""


class RunStatStore(Store):
    """Counts a project's runs and callbacks."""

    async def of_runs(self, project_id: ProjectId, now: datetime) -> RunStats:
        """The project's active runs, and its last sixty minutes."""
        begins = minutes_until(now)
        async with self._database.read() as connection:
            is_ours, was_submitted = runs.c.project_id == project_id, runs.c.created_at >= begins[0]
            has_ended = (runs.c.completed_at >= begins[0], runs.c.status.in_(list(TERMINAL)))
            active = await _counted(connection, [runs.c.status], is_ours, has_one_of(runs, ACTIVE))
            submitted = await _counted(connection, [_minute(runs.c.created_at)], is_ours, was_submitted)
            ended = await _counted(connection, [_minute(runs.c.completed_at), runs.c.status], is_ours, *has_ended)
            queue_waits, first_tokens = await _waits(connection, project_id, begins)
        return RunStats(
            created=active[RunStatus.CREATED],
            running=active[RunStatus.RUNNING],
            awaiting_approval=active[RunStatus.AWAITING_APPROVAL],
            queue_wait_ms=percentiles([wait for waits in queue_waits.values() for wait in waits]),
            first_token_ms=percentiles([wait for waits in first_tokens.values() for wait in waits]),
            minutes=[
                Minute(
                    at=begin,
                    submitted=submitted[minute],
                    completed=ended[minute, RunStatus.COMPLETED],
                    failed=ended[minute, RunStatus.FAILED],
                    cancelled=ended[minute, RunStatus.CANCELLED],
                    queue_wait_p50_ms=percentiles(queue_waits.get(minute, [])).p50,
                    first_token_p50_ms=percentiles(first_tokens.get(minute, [])).p50,
                )
                for begin in begins
                for minute in [_minute_of(begin)]
            ],
        )

    async def of_callbacks(self, project_id: ProjectId) -> CallbackStats:
        """The project's callbacks that wait or failed."""
        # A claimed callback already counts the attempt in progress.
        under_way = sa.case((callbacks.c.claimed_until.is_not(None), 1), else_=0)
        has_failed = sa.or_(callbacks.c.given_up_at.is_not(None), callbacks.c.attempts > under_way)
        query = sa.select(
            sa.func.count(callbacks.c.next_attempt_at).label("waiting"), sa.func.count(sa.case((has_failed, 1)))
        ).where(callbacks.c.project_id == project_id, IS_OPEN)
        async with self._database.read() as connection:
            waiting, failing = (await connection.execute(query)).one()
        return CallbackStats(waiting=waiting, failing=failing)

    async def of_deployment(self) -> "DeploymentCounts":
        """Counts the active work of all projects together. The caller's database must not be scoped to one project."""
        outboxes = (callbacks, webhook_deliveries)
        each = [
            sa.select(sa.func.count()).where(box.c.next_attempt_at.is_not(None)).scalar_subquery() for box in outboxes
        ]
        waiting = sa.select(each[0] + each[1])
        async with self._database.read() as connection:
            active = await _counted(connection, [runs.c.status], has_one_of(runs, ACTIVE))
            return DeploymentCounts(active, (await connection.execute(waiting)).scalar_one())

    async def quietest(self, at_most: int) -> "list[QuietRun]":
        """Returns the running runs of all projects by their last write to SQL, the longest ago first. Runs that wait
        for room in a budget are left out."""
        query = (
            sa.select(runs.c.id, runs.c.updated_at)
            .where(runs.c.status == RunStatus.RUNNING.value, runs.c.waits_until.is_(None))
            .order_by(runs.c.updated_at)
            .limit(at_most)
        )
        async with self._database.read() as connection:
            return [QuietRun(RunId(row.id), row.updated_at) for row in await connection.execute(query)]


class QuietRun(NamedTuple):
    """A running run, and the time of its last write to SQL."""

    id: RunId
    heard_at: datetime


class DeploymentCounts(NamedTuple):
    """The active work of a deployment."""

    runs: Mapping[str, int]
    """The number of active runs by status, without statuses that no run has."""
    callbacks_waiting: int


async def _counted(connection: Connection, by: Sequence[sa.ColumnElement[Any]], *conditions: Any) -> Counter[Any]:
    """Counts runs by the value of an expression, or by the values of several."""
    counted = await connection.execute(sa.select(*by, sa.func.count()).where(*conditions).group_by(*by))
    return Counter({key[0] if len(by) == 1 else tuple(key): count for *key, count in counted})


async def _waits(connection: Connection, project_id: ProjectId, begins: Sequence[datetime]) -> tuple[Waits, Waits]:
    """How long runs have waited for a worker, and for the model's first token, by the minute of their submission."""
    queue_waits, first_tokens = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    samples = [_sample(project_id, begin) for begin in begins]
    for row in await connection.execute(sa.union_all(*samples)):
        if row.started is not None:
            queue_waits[row.minute].append(max(0, row.started) / 1000)
        if row.shown is not None:
            first_tokens[row.minute].append(max(0, row.shown) / 1000)
    return queue_waits, first_tokens


def _sample(project_id: ProjectId, begin: datetime) -> sa.Select[Any]:
    """The first runs of a minute, each with its waits in microseconds from its submission."""
    created = _microseconds(runs.c.created_at)
    first = (
        sa.select(
            sa.literal(_minute_of(begin), sa.BigInteger).label("minute"),
            (_microseconds(runs.c.started_at) - created).label("started"),
            (_microseconds(runs.c.first_token_at) - created).label("shown"),
        )
        .where(runs.c.project_id == project_id, runs.c.created_at >= begin, runs.c.created_at < begin + MINUTE)
        .order_by(runs.c.project_id, runs.c.created_at)
        .limit(SAMPLE)
    )
    # SQLite accepts a limit inside a union only in a subquery.
    return sa.select(first.subquery())


def _microseconds(moment: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.type_coerce(moment, sa.BigInteger)


def _minute(moment: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Minutes since 1970; both databases use integer division. The expression's text is the same each time, so that
    Postgres recognises the selected column as the grouped one."""
    return _microseconds(moment).op("/")(sa.literal_column(str(_US_PER_MINUTE), sa.BigInteger))


def _minute_of(begin: datetime) -> int:
    return (begin - EPOCH) // MINUTE
