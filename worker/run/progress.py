"""How far a run is: what it has used and called, and the step in hand. Only the step loop changes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from shared.domain.agents import Agent, Block
from shared.domain.events import StopReason
from shared.domain.ids import BlockId, StepId
from shared.domain.messages import ToolReturn
from shared.domain.runs import Step, Usage
from shared.domain.settling import PARKED
from shared.domain.tools import NOTHING_YET, NextCalls, Tool, TurnSoFar


@dataclass(kw_only=True)
class StepInHand:
    """The model call that is under way, or the last one, and the results of its tool calls."""

    step: Step
    asked: str
    """What the call asked, as text; its tokens are counted by it when the call is cut off."""
    returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results that exist already when the run is cut off."""

    def finish(self, usage: Usage) -> None:
        """The model has answered. The last step of a run gets the run's own stop reason instead."""
        self.step = msgspec.structs.replace(self.step, status="success", usage=usage, stop_reason=StopReason.ANSWERED)

    def wait(self) -> None:
        """Its tool calls wait for a person or for the client."""
        self.step = msgspec.structs.replace(self.step, stop_reason=PARKED.stop_reason)


class Instructions(NamedTuple):
    """The instructions of a model call, and what they were made of."""

    agent: Agent
    blocks: Sequence[Block]
    text: str


class KnownCalls(NamedTuple):
    """The calls that may come next, and what they were worked out of."""

    agent: Agent
    tools: Mapping[str, Tool]
    turn: TurnSoFar
    may_call: NextCalls


@dataclass(kw_only=True)
class RunProgress:
    """The progress of a run."""

    usage: Usage
    step_count: int
    blocks: Sequence[Block] = ()
    """The agent's memory, as the next step shows it to the model."""
    seen_memory: dict[BlockId, int] = field(default_factory=dict[BlockId, int])
    """Versions of the blocks that the model was shown when it gave the answer in hand."""
    instructions: Instructions | None = None
    """As they were made last."""
    next_calls: KnownCalls | None = None
    """As they were worked out last."""
    in_hand: StepInHand | None = None
    turn: TurnSoFar = NOTHING_YET
    """What the tool rules look at."""
    decided_call_ids: frozenset[str] | None = None
    """Ids of calls that were decided in the run's thread. None: they were not looked for yet."""
    open_returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results of calls that an earlier owner of the run left open, or that a decision has allowed."""
    has_run_folder: bool = False
    """A call of this owner has used the folder that calls of the run share (`scratch: run`)."""
    unstored: list[ToolReturn] = field(default_factory=list[ToolReturn])
    """Results of the answer in hand that the next worker would not find."""
    open_step_id: StepId | None = None
    """The step that these calls belong to."""

    def take_unstored(self) -> list[ToolReturn]:
        """These results, for who stores them now."""
        results, self.unstored = self.unstored, []
        return results

    def begin_step(self, step: Step, asked: str) -> StepInHand:
        """A model call begins."""
        self.in_hand = StepInHand(step=step, asked=asked)
        return self.in_hand

    def count(self, call: Usage) -> None:
        """A model call has ended, with what it used."""
        self.usage = self.usage.plus(call)
        self.step_count += 1

    def count_aside(self, call: Usage) -> None:
        """A call that is no step has ended: its tokens count, and the context is as it was."""
        total = self.usage.plus(call)
        self.usage = msgspec.structs.replace(total, context_tokens=self.usage.context_tokens)

    def count_lost(self, lost: Usage) -> None:
        """Counts calls whose worker died."""
        if lost.estimated:
            self.usage = self.usage.plus(lost)

    @property
    def step_id(self) -> StepId | None:
        """The step of the answer in hand. None: the run answers no message, or has not begun a step."""
        return self.open_step_id if self.in_hand is None else self.in_hand.step.id

    @property
    def returns(self) -> dict[str, ToolReturn]:
        """Results of the answer in hand, by tool call id."""
        return self.open_returns if self.in_hand is None else self.in_hand.returns
