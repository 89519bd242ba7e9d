"""Old events of the audit log and old accounts of budgets go when the settings say so, and nothing else does."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from shared.domain.ids import IdMaker
from shared.domain.limits import Account, Amount, Limit, day_of
from shared.sql.access.audit import Asker, AuditFilter, AuditLog, asked_by
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.retention import AT_ONCE, RecordRetention
from tests.contract.test_prune_command import prune
from tests.kit.clocks import SettableClock
from tests.kit.commands import Command, fork
from tests.kit.runs.definitions import PROJECT
from tests.kit.runs.stored_runs import Stores, stored_runs
from tests.kit.wait_until import wait_until

AMOUNT = Amount(10, 0)
UNLIMITED = Limit(None, None)


@pytest.fixture
async def stores(database_url: str) -> AsyncGenerator[Stores]:
    async with stored_runs(database_url) as stores:
        yield stores


def retention(stores: Stores, clock: SettableClock, *, audit: int = 0, budgets: int = 0) -> RecordRetention:
    return RecordRetention(
        audit=AuditLog(stores.database),
        budgets=BudgetStore(stores.database),
        clock=clock,
        audit_days=audit,
        budget_days=budgets,
    )


async def record_at(stores: Stores, clock: SettableClock, *objects: str) -> None:
    with asked_by(Asker(key_id="key-1", key_name="a page", at=clock.now(), ids=IdMaker())):
        await AuditLog(stores.database).add(PROJECT, "run.deleted", *objects)


async def kept(stores: Stores) -> list[str]:
    return [event.object_id for event in await AuditLog(stores.database).newest(PROJECT, AuditFilter(), 10_000)]


async def test_the_audit_log_grew_for_ever(stores: Stores) -> None:
    clock = SettableClock()
    await record_at(stores, clock, *[f"old-{number}" for number in range(AT_ONCE + 5)])
    clock.advance(hours=24 * 20)
    await record_at(stores, clock, "young")
    clock.advance(hours=24 * 11)

    assert not retention(stores, clock).is_wanted
    assert not any((await retention(stores, clock, audit=32).prune()).values())
    assert await retention(stores, clock, audit=30).count() == {"audit_events": AT_ONCE + 5}
    assert await retention(stores, clock, audit=30).prune(stop=lambda: True) == {"audit_events": 0}
    assert await retention(stores, clock, audit=30).prune(1) == {"audit_events": AT_ONCE}
    assert await retention(stores, clock, audit=30).prune() == {"audit_events": 5}
    assert await kept(stores) == ["young"]


async def test_the_accounts_of_budgets_grew_for_ever(stores: Stores) -> None:
    clock, store = SettableClock(), BudgetStore(stores.database)
    for _ in range(2):
        clock.advance(hours=24 * 40)
        run = await stores.claimed()
        await store.reserve(run, [Account("project", PROJECT, UNLIMITED)], AMOUNT, clock.now())
        await stores.settle(run)
    assert await retention(stores, clock, budgets=60).prune() == {"budget_totals": 0}
    assert await retention(stores, clock, budgets=30).count() == {"budget_totals": 1}
    assert await retention(stores, clock, budgets=30).prune() == {"budget_totals": 1}
    [left] = await store.totals(day_of(clock.now()))
    assert left.project_id == PROJECT


async def test_an_account_with_something_set_aside_stays(stores: Stores) -> None:
    clock, store = SettableClock(), BudgetStore(stores.database)
    run = await stores.claimed()
    await store.reserve(run, [Account("project", PROJECT, UNLIMITED)], AMOUNT, clock.now())
    clock.advance(hours=24 * 40)
    assert await retention(stores, clock, budgets=1).count() == {"budget_totals": 0}
    assert await retention(stores, clock, budgets=1).prune() == {"budget_totals": 0}
    await stores.settle(run)
    assert await retention(stores, clock, budgets=1).prune() == {"budget_totals": 1}


async def test_prune_deletes_what_the_settings_say(stores: Stores, database_url: str, tmp_path: Path) -> None:
    clock = SettableClock()
    clock.advance(hours=-24 * 400)
    await record_at(stores, clock, "old")
    dry = await prune(database_url, tmp_path, "--dry-run", HOLDFAST_RETAIN_AUDIT_DAYS="30")
    assert (dry.status, dry.output.split()) == (0, ["1", "audit_events", "would", "be", "deleted"])
    said = await prune(database_url, tmp_path, HOLDFAST_RETAIN_AUDIT_DAYS="30")
    assert (said.status, said.output.split()) == (0, ["1", "audit_events", "deleted"])
    assert await kept(stores) == []


async def test_who_did_what_is_shown_on_the_command_line(stores: Stores, database_url: str, tmp_path: Path) -> None:
    clock = SettableClock()
    await record_at(stores, clock, "run-1", "run-2")
    files = tmp_path / "output", tmp_path / "errors"
    for file in files:
        file.touch()
    arguments = ["audit", "--project", PROJECT, "--object", "run-2"]
    process = fork(Command(arguments, {"HOLDFAST_DATABASE_URL": database_url}, *files))
    await wait_until(lambda: process.exit_status() is not None, description="the command to end")
    [line] = files[0].read_text().splitlines()
    assert "run.deleted  run-2  by key-1 (a page)" in line
    assert process.exit_status() == 0, files[1].read_text()
