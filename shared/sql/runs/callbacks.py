"""The outbox of callbacks. The transaction that ends a run fills it (see `settlement`), and the API empties it."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from shared.domain.ids import ProjectId, RunId
from shared.sql.engine import Database
from shared.sql.run_tables import callbacks, runs

CLAIM_HOLDS = timedelta(seconds=60)
"""How long one process may take for an attempt before another one tries."""


class Callback(NamedTuple):
    """A callback whose turn has come; `attempts` counts those that were made."""

    run_id: RunId
    url: str
    attempts: int
    project_id: ProjectId


class CallbackStore:
    """Reads and settles what is in the outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_due(
        self, now: datetime, limit: int = 20, *, but_not_of: Collection[ProjectId] = ()
    ) -> list[Callback]:
        """Callbacks whose attempt is due. No other process gets them for `CLAIM_HOLDS`."""
        is_others = [callbacks.c.project_id.not_in(but_not_of)] if but_not_of else []
        free = callbacks.c.claimed_until.is_(None) | (callbacks.c.claimed_until < now)
        async with self._database.write() as connection:
            due = (
                sa.select(callbacks.c.number)
                .where(callbacks.c.next_attempt_at <= now, free, *is_others)
                .order_by(callbacks.c.next_attempt_at)
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
            numbers = (await connection.execute(due)).scalars().all()
            if not numbers:
                return []
            claimed = await connection.execute(
                sa.update(callbacks)
                .where(callbacks.c.number.in_(numbers))
                .values(claimed_until=now + CLAIM_HOLDS, attempts=callbacks.c.attempts + 1)
                .returning(callbacks.c.run_id, callbacks.c.url, callbacks.c.attempts, callbacks.c.project_id)
            )
            return [Callback(*row) for row in claimed]

    async def postpone(self, run_id: RunId, until: datetime) -> None:
        """Gives back a callback that was claimed and not attempted."""
        async with self._database.write() as connection:
            await connection.execute(
                sa.update(callbacks)
                .where(callbacks.c.run_id == run_id)
                .values(next_attempt_at=until, claimed_until=None, attempts=callbacks.c.attempts - 1)
            )

    async def record_attempt(
        self, run_id: RunId, *, now: datetime, status_code: int | None, error: str | None, next_at: datetime | None
    ) -> None:
        """What came of an attempt. `next_at` None: delivered, or given up."""
        async with self._database.write() as connection:
            await connection.execute(
                sa.update(callbacks)
                .where(callbacks.c.run_id == run_id)
                .values(next_attempt_at=next_at, claimed_until=None)
            )
            await connection.execute(
                sa.update(runs)
                .where(runs.c.id == run_id)
                .values(callback_sent_at=now, callback_status_code=status_code, callback_error=error)
            )
