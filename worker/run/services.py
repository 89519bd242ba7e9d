"""What every run of a worker shares: the stores, the models, the tools, and who is told what happens to a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import Clock
from shared.domain.ids import IdMaker
from shared.domain.runs import Run
from shared.packages.environments import PackageEnvironments
from shared.redis.event_log import EventLog
from shared.secret_keys import SecretKeys
from shared.sql.definitions.agents import AgentStore
from shared.sql.definitions.blocks import MemoryStore
from shared.sql.history.message_lists import MessageLists
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.checkpoints import CheckpointStore
from shared.sql.runs.event_blocks import EventStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import StepStore
from worker.models.registry import Models
from worker.run.budgets import BudgetService
from worker.run.interruption import Interruption
from worker.run.observation import RunObservation
from worker.run.observed import ObserverOf
from worker.run.publisher import Publisher
from worker.tools.invocation import ToolSandbox


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What every run of a worker shares."""

    models: Models
    sandbox: ToolSandbox
    packages: PackageEnvironments
    memory: MemoryStore
    archival: ArchivalMemory
    message_lists: MessageLists
    agents: AgentStore
    secret_keys: SecretKeys
    messages: MessageStore
    runs: RunStore
    approvals: ApprovalStore
    checkpoints: CheckpointStore
    settlements: SettlementStore
    events: EventStore
    inbox: InboxStore
    steps: StepStore
    event_log: EventLog
    clock: Clock
    ids: IdMaker
    stores_first: bool
    """Whether events go to SQL before they are shown (see `Publisher`)."""
    tool_timeout_s: float
    patience_s: float
    """Seconds that a run repeats a write while the database is away."""
    budgets: BudgetService
    observers: Sequence[ObserverOf] = ()
    """Who is told what happens to a run."""

    def publisher(self, run: Run, worker: str, interruption: Interruption) -> Publisher:
        """The publisher of a run that `worker` has just claimed, with its observation. It stops the run when the log
        has a newer owner."""
        return Publisher(
            run,
            event_log=self.event_log,
            events=self.events,
            checkpoints=self.checkpoints,
            clock=self.clock,
            interruption=interruption,
            observation=RunObservation(
                run, worker=worker, clock=self.clock, interruption=interruption, observers=self.observers
            ),
            stores_first=self.stores_first,
        )
