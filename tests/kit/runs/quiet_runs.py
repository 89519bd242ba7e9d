"""Runs that the sweeper checks now, instead of a lease later."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from shared.domain.lifecycle import ACTIVE
from shared.sql.engine import Database
from shared.sql.run_tables import runs

A_DAY = timedelta(days=1)
"""Longer than any lease."""


async def grow_quiet(database: Database) -> None:
    """Makes the last change of every unended run a day old. A living worker keeps its runs."""
    async with database.write() as connection:
        await connection.execute(
            sa.update(runs).where(runs.c.status.in_(ACTIVE)).values(updated_at=datetime.now(UTC) - A_DAY)
        )
