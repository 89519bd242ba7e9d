"""What the step loop works with: one claimed run, what it needs, and what it has come to so far."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from shared.clock import Clock, unix_ms
from shared.domain.agents import Agent, Block, ModelOptions
from shared.domain.approvals import Approval
from shared.domain.compaction import Compaction
from shared.domain.errors import CancelMode, CancelRequested
from shared.domain.events import Event
from shared.domain.ids import IdMaker
from shared.domain.lifecycle import RunTrigger
from shared.domain.messages import Message, NewMessage, ToolCall, ToolReturn
from shared.domain.prompt import render_system
from shared.domain.runs import Cause, Run, RunError, Step, Usage
from shared.domain.tools import Tool
from shared.sql.checkpoint_store import Checkpoint, CheckpointStore
from shared.sql.event_rows import LogTail
from shared.sql.inbox_store import InboxStore
from shared.sql.message_store import MessageStore
from worker.holding_on import hold_on
from worker.interruption import Interruption
from worker.models.provider import ModelProvider
from worker.publisher import Publisher
from worker.tools.invocation import ToolSandbox

Result = TypeVar("Result")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the step loop ended a run."""

    trigger: Literal[RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL]
    stop_reason: str
    cause: Cause | None = None
    error: RunError | None = None
    messages: list[NewMessage] = []
    """The final answer, if it is not stored yet."""
    step: Step | None = None
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """What the run changes in its thread, if it was there to compact it."""
    is_answer: bool = False
    """The model has answered everything that it was told: a message that comes meanwhile wants one more step."""


class Parked(msgspec.Struct, frozen=True):
    """The run waits for a person; its stream's last entries are stored."""

    tail: LogTail


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What every run of a worker shares."""

    models: ModelProvider
    sandbox: ToolSandbox
    messages: MessageStore
    checkpoints: CheckpointStore
    inbox: InboxStore
    clock: Clock
    ids: IdMaker
    tool_timeout_s: float
    patience_s: float
    """How long a run waits for a database that is away."""
    token_budget: int


@dataclass(kw_only=True)
class RunWork:
    """One run in its worker's hands."""

    run: Run
    agent: Agent
    blocks: Sequence[Block]
    tools: dict[str, Tool]
    services: RunServices
    publisher: Publisher
    interruption: Interruption
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    step: Step | None = None
    """The step in hand, while it has not ended."""
    asked: str = ""
    """What the call in hand has asked, as text: for counting its tokens should it be cut off."""
    lost_calls: int = 0
    """How often this step was begun by workers that died over it, after they had shown something."""
    lost_text: str = ""
    """What they had shown of their answers."""
    known_returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results of the answer in hand that are there already, should the run be cut off."""
    called: list[str] = field(default_factory=list[str])
    """Names of the tools that this run has called, in order; tool rules ask for them."""

    @property
    def at(self) -> int:
        """Now, in Unix milliseconds, for an event."""
        return unix_ms(self.services.clock.now())

    @property
    def model(self) -> str:
        """Handle of the model that this run asks."""
        return self.run.options.override_model or self.agent.model

    @property
    def options(self) -> ModelOptions:
        """How that model is asked."""
        return self.run.options.model_options or self.agent.options

    @property
    def system(self) -> str:
        """The instructions for this run's model calls."""
        return self.run.options.override_system or render_system(self.agent, self.blocks)

    def emit(self, *events: Event) -> None:
        self.publisher.emit(*events)

    async def history(self) -> list[Message]:
        """The conversation as it is stored, up to this run's turn."""
        messages = self.services.messages
        return await self.insist(lambda _: messages.context(self.run.thread_id, up_to_turn=self.run.turn))

    async def checkpoint(self, messages: list[NewMessage], *, starting: Sequence[ToolCall] = ()) -> None:
        """Makes messages durable, with the events that showed them."""
        async with self.publisher.saving() as tail:
            checkpoint = self._checkpoint(messages, tail)
            record = self.services.checkpoints.record
            await self.insist(lambda again: record(self.run, checkpoint, starting=starting, again=again))

    async def park(self, messages: list[NewMessage], asked: Sequence[Approval]) -> Parked:
        """Makes the answer durable together with what it waits for. Raises `CancelRequested` if a cancel was first."""
        async with self.publisher.saving() as tail:
            checkpoint = self._checkpoint(messages, tail)
            park = self.services.checkpoints.park
            return Parked(await self.insist(lambda _: park(self.run, checkpoint, asked)))

    async def insist(self, action: Callable[[bool], Awaitable[Result]]) -> Result:
        """Does what must be done as a whole, with patience for a database that is away (see `hold_on`)."""
        services = self.services
        with self.interruption.held_back():
            return await hold_on(action, for_s=services.patience_s, clock=services.clock)

    def stop_if_asked(self) -> None:
        """Between steps: raises `CancelRequested` when a cancel waits for the step to end."""
        if self.interruption.after_step:
            raise CancelRequested(CancelMode.AFTER_STEP)

    def _checkpoint(self, messages: list[NewMessage], tail: LogTail) -> Checkpoint:
        return Checkpoint(
            now=self.services.clock.now(),
            messages=messages,
            tail=tail,
            usage=self.usage,
            step_count=self.step_count,
            step=self.step,
        )
