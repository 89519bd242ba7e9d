"""How far an agent's loop is, beyond what every run has: what the model has seen and called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.domain.agents import Agent, Block
from shared.domain.ids import BlockId
from shared.domain.tools import NOTHING_YET, NextCalls, Tool, TurnSoFar


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
class AgentProgress:
    """The progress of an agent's loop."""

    blocks: Sequence[Block] = ()
    """The agent's memory, as the next step shows it to the model."""
    seen_memory: dict[BlockId, int] = field(default_factory=dict[BlockId, int])
    """Versions of the blocks that the model was shown when it gave the answer in hand."""
    instructions: Instructions | None = None
    """As they were made last."""
    next_calls: KnownCalls | None = None
    """As they were worked out last."""
    turn: TurnSoFar = NOTHING_YET
    """What the tool rules look at."""
    decided_call_ids: frozenset[str] | None = None
    """Ids of calls that were decided in the run's thread. None: they were not looked for yet."""
    has_run_folder: bool = False
    """A call of this owner has used the folder that calls of the run share (`scratch: run`)."""
