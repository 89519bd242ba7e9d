"""The outbox of callbacks. The transaction that ends a run fills it (see `settlement`), and the API empties it."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import ProjectId, RunId
from shared.domain.operations import OpenCallback
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, rows_of_page
from shared.sql.run_tables import callbacks, runs

CLAIM_HOLDS = timedelta(seconds=60)
"""How long a process may take for an attempt before another process tries."""


def is_open(table: sa.Table) -> sa.ColumnElement[bool]:
    """The condition for rows of the outbox that wait or were given up. Its text must be that of the partial index."""
    return sa.or_(table.c.next_attempt_at.is_not(None), table.c.given_up_at.is_not(None))


IS_OPEN = is_open(callbacks)


def any_due(table: sa.Table) -> sa.Select[tuple[int]]:
    """Returns the query for a row of this outbox whose attempt is due at `now`. The API runs it every second, and
    seldom finds a row."""
    now = sa.bindparam("now", type_=table.c.claimed_until.type)
    is_free = table.c.claimed_until.is_(None) | (table.c.claimed_until < now)
    # The order makes Postgres use the index even before it has statistics.
    return sa.select(table.c.number).where(table.c.next_attempt_at <= now, is_free).order_by("next_attempt_at").limit(1)


async def claim_rows(
    connection: Connection,
    table: sa.Table,
    now: datetime,
    limit: int,
    columns: Sequence[sa.Column[Any]],
    but_not_of: Collection[ProjectId],
) -> Sequence[sa.Row[Any]]:
    """Claims rows of the outbox whose attempt is due, and returns these columns of them. Those that have waited longest
    come first."""
    is_others = [table.c.project_id.not_in(but_not_of)] if but_not_of else []
    free = table.c.claimed_until.is_(None) | (table.c.claimed_until < now)
    due = (
        sa.select(table.c.number)
        .where(table.c.next_attempt_at <= now, free, *is_others)
        .order_by(table.c.next_attempt_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    numbers = (await connection.execute(due)).scalars().all()
    if not numbers:
        return []
    claimed = await connection.execute(
        sa.update(table)
        .where(table.c.number.in_(numbers))
        .values(claimed_until=now + CLAIM_HOLDS, attempts=table.c.attempts + 1)
        .returning(*columns)
    )
    return claimed.all()


_ANY_DUE = any_due(callbacks)


class Callback(NamedTuple):
    """A callback that is due; `attempts` counts the attempts so far."""

    run_id: RunId
    url: str
    attempts: int
    project_id: ProjectId


class CallbackStore(Store):
    """Reads the outbox and records the outcomes."""

    async def claim_due(
        self, now: datetime, limit: int = 20, *, but_not_of: Collection[ProjectId] = ()
    ) -> list[Callback]:
        """Claims callbacks whose attempt is due. No other process can claim them for `CLAIM_HOLDS`."""
        async with self._database.read() as connection:
            if (await connection.execute(_ANY_DUE, {"now": now})).one_or_none() is None:
                return []
        columns = (callbacks.c.run_id, callbacks.c.url, callbacks.c.attempts, callbacks.c.project_id)
        async with self._database.write() as connection:
            return [Callback(*row) for row in await claim_rows(connection, callbacks, now, limit, columns, but_not_of)]

    async def postpone(self, due: Callback, until: datetime) -> None:
        """Releases a callback that was claimed and not attempted."""
        async with self._database.write() as connection:
            await connection.execute(
                sa.update(callbacks)
                .where(callbacks.c.run_id == due.run_id)
                .values(next_attempt_at=until, claimed_until=None, attempts=callbacks.c.attempts - 1)
            )

    async def record_attempt(
        self, due: Callback, *, now: datetime, status_code: int | None, error: str | None, next_at: datetime | None
    ) -> None:
        """Records the outcome of an attempt. If `next_at` is None, the callback was delivered, or given up if there is
        an error. The outcome does not count if another process has claimed the callback since.

        The run gets its `callback_sent_at` only when the receiver has accepted the callback.
        """
        given_up_at = now if next_at is None and error is not None else None
        is_newest = (callbacks.c.run_id == due.run_id, callbacks.c.attempts <= due.attempts)
        async with self._database.write() as connection:
            # The run comes first, as in its deletion: otherwise the two could deadlock.
            await connection.execute(
                sa.update(runs)
                .where(runs.c.id == due.run_id, sa.exists().where(*is_newest))
                .values(
                    callback_sent_at=now if error is None else None,
                    callback_status_code=status_code,
                    callback_error=error,
                )
            )
            await connection.execute(
                sa.update(callbacks)
                .where(*is_newest)
                .values(next_attempt_at=next_at, claimed_until=None, given_up_at=given_up_at)
            )

    async def list_open(self, project_id: ProjectId, page: Page) -> list[OpenCallback]:
        """A page of the project's callbacks that wait or were given up; its cursors are ids of runs."""
        async with self._database.read() as connection:
            owner = (callbacks.c.project_id, project_id)
            rows = await rows_of_page(
                connection, callbacks, project_id, page, IS_OPEN, owner=owner, is_cursor=callbacks.c.run_id.__eq__
            )
            return await _with_outcomes(connection, rows)

    async def retry(self, project_id: ProjectId, run_id: RunId, now: datetime) -> OpenCallback:
        """Makes a callback due now. A callback that was given up gets one more attempt.

        Raises `NotFound` if the project's run has none, and `Conflict` if it was delivered."""
        is_it = (callbacks.c.run_id == run_id, callbacks.c.project_id == project_id)
        async with self._database.write() as connection:
            moved = await connection.execute(
                sa.update(callbacks)
                .where(*is_it, IS_OPEN)
                .values(next_attempt_at=now, given_up_at=None)
                .returning(*callbacks.c)
            )
            rows = moved.mappings().all()
            if not rows:
                known = await connection.execute(sa.select(callbacks.c.run_id).where(*is_it))
                if known.one_or_none() is None:
                    raise NotFound(f"Run {run_id} has no callback")
                raise Conflict(f"the callback of run {run_id} was delivered: there is nothing to try again")
            await record(connection, project_id, "callback.retried", run_id)
            return (await _with_outcomes(connection, rows))[0]


async def _with_outcomes(connection: Connection, rows: Sequence[RowMapping]) -> list[OpenCallback]:
    """Returns the callbacks of these rows, each with the outcome of its last attempt, which the run's row has."""
    ids = [row["run_id"] for row in rows]
    columns = (runs.c.id, runs.c.callback_status_code, runs.c.callback_error, runs.c.completed_at, runs.c.created_at)
    found = await connection.execute(sa.select(*columns).where(runs.c.id.in_(ids)))
    outcomes = {row.id: row for row in found}
    return [
        OpenCallback(
            run_id=row["run_id"],
            url=row["url"],
            attempts=row["attempts"],
            next_attempt_at=row["next_attempt_at"],
            last_status_code=outcome.callback_status_code,
            last_error=outcome.callback_error,
            created_at=outcome.completed_at or outcome.created_at,
        )
        for row in rows
        # A run that was deleted since has no callback any more.
        if (outcome := outcomes.get(row["run_id"])) is not None
    ]
