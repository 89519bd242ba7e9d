"""Retention deletes the rows that old runs needed while they ran. The run itself stays, and so do its end, its messages
and the decisions on its calls.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from datetime import datetime

import sqlalchemy as sa

from shared.domain.lifecycle import TERMINAL
from shared.domain.settling import PARKED
from shared.sql.engine import Database
from shared.sql.run_tables import RETAINED_FOR_A_WHILE, callbacks, injected_messages, runs, webhook_deliveries

RUNS_AT_ONCE = 100
"""The limit for one transaction, in runs. On SQLite, all other writers wait for it."""


class RetentionStore:
    """Finds and prunes runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prune(self, before: datetime, now: datetime, limit: int = RUNS_AT_ONCE) -> Counter[str]:
        """Prunes the first runs of those that ended before a moment. Returns the number of deleted rows by table, and
        the number of pruned runs as "runs". Empty if no run is left, or other processes hold the locks of all that
        are."""
        first = _prunable(before).order_by(runs.c.completed_at).limit(limit)
        async with self._database.write() as connection:
            # Two concurrent prunes take different runs, and neither waits.
            found = await connection.execute(first.with_for_update(skip_locked=True))
            run_ids = found.scalars().all()
            if not run_ids:
                return Counter()
            pruned = Counter(runs=len(run_ids))
            for table in RETAINED_FOR_A_WHILE:
                deleted = await connection.execute(sa.delete(table).where(table.c.run_id.in_(run_ids)))
                pruned[table.name] = deleted.rowcount
            await connection.execute(sa.update(runs).where(runs.c.id.in_(run_ids)).values(pruned_at=now))
            return pruned

    async def count(self, before: datetime) -> AsyncGenerator[tuple[str, int]]:
        """Returns the number of rows that pruning would delete, by table, as `prune` counts them; the runs come first.
        It may take minutes."""
        of_the_runs = _prunable(before)
        async with self._database.read() as connection:
            counted = await connection.execute(sa.select(sa.func.count()).select_from(of_the_runs.subquery()))
            yield "runs", counted.scalar_one()
            for table in RETAINED_FOR_A_WHILE:
                query = sa.select(sa.func.count()).select_from(table).where(table.c.run_id.in_(of_the_runs))
                yield table.name, (await connection.execute(query)).scalar_one()


def _prunable(before: datetime) -> sa.Select[tuple[str]]:
    """Returns the query for the runs that ended before then and were not pruned yet, without those that still have
    something to deliver: a callback, an event for a webhook endpoint, or a message for the next run of the thread."""
    calls_back = sa.or_(
        *(
            sa.exists().where(outbox.c.run_id == runs.c.id, outbox.c.next_attempt_at.is_not(None))
            for outbox in (callbacks, webhook_deliveries)
        )
    )
    # All other undelivered messages were dropped with the end of their run.
    is_awaited = (injected_messages.c.delivered_at.is_(None), injected_messages.c.if_ended == "next")
    leaves_messages = sa.exists().where(injected_messages.c.run_id == runs.c.id, *is_awaited)
    # One expression, so that the index of those that were not pruned is the only one that helps.
    ended_at = sa.case(
        (runs.c.status.not_in(TERMINAL), sa.null()),
        # The stream of a run that waited for a person was completed when it was parked. The decision ended it.
        (runs.c.stop_reason == PARKED.stop_reason, runs.c.updated_at),
        else_=runs.c.completed_at,
    )
    is_old = (runs.c.pruned_at.is_(None), runs.c.completed_at < before, ended_at < before)
    return sa.select(runs.c.id).where(*is_old, ~calls_back, ~leaves_messages)
