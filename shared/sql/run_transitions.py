"""The one place that writes a run's status. Compiles the lifecycle table into a guarded UPDATE."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from shared.domain.errors import IllegalTransition, NotFound, StaleFence
from shared.domain.ids import Fence, RunId
from shared.domain.lifecycle import RunStatus, RunTrigger, sources_of
from shared.domain.runs import Run
from shared.sql.columns import run_of
from shared.sql.tables import runs


async def apply(
    connection: AsyncConnection,
    run_id: RunId,
    trigger: RunTrigger,
    *,
    held: Fence,
    now: datetime,
    values: dict[str, Any] | None = None,
    guards: tuple[sa.ColumnElement[bool], ...] = (),
) -> Run:
    """Moves a run whose fence is `held` and gives it back as it is now.

    `values` are further columns to set, `guards` further conditions.

    Raises `StaleFence` when the run was claimed since, `IllegalTransition` when its status has no such move (or a
    guard did not hold), `NotFound` when it is gone. Nothing is changed then.
    """
    targets = sources_of(trigger)
    target = sa.case({source.value: target.value for source, target in targets.items()}, value=runs.c.status)
    moved = await connection.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.status.in_([s.value for s in targets]), runs.c.fence == held, *guards)
        .values({"status": target, "updated_at": now, **(values or {})})
        .returning(*runs.c)
    )
    row = moved.mappings().one_or_none()
    if row is None:
        raise await _why_not(connection, run_id, trigger, held)
    return run_of(row)


async def hold(connection: AsyncConnection, run_id: RunId, trigger: RunTrigger, *, held: Fence) -> None:
    """Locks a run's row until the transaction ends, for one who writes elsewhere before `apply`. Raises as it does."""
    query = sa.select(runs.c.status, runs.c.fence).where(runs.c.id == run_id)
    row = (await connection.execute(query.with_for_update())).one_or_none()
    if row is None or row.fence != held or row.status not in sources_of(trigger):
        raise await _why_not(connection, run_id, trigger, held)


async def _why_not(connection: AsyncConnection, run_id: RunId, trigger: RunTrigger, fence: Fence) -> Exception:
    found = await connection.execute(sa.select(runs.c.status, runs.c.fence).where(runs.c.id == run_id))
    row = found.one_or_none()
    if row is None:
        return NotFound(f"Run {run_id} not found")
    if row.fence != fence:
        return StaleFence(run_id, fence, row.fence)
    return IllegalTransition(row.status, trigger)


async def keep(
    connection: AsyncConnection, run_id: RunId, *, held: Fence, now: datetime, values: dict[str, Any]
) -> Run:
    """Writes columns of a running run that its worker still owns.

    Raises `StaleFence`, `IllegalTransition` when the run has ended or is parked, `NotFound` when it is gone.
    """
    kept = await connection.execute(
        sa.update(runs)
        .where(runs.c.id == run_id, runs.c.fence == held, runs.c.status == RunStatus.RUNNING)
        .values({"updated_at": now, **values})
        .returning(*runs.c)
    )
    row = kept.mappings().one_or_none()
    if row is None:
        raise await _why_not(connection, run_id, RunTrigger.COMPLETE, held)
    return run_of(row)
