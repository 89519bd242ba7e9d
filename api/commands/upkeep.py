"""`holdfast migrate` and `holdfast prune`: what an operator does to the database."""

import argparse
import sys
import time
from collections import Counter
from contextlib import aclosing
from datetime import timedelta

from api.commands.processes import AddCommand, named_database, positive, production_database, told_to_end
from shared.clock import SystemClock
from shared.domain.errors import InvalidRequest
from shared.process.settings import Settings
from shared.runs.record_retention import RecordRetention
from shared.runs.retention import Retention
from shared.sql.access.audit import AuditLog
from shared.sql.engine import ANSWER_S, Database
from shared.sql.migrate import migrate
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.retention import RetentionStore

PROGRESS_S = 5.0


def add_upkeep_commands(add: AddCommand) -> None:
    """Adds them to the parser, through its `add_parser`."""
    migrating = add("migrate", help="bring the database to the shape that this version needs")
    migrating.set_defaults(run=_run_migrate)
    pruning = add("prune", help="delete logs, steps and keys of runs that ended long ago, and old records")
    pruning.add_argument("--older-than-days", type=positive, metavar="N", help="(default: HOLDFAST_RETAIN_DAYS)")
    pruning.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    pruning.set_defaults(run=_run_prune)


async def _run_migrate(settings: Settings, _options: argparse.Namespace) -> None:
    async with named_database(settings) as url:
        database = Database(url, answer_s=None)
        try:
            revision = await migrate(database)
        finally:
            await database.aclose()
    print(f"holdfast migrate: the database is at revision {revision}")


async def _run_prune(settings: Settings, options: argparse.Namespace) -> None:
    if not (settings.retain_days or settings.retain_audit_days or settings.retain_budget_days):
        raise InvalidRequest("runs are kept for ever: say --older-than-days N, or set HOLDFAST_RETAIN_DAYS")
    database = await production_database(settings, answer_s=None if options.dry_run else ANSWER_S)
    try:
        if settings.retain_days:
            await _prune_runs(settings, options, database)
        await _prune_records(settings, options, database)
    finally:
        await database.aclose()


async def _prune_records(settings: Settings, options: argparse.Namespace, database: Database) -> None:
    """The audit log and the accounts of budgets, whose days are settings of their own."""
    records = RecordRetention(
        audit=AuditLog(database),
        budgets=BudgetStore(database),
        clock=SystemClock(),
        audit_days=settings.retain_audit_days,
        budget_days=settings.retain_budget_days,
    )
    counted = await (records.count() if options.dry_run else records.prune())
    for name, count in counted.items():
        print(f"{count:>12,} {name} {'would be deleted' if options.dry_run else 'deleted'}", flush=True)


async def _prune_runs(settings: Settings, options: argparse.Namespace, database: Database) -> None:
    keep = timedelta(days=settings.retain_days)
    retention = Retention(store=RetentionStore(database), clock=SystemClock(), keep=keep)
    before = retention.before
    print(f"holdfast prune: runs that ended before {before:%Y-%m-%d %H:%M} UTC", flush=True)
    if not options.dry_run:
        await _prune(retention)
        return
    async for name, count in retention.store.count(before):
        print(f"{count:>12,} {name} would be {'pruned' if name == 'runs' else 'deleted'}", flush=True)


async def _prune(retention: Retention) -> None:
    """Prunes until nothing is left, or until the process is asked to end."""
    total = Counter(runs=0)
    try:
        await _add_pruned(retention, total)
    finally:
        for name, count in total.items():
            print(f"{count:>12,} {name} {'pruned' if name == 'runs' else 'deleted'}", flush=True)


async def _add_pruned(retention: Retention, total: Counter[str]) -> None:
    stop, said_at = told_to_end(), time.monotonic()
    async with aclosing(retention.prune()) as pruning:
        async for pruned in pruning:
            total.update(pruned)
            if stop.is_set():
                print("holdfast prune: told to end; what is left is pruned another time", file=sys.stderr, flush=True)
                return
            if time.monotonic() > said_at + PROGRESS_S:
                said_at = time.monotonic()
                print(f"holdfast prune: {total['runs']:,} runs so far", file=sys.stderr, flush=True)
