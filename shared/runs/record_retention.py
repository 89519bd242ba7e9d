"""Retention of what is recorded beside runs: the audit log, and the accounts of budgets."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from shared.clock import Clock
from shared.sql.access.audit import AuditLog
from shared.sql.runs.budgets import BudgetStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AT_ONCE = 1000
"""Rows of one transaction."""

BATCHES_OF_A_ROUND = 20

PAUSE_S = 0.1
"""Between two transactions, so that those who write for somebody who waits get their turn."""


@dataclass(frozen=True, kw_only=True)
class RecordRetention:
    """Deletes records that are older than their number of days; 0 keeps them for ever. Two who do it at once do no
    harm."""

    audit: AuditLog
    budgets: BudgetStore
    clock: Clock
    audit_days: int
    budget_days: int

    @property
    def is_wanted(self) -> bool:
        """Whether anything is ever deleted."""
        return self.audit_days > 0 or self.budget_days > 0

    async def prune(self, batches: int | None = None, *, stop: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Deletes what is too old, `batches` of each kind at most, until `stop` says so; how many rows, by table.
        Raises `Unavailable`."""
        deleted = Counter[str]()
        for name, store, before in self._too_old():
            deleted[name] = await self._prune(store.prune, before, batches, stop)
        return deleted

    async def count(self) -> Counter[str]:
        """What `prune` would delete, by table. Raises `Unavailable`."""
        return Counter({name: await store.count_before(before) for name, store, before in self._too_old()})

    async def prune_some(self) -> None:
        """A worker's round. Raises `Unavailable`."""
        deleted = await self.prune(BATCHES_OF_A_ROUND)
        if any(deleted.values()):
            log.info("records_pruned", **deleted)

    def _too_old(self) -> Iterator[tuple[str, AuditLog | BudgetStore, datetime]]:
        """Each table of which anything is deleted, its store, and the moment before which a row is too old."""
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
