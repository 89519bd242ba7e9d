"""What `holdfast migrate` and `holdfast prune` do to the database."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime, timedelta

import msgspec

from cli.operator.processes import named_database, production_database, told_to_end
from cli.operator.progress import shown_progress
from shared.clock import SystemClock
from shared.process.settings import Settings
from shared.runs.record_retention import RecordRetention
from shared.runs.retention import Retention
from shared.sql.access.audit import AuditLog
from shared.sql.engine import ANSWER_S, Database
from shared.sql.migrate import migrate
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.retention import RetentionStore


class _Report:
    """How many rows of what kind were deleted, or would be: lines as they are known, or one object at the end."""

    def __init__(self, *, dry_run: bool, as_json: bool) -> None:
        self.dry_run = dry_run
        self._as_json = as_json
        self._before: datetime | None = None
        self._counted: dict[str, int] = {}

    def begin(self, before: datetime) -> None:
        """Says which runs are meant."""
        self._before = before
        if not self._as_json:
            print(f"holdfast prune: runs that ended before {before:%Y-%m-%d %H:%M} UTC", flush=True)

    def add(self, name: str, count: int) -> None:
        """One kind of rows."""
        self._counted[name] = count
        if not self._as_json:
            done = "pruned" if name == "runs" else "deleted"
            print(f"{count:>12,} {name} {'would be ' if self.dry_run else ''}{done}", flush=True)

    def end(self) -> None:
        """All that was added, as an object; lines have said it already."""
        if self._as_json:
            told = {"dry_run": self.dry_run, "runs_ended_before": self._before, "counted": self._counted}
            print(msgspec.json.encode(told).decode(), flush=True)


async def run_migrate(settings: Settings, *, as_json: bool) -> None:
    """Brings the database to our shape, and says which revision that is."""
    async with named_database(settings) as url:
        database = Database(url, answer_s=None)
        try:
            with shown_progress("holdfast migrate: the database gets its new shape"):
                revision = await migrate(database)
        finally:
            await database.aclose()
    if as_json:
        print(msgspec.json.encode({"revision": revision}).decode())
    else:
        print(f"holdfast migrate: the database is at revision {revision}")


async def run_prune(settings: Settings, *, dry_run: bool, as_json: bool) -> None:
    """Deletes what the settings do not keep any longer, or only counts it."""
    report = _Report(dry_run=dry_run, as_json=as_json)
    database = await production_database(settings, answer_s=None if dry_run else ANSWER_S)
    stop = told_to_end()
    try:
        if settings.retain_days:
            await _prune_runs(settings, database, report, stop)
        await _prune_records(settings, database, report, stop)
        if stop.is_set():
            print("holdfast prune: told to end; what is left is pruned another time", file=sys.stderr, flush=True)
    finally:
        report.end()
        await database.aclose()


async def _prune_records(settings: Settings, database: Database, report: _Report, stop: asyncio.Event) -> None:
    """The audit log and the accounts of budgets, whose days are settings of their own."""
    records = RecordRetention(
        audit=AuditLog(database),
        budgets=BudgetStore(database),
        clock=SystemClock(),
        audit_days=settings.retain_audit_days,
        budget_days=settings.retain_budget_days,
    )
    counted = await (records.count() if report.dry_run else records.prune(stop=stop.is_set))
    for name, count in counted.items():
        report.add(name, count)


async def _prune_runs(settings: Settings, database: Database, report: _Report, stop: asyncio.Event) -> None:
    keep = timedelta(days=settings.retain_days)
    retention = Retention(store=RetentionStore(database), clock=SystemClock(), keep=keep)
    before = retention.before
    report.begin(before)
    if not report.dry_run:
        await _prune(retention, report, stop)
        return
    async for name, count in retention.store.count(before):
        report.add(name, count)
        if stop.is_set():
            return


async def _prune(retention: Retention, report: _Report, stop: asyncio.Event) -> None:
    """Prunes until nothing is left, or until the process is asked to end."""
    total = Counter(runs=0)
    try:
        with shown_progress("holdfast prune: {:,} runs so far") as progress:
            await _count_pruned(retention, total, stop, progress)
    finally:
        for name, count in total.items():
            report.add(name, count)


async def _count_pruned(
    retention: Retention, total: Counter[str], stop: asyncio.Event, progress: Callable[[int], None]
) -> None:
    async with aclosing(retention.prune()) as pruning:
        async for pruned in pruning:
            total.update(pruned)
            progress(total["runs"])
            if stop.is_set():
                return
