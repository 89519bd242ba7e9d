"""What must be true of budgets when everything has come to rest: accounts have what their runs have."""

from collections import defaultdict
from datetime import datetime

import sqlalchemy as sa

from bench.chaos.ledger import Column, Ledger
from shared.domain.budgets import NOTHING, Amount, amount_of
from shared.domain.runs import Usage
from shared.sql.engine import Database
from shared.sql.run_tables import budget_totals, runs
from shared.sql.tables import from_json


async def check_budgets(ledger: Ledger, database: Database, since: datetime) -> None:
    """Compares the accounts of the projects with the runs. Of runs that began before `since`, a worker of the earlier
    release may have written a part, and it counts nothing."""
    at_most, at_least = defaultdict[str, int](int), defaultdict[str, int](int)
    async with database.read() as connection:
        for row in await connection.execute(sa.select(runs.c.project_id, runs.c.usage, runs.c.created_at)):
            tokens = amount_of(from_json(row.usage, Usage)).tokens
            at_most[row.project_id] += tokens
            at_least[row.project_id] += tokens if row.created_at >= since else 0
        totals = (await connection.execute(sa.select(budget_totals))).all()
    used = defaultdict[str, int](int)
    for total in totals:
        reserved = Amount(total.reserved_tokens, total.reserved_nano_usd)
        if reserved != NOTHING:
            ledger.broken(Column.BUDGETS, "-", f"{total.account} of {total.day} still has {reserved} set aside")
        if total.account.startswith("project:"):
            used[total.project_id] += total.used_tokens
    for project in at_most:
        if not at_least[project] <= used[project] <= at_most[project]:
            told = f"between {at_least[project]} and {at_most[project]} tokens, and {used[project]} are counted"
            ledger.broken(Column.BUDGETS, "-", f"the runs of {project} used {told}")
