"""Retention deletes the rows that old runs needed while they ran. The run itself stays, and so do its end, its messages
and the decisions on its calls. Workers prune a part at intervals, and `holdfast prune` prunes everything, both in small
steps.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog

from shared.concurrency import Clock
from shared.domain.lifecycle import TERMINAL
from shared.domain.settling import PARKED
from shared.sql.access.audit import AuditLog
from shared.sql.engine import Store
from shared.sql.run_tables import RETAINED_FOR_A_WHILE, callbacks, injected_messages, runs, webhook_deliveries
from shared.sql.runs.budgets import BudgetStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PAUSE_S = 0.1
"""The pause between two transactions, which lets other writers in."""

BATCHES_OF_A_ROUND = 20
"""Batches of one round. A worker that shuts down waits for its current round."""

RUNS_AT_ONCE = 100
"""The limit for one transaction, in runs. On SQLite, all other writers wait for it."""


class RetentionStore(Store):
    """Finds and prunes runs."""

    async def prune(self, before: datetime, now: datetime, limit: int = RUNS_AT_ONCE) -> Counter[str]:
        """Prunes the first runs of those that ended before a moment. Returns the number of deleted rows by table, and
        the number of pruned runs as "runs". Empty if no run is left, or other processes hold the locks of all that
        are."""
        first = _prunable(before).order_by(runs.c.completed_at).limit(limit)
        async with self._database.write() as connection:
            # Two concurrent prunes take different runs, and neither waits.
            found = await connection.execute(first.with_for_update(skip_locked=True))
            run_ids = found.scalars().all()
            if not run_ids:
                return Counter()
            pruned = Counter(runs=len(run_ids))
            for table in RETAINED_FOR_A_WHILE:
                deleted = await connection.execute(sa.delete(table).where(table.c.run_id.in_(run_ids)))
                pruned[table.name] = deleted.rowcount
            await connection.execute(sa.update(runs).where(runs.c.id.in_(run_ids)).values(pruned_at=now))
            return pruned

    async def count(self, before: datetime) -> AsyncGenerator[tuple[str, int]]:
        """Returns the number of rows that pruning would delete, by table, as `prune` counts them; the runs come first.
        It may take minutes."""
        of_the_runs = _prunable(before)
        async with self._database.read() as connection:
            counted = await connection.execute(sa.select(sa.func.count()).select_from(of_the_runs.subquery()))
            yield "runs", counted.scalar_one()
            for table in RETAINED_FOR_A_WHILE:
                query = sa.select(sa.func.count()).select_from(table).where(table.c.run_id.in_(of_the_runs))
                yield table.name, (await connection.execute(query)).scalar_one()


def _prunable(before: datetime) -> sa.Select[tuple[str]]:
    """Returns the query for the runs that ended before then and were not pruned yet, without those that still have
    something to deliver: a callback, an event for a webhook endpoint, or a message for the next run of the thread."""
    calls_back = sa.or_(
        *(
            sa.exists().where(outbox.c.run_id == runs.c.id, outbox.c.next_attempt_at.is_not(None))
            for outbox in (callbacks, webhook_deliveries)
        )
    )
    # All other undelivered messages were dropped with the end of their run.
    is_awaited = (injected_messages.c.delivered_at.is_(None), injected_messages.c.if_ended == "next")
    leaves_messages = sa.exists().where(injected_messages.c.run_id == runs.c.id, *is_awaited)
    # One expression, so that only the index of unpruned runs helps.
    ended_at = sa.case(
        (runs.c.status.not_in(TERMINAL), sa.null()),
        # The stream of a run that waited for a person was completed when it was parked. The decision ended it.
        (runs.c.stop_reason == PARKED.stop_reason, runs.c.updated_at),
        else_=runs.c.completed_at,
    )
    is_old = (runs.c.pruned_at.is_(None), runs.c.completed_at < before, ended_at < before)
    return sa.select(runs.c.id).where(*is_old, ~calls_back, ~leaves_messages)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Deletes the data of runs that ended longer ago than `keep`. Two processes may prune at once, and a crash leaves
    every run either unchanged or pruned."""

    store: RetentionStore
    clock: Clock
    keep: timedelta

    @property
    def before(self) -> datetime:
        """The time before which runs must have ended to be pruned."""
        return self.clock.now() - self.keep

    async def prune(self) -> AsyncGenerator[Counter[str]]:
        """Prunes until nothing is left to prune. Yields how many rows each transaction deleted, by table. Raises
        `Unavailable`."""
        before = self.before
        while pruned := await self.store.prune(before, self.clock.now()):
            yield pruned
            await asyncio.sleep(PAUSE_S)

    async def prune_some(self) -> int:
        """Prunes some runs, as one round of a worker. Returns how many. Raises `Unavailable`."""
        batches, total = 0, Counter[str]()
        async with aclosing(self.prune()) as pruning:
            async for pruned in pruning:
                total.update(pruned)
                batches += 1
                if batches == BATCHES_OF_A_ROUND:
                    break
        if total:
            log.info("runs_pruned", **total)
        return total["runs"]


# Retention of records beside runs: the audit log, and the accounts of budgets.


AT_ONCE = 1000
"""The rows of one transaction."""


@dataclass(frozen=True, kw_only=True)
class RecordRetention:
    """Deletes records that are older than their number of days; 0 keeps them forever. Two processes may do this at
    once."""

    audit: AuditLog
    budgets: BudgetStore
    clock: Clock
    audit_days: int
    budget_days: int

    @property
    def is_wanted(self) -> bool:
        """Returns whether any records are deleted."""
        return self.audit_days > 0 or self.budget_days > 0

    async def prune(self, batches: int | None = None, *, stop: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Deletes records that are too old, `batches` of each kind at most, until `stop` is true. Returns the number of
        rows by table. Raises `Unavailable`."""
        deleted = Counter[str]()
        for name, store, before in self._too_old():
            deleted[name] = await self._prune(store.prune, before, batches, stop)
        return deleted

    async def count(self) -> Counter[str]:
        """Returns the number of rows that `prune` would delete, by table. Raises `Unavailable`."""
        return Counter({name: await store.count_before(before) for name, store, before in self._too_old()})

    async def prune_some(self) -> None:
        """Prunes once, as one round of a worker. Raises `Unavailable`."""
        deleted = await self.prune(BATCHES_OF_A_ROUND)
        if any(deleted.values()):
            log.info("records_pruned", **deleted)

    def _too_old(self) -> Iterator[tuple[str, AuditLog | BudgetStore, datetime]]:
        """Yields each table with a retention limit, its store, and the time before which its rows are deleted."""
        kinds = (("audit_events", self.audit, self.audit_days), ("budget_totals", self.budgets, self.budget_days))
        for name, store, days in kinds:
            if days:
                yield name, store, self.clock.now() - timedelta(days=days)

    async def _prune(
        self,
        delete: Callable[[datetime, int], Awaitable[int]],
        before: datetime,
        batches: int | None,
        stop: Callable[[], bool],
    ) -> int:
        total = done = 0
        while (batches is None or done < batches) and not stop():
            deleted = await delete(before, AT_ONCE)
            total, done = total + deleted, done + 1
            if deleted < AT_ONCE:
                break
            await asyncio.sleep(PAUSE_S)
        return total
