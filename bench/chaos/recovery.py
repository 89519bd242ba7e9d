"""Measures how long a run takes to continue in another worker: from its worker's fault to the next fence in SQL.

The leases in Redis, read just before the fault, show the worker's runs. SQL shows when another worker has them.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from redis.exceptions import RedisError

from bench.chaos.schedule import LOSES_WORKER, Fault
from shared.domain.lifecycle import RunStatus
from shared.redis import keys
from shared.sql.engine import Database
from shared.sql.run_tables import runs

GIVE_UP_S = 60.0
NEVER = float("inf")
BEGINS_ALONE_AFTER = 2
"""If a run has lost this many workers before it stored a step, it waits until a worker has nothing else to do."""


class Holding(NamedTuple):
    """A run's row in SQL."""

    fence: int
    status: str
    attempts: int
    """Workers that have had it since it stored a step, including the current one."""
    waits_until: datetime | None
    """The time until which it waits without a worker."""

    @property
    def is_running(self) -> bool:
        return self.status == RunStatus.RUNNING and self.waits_until is None


@dataclass(frozen=True)
class Recovered:
    """One run that another worker took over."""

    fault: Fault
    run_id: str
    began_at: float
    took_s: float
    begins_alone: bool

    @property
    def until(self) -> float:
        return self.began_at + min(self.took_s, GIVE_UP_S)


@dataclass
class Recoveries:
    """Measures recoveries."""

    database: Database
    redis: Callable[[], Any]
    """Returns a client of the current Redis, which a failover replaces."""
    measured: list[Recovered] = field(default_factory=list[Recovered])
    unknown: int = 0
    """Faults whose runs are unknown, because Redis did not return the leases."""

    async def held_by(self, pid: int) -> dict[str, Holding]:
        """Returns the running runs that the worker with this process id holds."""
        try:
            async with asyncio.timeout(0.3):
                held = await self._leased_by(pid)
        except (RedisError, OSError):
            self.unknown += 1
            return {}
        return {run_id: holding for run_id, holding in (await self._look(held)).items() if holding.is_running}

    async def watch(self, fault: Fault, held: dict[str, Holding], began_at: float, every_s: float) -> None:
        """Waits until each of these runs has a newer fence or has ended."""
        waiting = dict(held)
        first = True
        while waiting:
            now = time.monotonic()
            for run_id, found in (await self._look(list(waiting))).items():
                before = waiting[run_id]
                if found.fence > before.fence or not found.is_running:
                    # A run that had ended by the first look has ended by itself.
                    if not (first and found.fence == before.fence):
                        self.measured.append(_recovered(fault, run_id, before, began_at, time.monotonic() - began_at))
                    del waiting[run_id]
            first = False
            if now - began_at > GIVE_UP_S:
                self.measured += [_recovered(fault, *one, began_at, NEVER) for one in waiting.items()]
                return
            await asyncio.sleep(every_s)

    async def _leased_by(self, pid: int) -> list[str]:
        redis = self.redis()
        leases: list[bytes] = [key async for key in redis.scan_iter(match=keys.LEASE_PREFIX + "*", count=1000)]
        owners: list[bytes | None] = await redis.mget(leases) if leases else []
        ours = f"-{pid}-".encode()
        held = [key for key, owner in zip(leases, owners, strict=True) if owner is not None and ours in owner]
        if not held and any(b"-" not in owner for owner in owners if owner is not None):
            self.unknown += 1
        return [keys.parse_job_id(key.decode().removeprefix(keys.LEASE_PREFIX))[0] for key in held]

    async def _look(self, run_ids: list[str]) -> dict[str, Holding]:
        if not run_ids:
            return {}
        columns = runs.c.id, runs.c.fence, runs.c.status, runs.c.attempts_without_progress, runs.c.waits_until
        query = sa.select(*columns).where(runs.c.id.in_(run_ids))
        async with self.database.read() as connection:
            return {run_id: Holding(*rest) for run_id, *rest in await connection.execute(query)}


def _recovered(fault: Fault, run_id: str, held: Holding, began_at: float, took_s: float) -> Recovered:
    loses_worker = fault.kind in LOSES_WORKER
    return Recovered(fault, run_id, began_at, took_s, loses_worker and held.attempts >= BEGINS_ALONE_AFTER)


def percentile(figures: list[float], share: float) -> float:
    """Returns the figure below which `share` of all figures are."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
