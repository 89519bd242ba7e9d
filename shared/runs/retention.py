"""Pruning in small steps, for the workers, which do some now and then, and `holdfast prune`, which does all."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from shared.clock import Clock
from shared.sql.runs.retention import RetentionStore

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PAUSE_S = 0.1
"""Between two transactions, so that those who write for somebody who waits get their turn."""

BATCHES_OF_A_ROUND = 20
"""A worker that ends waits for the round that it is in."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Deletes what runs left behind that ended longer ago than `keep`. Two who do it at once do no harm, and whoever
    is torn away in the middle leaves every run either as it was or pruned."""

    store: RetentionStore
    clock: Clock
    keep: timedelta

    @property
    def before(self) -> datetime:
        """Runs that ended before this moment are to be pruned."""
        return self.clock.now() - self.keep

    async def prune(self) -> AsyncGenerator[Counter[str]]:
        """Prunes until none is left; gives how many rows each transaction deleted, by table. Raises `Unavailable`."""
        before = self.before
        while pruned := await self.store.prune(before, self.clock.now()):
            yield pruned
            await asyncio.sleep(PAUSE_S)

    async def prune_some(self) -> int:
        """A worker's round: prunes some of what is left. How many runs it pruned. Raises `Unavailable`."""
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
