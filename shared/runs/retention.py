"""Prunes old data in small steps. Workers prune a part at intervals, and `holdfast prune` prunes everything."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from shared.concurrency import Clock
from shared.sql.access.audit import AuditLog
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.retention import RetentionStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PAUSE_S = 0.1
"""The pause between two transactions, which lets other writers in."""

BATCHES_OF_A_ROUND = 20
"""Batches of one round. A worker that shuts down waits for its current round."""


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
    """Deletes records that are older than their number of days; 0 keeps them forever. Two processes may do so at
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
        """Returns what `prune` would delete, by table. Raises `Unavailable`."""
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
