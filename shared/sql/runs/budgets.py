"""Budgets: the amount that a worker reserves before a call, and the usage that is charged to the run's accounts.

A run has one reservation at most, in its own row. Each transaction that writes the run's usage also charges it to the
accounts and frees the reservation. So if a worker dies in a call, the next owner's reservation replaces its own, or the
run's end frees it; usage is charged once.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from shared.domain.errors import BudgetExceeded
from shared.domain.ids import ProjectId, RunId
from shared.domain.limits import NOTHING, ONE_TOKEN, Account, Amount, Reservation, amount_of, day_of, next_day
from shared.domain.runs import Run, Usage
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.run_tables import budget_totals, runs
from shared.sql.runs.rows import LockedRun, lock_owned, update_owned
from shared.sql.tables import from_json, to_json


class AccountTotal(NamedTuple):
    """The usage of an account on a day, and the reserved amount."""

    account: str
    project_id: ProjectId
    used: Amount
    reserved: Amount


def _total_of(row: sa.Row[Any]) -> AccountTotal:
    used, reserved = (row.used_tokens, row.used_nano_usd), (row.reserved_tokens, row.reserved_nano_usd)
    return AccountTotal(row.account, row.project_id, Amount(*used), Amount(*reserved))


_IS_IDLE = (budget_totals.c.reserved_tokens == 0, budget_totals.c.reserved_nano_usd == 0)


class BudgetStore(Store):
    """The accounts that pay for model calls."""

    async def reserve(
        self, run: Run, accounts: Sequence[Account], amount: Amount, now: datetime, *, prompt: Amount = NOTHING
    ) -> None:
        """Reserves the amount in each of the accounts, in place of the run's earlier reservation. A repetition changes
        nothing. `prompt` is the part of the amount for the call's prompt.

        Changes nothing and raises `BudgetExceeded` if one of the accounts has too little left, or `StaleFence` if the
        run has a new owner.
        """
        day = day_of(now)
        async with self._database.write() as connection:
            locked = await lock_owned(connection, run.id, run.fence)
            if locked.reservation is not None:
                await _change(connection, locked.reservation, used=NOTHING)
            for account in accounts:
                await _ensure_row(connection, account, day, run.project_id)
                await _set_aside(connection, account, day, amount, now)
            reservation = Reservation(day, [account.name for account in accounts], amount, prompt)
            update_owned(connection, run.id, now, {"reservation": to_json(reservation)})

    async def refuse_if_used_up(self, accounts: Sequence[Account], now: datetime) -> None:
        """Raises `BudgetExceeded` if one of the accounts has nothing left for a call of unknown size."""
        names, day = [account.name for account in accounts], day_of(now)
        query = sa.select(budget_totals).where(budget_totals.c.account.in_(names), budget_totals.c.day == day)
        async with self._database.read() as connection:
            found = {row.account: _total_of(row) for row in await connection.execute(query)}
        for account in accounts:
            if (total := found.get(account.name)) is None:
                continue
            if over := account.limit.exceeded_by(total.used.plus(total.reserved).plus(ONE_TOKEN)):
                raise BudgetExceeded(
                    f"the next call would bring the {account.kind}'s budget of this day to {over}",
                    room_at=next_day(now),
                )

    async def used_beside(self, run: Run) -> Amount:
        """Returns the stored usage of all other runs in the run's tree."""
        parent = run.options.parent
        root_id = run.id if parent is None else parent.root_id
        in_tree = sa.or_(runs.c.id == root_id, runs.c.root_run_id == root_id)
        async with self._database.read() as connection:
            found = await connection.execute(sa.select(runs.c.usage).where(in_tree, runs.c.id != run.id))
            total = NOTHING
            for row in found:
                total = total.plus(amount_of(from_json(row.usage, Usage)))
            return total

    async def totals(self, day: str, project_id: ProjectId | None = None) -> list[AccountTotal]:
        """Returns the accounts that paid on a day, of one project or of all, ordered by name."""
        query = sa.select(budget_totals).where(budget_totals.c.day == day).order_by(budget_totals.c.account)
        if project_id is not None:
            query = query.where(budget_totals.c.project_id == project_id)
        async with self._database.read() as connection:
            found = await connection.execute(query)
            return [_total_of(row) for row in found]

    async def prune(self, before: datetime, limit: int) -> int:
        """Deletes up to `limit` accounts of days that ended before a moment. Returns their number. An account with a
        reservation stays, because the run of the reservation has not ended."""
        totals = budget_totals.c
        old = sa.select(totals.account, totals.day).where(totals.day < day_of(before), *_IS_IDLE).limit(limit)
        async with self._database.write() as connection:
            found = [tuple(row) for row in await connection.execute(old)]
            if found:
                is_one = sa.tuple_(totals.account, totals.day).in_(found)
                await connection.execute(sa.delete(budget_totals).where(is_one, *_IS_IDLE))
            return len(found)

    async def count_before(self, before: datetime) -> int:
        """How many accounts `prune` would delete now."""
        is_old = budget_totals.c.day < day_of(before)
        async with self._database.read() as connection:
            query = sa.select(sa.func.count()).select_from(budget_totals).where(is_old, *_IS_IDLE)
            return (await connection.execute(query)).scalar_one()


