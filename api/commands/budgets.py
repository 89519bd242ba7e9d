"""`holdfast budgets`: what the accounts of a day have used, and what is set aside for calls that are under way."""

import argparse
from datetime import date

from api.commands.processes import AddCommand, production_database
from shared.clock import SystemClock
from shared.domain.budgets import Amount, Budgets, Limit, day_of, dollars
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.runs.budgets import BudgetStore


def add_budget_commands(add: AddCommand) -> None:
    """Adds it to the parser, through its `add_parser`."""
    showing = add("budgets", help="show what agents, keys and projects have used on a day, of what they may")
    showing.add_argument("--project", help="(default: all)")
    showing.add_argument("--day", type=_day, metavar="YYYY-MM-DD", help="by UTC (default: today)")
    showing.set_defaults(run=_run_budgets)


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise argparse.ArgumentTypeError("write the day as 2026-01-31") from error


async def _run_budgets(settings: Settings, options: argparse.Namespace) -> None:
    day: str = options.day or day_of(SystemClock().now())
    database = await production_database(settings)
    try:
        project = None if options.project is None else ProjectId(options.project)
        totals = await BudgetStore(database).totals(day, project)
    finally:
        await database.aclose()
    if not totals:
        print(f"holdfast budgets: nothing was counted on {day}; accounts begin with the first call under a budget")
        return
    print(f"{'account':<52} {'used':>30} {'set aside':>30}  of")
    for total in totals:
        limit = _limit_of(settings.budgets, total.account)
        print(f"{total.account:<52} {_shown(total.used):>30} {_shown(total.reserved):>30}  {_shown_limit(limit)}")


def _limit_of(budgets: Budgets, account: str) -> Limit:
    kinds = {"agent": budgets.agent, "key": budgets.key, "project": budgets.project}
    return kinds[account.partition(":")[0]]


def _shown(amount: Amount) -> str:
    return f"{amount.tokens:,} tokens, {dollars(amount.nano_usd)}"


def _shown_limit(limit: Limit) -> str:
    tokens = [] if limit.tokens is None else [f"{limit.tokens:,} tokens"]
    money = [] if limit.nano_usd is None else [dollars(limit.nano_usd)]
    return ", ".join(tokens + money) or "no limit that this command's settings know"
