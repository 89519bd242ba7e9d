"""Workers inside a test's process. Each executes one run with the product's executor, and a test may kill it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from arq.connections import ArqRedis

from shared.concurrency import PATIENCE_S, Clock, SystemClock
from shared.domain.code_agents import ANY_VERSION, OwnVersions
from shared.domain.ids import RunId
from shared.domain.limits import Budgets
from shared.domain.runs import AttemptLimits, Run, RunKind
from shared.redis.connection import CancelSignal
from shared.redis.event_log import EventLog
from shared.redis.process_presence import VersionPresence
from shared.redis.queue import RunQueue
from shared.sql.runs.budgets import BudgetStore
from tests.kit.runs.stored_runs import IDS, Stores
from worker.run.execute_run import ActiveRuns, RunExecutor
from worker.run.progress import BudgetService
from worker.run.run_handle import Body, RunServices
from worker.run.settle import RunFinisher


async def no_children(_: Run) -> None:
    """For a worker whose runs have no children."""


@dataclass
class Workers:
    """Workers that share stores and a Redis, and have the same bodies."""

    stores: Stores
    redis: ArqRedis
    bodies: Mapping[RunKind, Body]
    budgets: Budgets = field(default_factory=Budgets)
    numbers: "count[int]" = field(default_factory=count)
    run_timeout_s: float = 60
    code: OwnVersions = ANY_VERSION
    clock: Clock = field(default_factory=SystemClock)

    def services(self) -> RunServices:
        """The services that the runs of a worker share."""
        stores, clock = self.stores, self.clock
        return RunServices(
            messages=stores.messages,
            runs=stores.runs,
            checkpoints=stores.checkpoints,
            settlements=stores.settlements,
            events=stores.events,
            inbox=stores.inbox,
            children=stores.children,
            event_log=EventLog(self.redis, ttl_s=3600),
            budgets=BudgetService(
                budgets=self.budgets,
                price_of=lambda _model, _usage: None,
                store=BudgetStore(stores.database),
                clock=clock,
            ),
            clock=clock,
            ids=IDS,
            stores_first=False,
            patience_s=PATIENCE_S,
        )

    async def begin(self, run_id: RunId) -> "OneWorker":
        """Starts a worker that executes the newest dispatch of the run."""
        services, runs = self.services(), self.stores.runs
        active = ActiveRuns(signal=CancelSignal(self.redis), runs=runs, clock=services.clock, look_every_s=0.02)
        executor = RunExecutor(
            worker=f"worker-{next(self.numbers)}",
            services=services,
            bodies=self.bodies,
            active_runs=active,
            finisher=RunFinisher(services=services, queue=RunQueue(self.redis), on_change=no_children),
            limits=AttemptLimits.of(10),
            run_timeout_s=self.run_timeout_s,
            start_slots=asyncio.Semaphore(),
            code=self.code,
            taker_of=VersionPresence(self.redis).taker_of,
        )
        dispatch = (await runs.look_up(run_id)).dispatch
        return OneWorker(active, executor, asyncio.create_task(self._execute(active, executor, run_id, dispatch)))

    async def _execute(self, active: ActiveRuns, executor: RunExecutor, run_id: RunId, dispatch: int) -> None:
        async with active.listening():
            await executor.execute_run(run_id, dispatch)


@dataclass(frozen=True)
class OneWorker:
    """One worker at work."""

    active: ActiveRuns
    executor: RunExecutor
    work: "asyncio.Task[None]"

    async def die(self) -> None:
        """Kills the worker: it stores nothing of the run any more."""
        self.work.cancel()
        await asyncio.wait([self.work])

    async def ended(self) -> BaseException | None:
        """The exception with which it left the run. None if it has finished."""
        await asyncio.wait([self.work], timeout=30)
        return self.work.exception()