async def count_usage(connection: Connection, run_id: RunId, locked: LockedRun, usage: Usage) -> None:
    """Charges the usage since the last write of the run's usage, and frees the reservation. The caller has locked the
    run's row, and writes this usage to it."""
    if locked.reservation is None:
        return
    used = amount_of(usage).since(amount_of(locked.usage))
    await _change(connection, locked.reservation, used=used)
    await connection.execute(sa.update(runs).where(runs.c.id == run_id).values(reservation=None))


async def charge_unreserved(
    connection: Connection, run: Run, locked: LockedRun, usage: Usage, accounts: Sequence[Account], now: datetime
) -> None:
    """As `count_usage`, for a call that a body may have made by itself: the accounts pay, although nothing is reserved
    in them."""
    if locked.reservation is not None:
        await count_usage(connection, run.id, locked, usage)
        return
    day = day_of(now)
    for account in accounts:
        await _ensure_row(connection, account, day, run.project_id)
    payers = Reservation(day, [account.name for account in accounts], NOTHING, NOTHING)
    await _change(connection, payers, used=amount_of(usage).since(amount_of(locked.usage)))


async def has_accounts(connection: Connection, project_id: ProjectId) -> bool:
    """Whether accounts pay for the project's model calls."""
    of_project = sa.exists().where(budget_totals.c.project_id == project_id)
    return (await connection.execute(sa.select(of_project))).scalar_one()


async def _change(connection: Connection, reservation: Reservation, *, used: Amount) -> None:
    freed, totals = reservation.amount, budget_totals.c
    for name in sorted(reservation.accounts):
        await connection.execute(
            sa.update(budget_totals)
            .where(totals.account == name, totals.day == reservation.day)
            .values(
                used_tokens=totals.used_tokens + used.tokens,
                used_nano_usd=totals.used_nano_usd + used.nano_usd,
                reserved_tokens=totals.reserved_tokens - freed.tokens,
                reserved_nano_usd=totals.reserved_nano_usd - freed.nano_usd,
            )
        )


async def _ensure_row(connection: Connection, account: Account, day: str, project_id: ProjectId) -> None:
    nothing = dict.fromkeys(("used_tokens", "used_nano_usd", "reserved_tokens", "reserved_nano_usd"), 0)
    await connection.execute(
        connection.insert(budget_totals)
        .values(account=account.name, day=day, project_id=project_id, **nothing)
        .on_conflict_do_nothing(index_elements=[budget_totals.c.account, budget_totals.c.day])
    )


async def _set_aside(connection: Connection, account: Account, day: str, amount: Amount, now: datetime) -> None:
    totals = budget_totals.c
    is_there = (totals.account == account.name, totals.day == day)
    limit = account.limit
    fits = list[sa.ColumnElement[bool]]()
    if limit.tokens is not None:
        fits.append(totals.used_tokens + totals.reserved_tokens + amount.tokens <= limit.tokens)
    if limit.nano_usd is not None:
        fits.append(totals.used_nano_usd + totals.reserved_nano_usd + amount.nano_usd <= limit.nano_usd)
    updated = await connection.execute(
        sa.update(budget_totals)
        .where(*is_there, *fits)
        .values(
            reserved_tokens=totals.reserved_tokens + amount.tokens,
            reserved_nano_usd=totals.reserved_nano_usd + amount.nano_usd,
        )
    )
    if updated.rowcount:
        return
    total = _total_of((await connection.execute(sa.select(budget_totals).where(*is_there))).one())
    over = limit.exceeded_by(total.used.plus(total.reserved).plus(amount))
    if limit.exceeded_by(amount):
        raise BudgetExceeded(
            f"the next call alone may need {limit.exceeded_by(amount)} that the {account.kind} has a day"
        )
    is_for_now = limit.exceeded_by(total.used.plus(amount)) is None
    raise BudgetExceeded(
        f"the next call would bring the {account.kind}'s budget of this day to {over}"
        + (", with the calls that are under way" if is_for_now else ""),
        room_at=next_day(now),
    )
