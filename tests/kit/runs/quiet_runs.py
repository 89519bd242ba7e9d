"""Runs that the sweeper looks at now, instead of a lease later."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from shared.domain.lifecycle import ACTIVE
from shared.sql.engine import Database
from shared.sql.run_tables import runs

A_DAY = timedelta(days=1)
"""Longer than any lease."""


async def grow_quiet(database: Database) -> None:
    """The last news of every run that has not ended are a day old. What a living worker has stays its own."""
    async with database.write() as connection:
        await connection.execute(
            sa.update(runs).where(runs.c.status.in_(ACTIVE)).values(updated_at=datetime.now(UTC) - A_DAY)
        )
