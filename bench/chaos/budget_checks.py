"""Checks the budgets at the end: the usage of each account is that of its runs."""

from collections import defaultdict

import sqlalchemy as sa

from bench.chaos.ledger import Column, Ledger
from shared.domain.limits import NOTHING, Amount, amount_of
from shared.domain.runs import Usage
from shared.sql.engine import Database
from shared.sql.run_tables import budget_totals, runs
from shared.sql.tables import from_json


async def check_budgets(ledger: Ledger, database: Database) -> None:
    """Compares the accounts of the projects with the runs."""
    of_runs = defaultdict[str, int](int)
    async with database.read() as connection:
        for row in await connection.execute(sa.select(runs.c.project_id, runs.c.usage)):
            of_runs[row.project_id] += amount_of(from_json(row.usage, Usage)).tokens
        totals = (await connection.execute(sa.select(budget_totals))).all()
    used = defaultdict[str, int](int)
    for total in totals:
        reserved = Amount(total.reserved_tokens, total.reserved_nano_usd)
        if reserved != NOTHING:
            ledger.broken(Column.BUDGETS, "-", f"{total.account} of {total.day} still has {reserved} set aside")
        if total.account.startswith("project:"):
            used[total.project_id] += total.used_tokens
    for project, tokens in of_runs.items():
        if used[project] != tokens:
            told = f"{tokens} tokens, and {used[project]} are counted"
            ledger.broken(Column.BUDGETS, "-", f"the runs of {project} used {told}")
