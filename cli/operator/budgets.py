"""`holdfast budgets`: what the accounts of a day have used, and what is set aside for calls that are under way."""

from datetime import date
from functools import partial
from typing import Annotated

import msgspec
import typer

from cli.operator.processes import production_database
from cli.operator.start import operate
from cli.options import JsonOption
from cli.printable import printable, printable_json
from shared.clock import SystemClock
from shared.domain.budgets import Amount, Budgets, Limit, day_of, dollars
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.runs.budgets import BudgetStore

commands = typer.Typer()


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise typer.BadParameter("write the day as 2026-01-31") from error


@commands.command(epilog="Example: holdfast budgets --day 2026-01-31")
def budgets(
    project: Annotated[str | None, typer.Option(help="Of this project (default: all).")] = None,
    day: Annotated[str | None, typer.Option(parser=_day, metavar="YYYY-MM-DD", help="By UTC (default: today).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what agents, keys and projects have used on a day, of what they may."""
    operate(partial(_show, project=project, day=day or day_of(SystemClock().now()), as_json=as_json))


async def _show(settings: Settings, *, project: str | None, day: str, as_json: bool) -> None:
    database = await production_database(settings)
    try:
        totals = await BudgetStore(database).totals(day, None if project is None else ProjectId(project))
    finally:
        await database.aclose()
    if as_json:
        for total in totals:
            print(printable_json(msgspec.json.encode(total).decode()))
        return
    if not totals:
        print(f"holdfast budgets: nothing was counted on {day}; accounts begin with the first call under a budget")
        return
    print(f"{'account':<52} {'used':>30} {'set aside':>30}  of")
    for total in totals:
        limit = _limit_of(settings.budgets, total.account)
        account, used = printable(total.account), _shown(total.used)
        print(f"{account:<52} {used:>30} {_shown(total.reserved):>30}  {_shown_limit(limit)}")


def _limit_of(budgets: Budgets, account: str) -> Limit:
    kinds = {"agent": budgets.agent, "key": budgets.key, "project": budgets.project}
    return kinds[account.partition(":")[0]]


def _shown(amount: Amount) -> str:
    return f"{amount.tokens:,} tokens, {dollars(amount.nano_usd)}"


def _shown_limit(limit: Limit) -> str:
    tokens = [] if limit.tokens is None else [f"{limit.tokens:,} tokens"]
    money = [] if limit.nano_usd is None else [dollars(limit.nano_usd)]
    return ", ".join(tokens + money) or "no limit that this command's settings know"
