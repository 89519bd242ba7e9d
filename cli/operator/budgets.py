"""What `holdfast budgets` shows: what the accounts of a day have used, and what is set aside for calls under way."""

import msgspec

from cli.operator.processes import production_database
from cli.printable import printable, printable_json
from shared.domain.budgets import Amount, Budgets, Limit, dollars
from shared.domain.ids import ProjectId
from shared.process.settings import Settings
from shared.sql.runs.budgets import BudgetStore


async def show_budgets(settings: Settings, *, project: str | None, day: str, as_json: bool) -> None:
    """Prints the accounts of the day."""
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
