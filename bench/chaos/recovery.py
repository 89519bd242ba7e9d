"""How long it takes until a run goes on elsewhere: from the fault that meets its worker to the next fence in SQL.

Which runs a worker holds is said by its leases in Redis, read just before. SQL says when somebody else has the run.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from redis.exceptions import RedisError

from bench.chaos.schedule import Fault
from shared.domain.lifecycle import RunStatus
from shared.redis import keys
from shared.sql.engine import Database
from shared.sql.run_tables import runs

GIVE_UP_S = 60.0
NEVER = float("inf")


@dataclass(frozen=True)
class Recovered:
    """One run that changed hands."""

    fault: Fault
    run_id: str
    began_at: float
    took_s: float

    @property
    def until(self) -> float:
        return self.began_at + min(self.took_s, GIVE_UP_S)


@dataclass
class Recoveries:
    """Measures."""

    database: Database
    redis: Callable[[], Any]
    """Gives a client of the present Redis: a failover puts another one in its place."""
    measured: list[Recovered] = field(default_factory=list[Recovered])
    unknown: int = 0
    """Faults whose runs could not be told, because Redis did not say who held them."""

    async def held_by(self, pid: int) -> dict[str, int]:
        """The running runs that the worker with this number holds, with their fences."""
        try:
            async with asyncio.timeout(0.3):
                held = await self._leased_by(pid)
        except (RedisError, OSError):
            self.unknown += 1
            return {}
        return {run_id: fence for run_id, (fence, status) in (await self._look(held)).items() if _is_running(status)}

    async def watch(self, fault: Fault, held: dict[str, int], began_at: float, every_s: float) -> None:
        """Waits until each of these runs has a newer fence or has ended."""
        waiting = dict(held)
        first = True
        while waiting:
            now = time.monotonic()
            seen = await self._look(list(waiting))
            for run_id, (fence, status) in seen.items():
                if fence > waiting[run_id] or not _is_running(status):
                    # One that had ended by the first look has ended by itself.
                    if not (first and fence == waiting[run_id]):
                        self.measured.append(Recovered(fault, run_id, began_at, time.monotonic() - began_at))
                    del waiting[run_id]
            first = False
            if now - began_at > GIVE_UP_S:
                self.measured += [Recovered(fault, run_id, began_at, NEVER) for run_id in waiting]
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

    async def _look(self, run_ids: list[str]) -> dict[str, tuple[int, str]]:
        if not run_ids:
            return {}
        query = sa.select(runs.c.id, runs.c.fence, runs.c.status).where(runs.c.id.in_(run_ids))
        async with self.database.read() as connection:
            return {row.id: (row.fence, row.status) for row in await connection.execute(query)}


def _is_running(status: str) -> bool:
    return status == RunStatus.RUNNING


def percentile(figures: list[float], share: float) -> float:
    """The figure below which that share of all lies."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
