"""A run that a worker has: the product's executor, publisher and finisher. A test chooses the run's next step."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, cast

from arq.connections import ArqRedis

from shared.concurrency import PATIENCE_S, Patience
from shared.domain.errors import LogClosed, ShutdownRequested
from shared.domain.events import TextChunk
from shared.domain.ids import MessageId, RunId, StepId
from shared.domain.lifecycle import RunTrigger
from shared.domain.limits import Budgets
from shared.domain.runs import AttemptLimits
from shared.redis.event_log import EventLog
from shared.redis.process_presence import VersionPresence
from shared.redis.queue import RunQueue
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from tests.kit.clocks import FrozenClock
from tests.kit.protocol.round_trips import Party, RoundTrips
from tests.kit.protocol.witness import KnownRun, Witness
from tests.kit.runs.executing import no_children
from tests.kit.runs.stored_runs import IDS, Stores, answer, call, request_of, run_end
from worker.run.execute_run import ActiveRuns, RunExecutor
from worker.run.progress import BudgetService
from worker.run.run_handle import Body, Outcome, Parked, RunHandle, RunServices
from worker.run.settle import RunFinisher

Order = Literal["checkpoint", "record_intent", "take_new_fence", "park", "settle", "hand over"]

LOG_TTL_S = 3600

_TRIGGERS = (RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL)


@dataclass
class Surroundings:
    """The parts that all parties of one example share."""

    redis: ArqRedis
    stores: Stores
    witness: Witness
    clock: FrozenClock
    trips: RoundTrips
    numbers: Iterator[int]
    """For the names of runs: the queue orders by name what was dispatched at one moment, so each example needs its own,
    and all of them in one order."""
    stores_first: bool = False
    runs: list[KnownRun] = field(default_factory=list[KnownRun])
    losses: int = 0
    """How often Redis has lost leases."""
    lost_at_ms: int = 0
    tasks: list["asyncio.Task[None]"] = field(default_factory=list["asyncio.Task[None]"])

    def start(self, work: Any, *, name: str) -> None:
        """Starts a party, which waits at its first round trip."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self.trips.note_end)
        self.tasks.append(task)


class Owner:
    """Executes one dispatch of a run. It may have lost the run without knowing it."""

    def __init__(self, around: Surroundings, active_runs: ActiveRuns, host: Party, run_id: RunId, number: int) -> None:
        self.party = Party(f"{host.name} with {run_id}:{number}", host)
        self.run_id = run_id
        self.number = number
        self.handle: RunHandle | None = None
        """None until the run is claimed and its log adopted, and again when the run ends."""
        self._active_runs = active_runs
        self._around = around
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._numbers = count()

    @property
    def is_idle(self) -> bool:
        """Whether it has the run and is idle."""
        return self.handle is not None and self._orders.empty() and self.party.goes_on

    def emit(self, number: int = 1) -> None:
        """Shows something, whatever the run is doing."""
        for _ in range(number if self.handle is not None else 0):
            name = f"{self.party.name} {next(self._numbers)}"
            try:
                cast("RunHandle", self.handle).emit(TextChunk(0, StepId("step"), MessageId(name), name))
            except LogClosed:
                return

    def tell(self, order: Order) -> None:
        """The run's next step."""
        self._orders.put_nowait(order)

    async def execute(self) -> None:
        """As `RunExecutor.execute_run`."""
        far, stores, around = self._far, self._around.stores, self._around
        log = far(EventLog(around.redis, ttl_s=LOG_TTL_S, owner=self.party.name.split()[0]))
        patience = Patience(PATIENCE_S, around.clock)
        services = RunServices(
            messages=far(stores.messages),
            runs=patience.applied_to(far(stores.runs), RunStore.claim),
            checkpoints=far(stores.checkpoints),
            settlements=patience.applied_to(far(stores.settlements), SettlementStore.settle),
            events=far(stores.events),
            inbox=far(stores.inbox),
            children=far(stores.children),
            event_log=log,
            clock=around.clock,
            ids=IDS,
            stores_first=around.stores_first,
            patience_s=PATIENCE_S,
            budgets=BudgetService(
                budgets=Budgets(),
                price_of=lambda _model, _usage: None,
                store=far(BudgetStore(stores.database)),
                clock=around.clock,
            ),
        )
        queue = far(RunQueue(around.redis))
        executor = RunExecutor(
            worker=self.party.name,
            services=services,
            bodies={"message": _OrderedBody(self)},
            active_runs=self._active_runs,
            finisher=RunFinisher(services=services, queue=queue, on_change=no_children),
            limits=AttemptLimits.of(1000),
            run_timeout_s=1e9,
            start_slots=asyncio.Semaphore(),
            taker_of=VersionPresence(around.redis).taker_of,
        )
        await executor.execute_run(self.run_id, self.number)

    def _far(self, service: Any) -> Any:
        return self._around.trips.to(service, self.party)

    async def obey(self, handle: RunHandle) -> Outcome | Parked:
        """The work of the run's body."""
        self.handle = handle
        try:
            while True:
                outcome = await self._do(handle, await self._orders.get())
                if outcome is not None:
                    return outcome
        finally:
            self.handle = None

    async def _do(self, handle: RunHandle, order: Order) -> Outcome | Parked | None:
        name = f"{self.party.name} {next(self._numbers)}"
        match order:
            case "checkpoint":
                await handle.checkpoint()
            case "record_intent":
                await handle.calls.starting(call(name))
            case "take_new_fence":
                # As if the numbers of the present one were used up.
                await cast("Any", handle.publisher)._take_new_fence()
            case "park":
                waits = call(name, needs_approval=True)
                asking = answer("may I?", waits)
                return await handle.park([asking], [request_of(handle.run, asking, waits)])
            case "settle":
                return Outcome(end=run_end(_TRIGGERS[next(self._numbers) % len(_TRIGGERS)]))
            case "hand over":
                raise ShutdownRequested
        return None


class _OrderedBody(Body):
    """A body whose work comes from a test."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        return await self._owner.obey(handle)
