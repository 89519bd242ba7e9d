"""A worker on the queue whose runs do nothing but wait until the test lets them end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from arq.connections import ArqRedis
from redis.asyncio.connection import BlockingConnectionPool

from shared.concurrency import background
from shared.domain.errors import LeaseLost, RunInterrupted, ShutdownRequested
from shared.domain.ids import RunId
from shared.redis import keys
from tests.kit.wait_until import LONG_LEASE_S
from worker.queue.queue_worker import QueueWorker
from worker.run.interruption import Interruption


class WaitingRuns:
    """The runs of a worker, and how each ended. They may ignore a shutdown."""

    def __init__(self, *, ignore_shutdown: bool = False) -> None:
        self._ignores_shutdown = ignore_shutdown
        self.started: list[tuple[RunId, int]] = []
        self.completed: list[RunId] = []
        self.interrupted: list[tuple[RunId, type[RunInterrupted]]] = []
        self.may_end = asyncio.Event()
        self.owned = True
        """Whether SQL confirms the fences of these runs."""
        self.failure: Exception | None = None
        """The exception that every run raises, if any."""
        self._in_hand: dict[RunId, Interruption] = {}

    async def execute(self, run_id: RunId, dispatch: int) -> None:
        interruption = self._in_hand[run_id] = Interruption()
        self.started.append((run_id, dispatch))
        try:
            async with interruption.interrupting(run_id):
                await self.may_end.wait()
            if self.failure is not None:
                raise self.failure
            self.completed.append(run_id)
        except RunInterrupted as error:
            self.interrupted.append((run_id, type(error)))
            raise
        finally:
            del self._in_hand[run_id]

    def lease_lost(self, job_id: str) -> None:
        run_id, _ = keys.parse_job_id(job_id)
        if run_id in self._in_hand:
            self._in_hand[run_id].interrupt(LeaseLost())

    def shut_down(self) -> None:
        for interruption in () if self._ignores_shutdown else self._in_hand.values():
            interruption.interrupt(ShutdownRequested())

    async def still_ours(self, job_id: str) -> bool:
        return self.owned


def make_worker(
    redis: ArqRedis, runs: WaitingRuns, *, max_runs: int = 10, lease_s: float = LONG_LEASE_S
) -> QueueWorker:
    return QueueWorker(
        redis=redis,
        # A thread of its own renews leases unless Redis lives on this loop.
        is_embedded=not isinstance(redis.connection_pool, BlockingConnectionPool),
        name=f"worker-{uuid4().hex[:8]}",
        execute=runs.execute,
        max_runs=max_runs,
        lease_s=lease_s,
        on_lease_lost=runs.lease_lost,
        still_ours=runs.still_ours,
        on_shutdown=runs.shut_down,
    )


@asynccontextmanager
async def serving(worker: QueueWorker) -> AsyncGenerator[None]:
    """The worker serves while the body runs, and is drained afterwards."""
    async with background(worker.serve(), name="worker"):
        yield
        await worker.drain(0, hand_over_s=5)
