"""A run of an agent: the run's handle, the agent with its tools, and the progress of its loop."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from shared.concurrency import beside
from shared.domain.agents import Agent, Block, ModelOptions, characters_of_memory, requires_approval
from shared.domain.effects import effect_key
from shared.domain.events import ChildStarted, ChildWaits, Event, child_key
from shared.domain.ids import AgentId, BlockId
from shared.domain.messages import ApprovalResponse, Message, ToolCall, ToolReturns, text_to_count, weight
from shared.domain.models import continues_answers
from shared.domain.run_trees import CallWaits
from shared.domain.runs import Run, Step, Usage
from shared.domain.settling import BegunAnswer, open_calls
from shared.domain.tool_catalog import SPEAKS, is_base_tool
from shared.domain.tools import NOTHING_YET, NextCalls, Tool, TurnSoFar, missing_calls, next_calls, turn_so_far
from shared.secret_keys import SecretKeys
from shared.sql.definitions.agents import AgentStore, EquippedAgent
from shared.sql.history.messages import ContextOfRun
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.steps import StepStore
from worker.models.registry import Models
from worker.run.observation import RunObservation
from worker.run.run_handle import AwaitsRuns, Body, Outcome, Parked, RunHandle
from worker.runners.tool_runner import ToolRunners
from worker.tools.outcomes import ToolSandbox

Result = TypeVar("Result")

# The services that only runs of agents use: the agents, the models, the tools.


@dataclass(frozen=True, kw_only=True)
class AgentServices:
    """The services that a worker's runs of agents share."""

    models: Models
    sandbox: ToolSandbox
    runners: ToolRunners
    agents: AgentStore
    secret_keys: SecretKeys
    approvals: ApprovalStore
    steps: StepStore


AS_THEY_ARE_NOW = ("tool_rules", "extra", "approval_expires_s", "on_approval_expiry")
"""Fields of an agent whose changes apply to a running run: which calls are allowed, and which need an approval."""


class Equipment:
    """The tools, rules and secrets of a run's agent.

    If a client enables an approval gate, detaches a tool or changes a rule while the run is running, the change applies
    from the next call on. The agent's instructions, model and secrets stay as they were at the claim.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.tools: Mapping[str, Tool] = {}
        self.secrets: Mapping[str, str] = {}
        self._are_secrets_open = False

    def renew(self, now: EquippedAgent, keys: SecretKeys, runners: ToolRunners) -> None:
        """Applies the agent's current tools and rules. Raises `UnreadableSecret` if a tool needs a secret that cannot
        be read."""
        self.agent = replace(self.agent, **{name: getattr(now.agent, name) for name in AS_THEY_ARE_NOW})
        self.tools = {tool.name: tool for tool in now.tools}
        if not self._are_secrets_open and any(runners.of(tool).traits.sees_secrets for tool in now.tools):
            self.secrets = keys.open_all(self.agent.id, self.agent.tool_environment)
            self._are_secrets_open = True


# The progress of an agent's loop: what the model has seen and called.


class Instructions(NamedTuple):
    """The instructions of a model call, and their sources."""

    agent: Agent
    blocks: Sequence[Block]
    text: str


class KnownCalls(NamedTuple):
    """The calls that are allowed next, and their sources."""

    agent: Agent
    tools: Mapping[str, Tool]
    turn: TurnSoFar
    may_call: NextCalls


@dataclass(kw_only=True)
class AgentProgress:
    """The progress of an agent's loop."""

    blocks: Sequence[Block] = ()
    """The agent's memory, as the next step sends it to the model."""
    seen_memory: dict[BlockId, int] = field(default_factory=dict[BlockId, int])
    """Versions of the blocks that the model had seen when it gave the current answer."""
    instructions: Instructions | None = None
    """The latest instructions, as a cache."""
    next_calls: KnownCalls | None = None
    """The latest allowed calls, as a cache."""
    turn: TurnSoFar = NOTHING_YET
    """The state for which the tool rules are evaluated."""
    decided_call_ids: frozenset[str] | None = None
    """Ids of the decided calls of the run's thread. None if they are not read yet."""
    calls_made: int = 0
    """Calls of the agent's own tools that the run has made or refused, with stored results."""
    refused_calls: frozenset[str] = frozenset()
    """Ids of the current answer's calls beyond the run's limit."""
    waits: list[CallWaits] = field(default_factory=list[CallWaits])
    """The calls of the current answer that wait for other runs."""
    has_run_folder: bool = False
    """Whether a call of this owner has used the folder that calls of the run share (`scratch: run`)."""


@dataclass(frozen=True, kw_only=True)
class AgentContext:
    """One run of an agent: the run itself, the agent with its tools, and the progress of its loop."""

    handle: RunHandle
    services: AgentServices
    equipment: Equipment
    progress: AgentProgress

    @property
    def agent(self) -> Agent:
        """The agent as it was when this owner claimed the run, with its current rules for calls."""
        return self.equipment.agent

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's tools, by name."""
        return self.equipment.tools

    @property
    def secrets(self) -> Mapping[str, str]:
        """The agent's decrypted secrets, which its tools get, and which are removed from their results."""
        return self.equipment.secrets

    @property
    def blocks(self) -> Sequence[Block]:
        """The agent's memory as the model has seen it."""
        return self.progress.blocks

    @property
    def seen_memory(self) -> dict[BlockId, int]:
        """The version of each block that the model has seen."""
        return self.progress.seen_memory

    @property
    def run(self) -> Run:
        """The run as it was claimed, with its owner's current fence."""
        return self.handle.run

    @property
    def observation(self) -> RunObservation:
        """Records what happens to the run."""
        return self.handle.observation

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """See `RunHandle.writing`."""
        return self.handle.writing()

    async def whole(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """See `RunHandle.whole`."""
        return await self.handle.whole(action)

    @property
    def at(self) -> int:
        """The current time for an event, in Unix milliseconds."""
        return self.handle.at

    def emit(self, *events: Event) -> None:
        """See `RunHandle.emit`."""
        self.handle.emit(*events)

    def idempotency_key(self, call: ToolCall) -> str:
        """The key of a call of the current answer. It is the same in every attempt, and unique to this call."""
        return effect_key(self.run.id, self.handle.progress.step_id, call.id)

    def started_agents(self, call: ToolCall) -> Collection[AgentId]:
        """The agents for which this call has started a run, according to the run's log."""
        return self.handle.shown.started_agents[call.id]

    def emit_once(self, event: ChildStarted | ChildWaits) -> None:
        """Shows an event about a child, unless an earlier owner of the run has shown it in this step."""
        if child_key(event) not in self.handle.shown.shown_children:
            self.handle.emit(event)

    @property
    def model(self) -> str:
        """The handle of this run's model."""
        return self.run.options.override_model or self.agent.model

    @property
    def options(self) -> ModelOptions:
        """The options of that model."""
        return self.run.options.model_options or self.agent.options

    @property
    def system(self) -> str:
        """The instructions for this run's model calls. Cached, because each step reads them several times and the
        memory may be long."""
        agent, blocks, made = self.agent, self.progress.blocks, self.progress.instructions
        if made is None or made.agent is not agent or made.blocks is not blocks:
            made = self.progress.instructions = Instructions(agent, blocks, self.run.instructions(agent, blocks))
        return made.text

    async def make_instructions(self) -> None:
        """Fills the cache of `system` off the event loop if the memory is long, once the agent is read."""
        await beside(lambda: self.system, characters_of_memory(self.progress.blocks))

    def next_calls(self) -> NextCalls:
        """Returns the agent's tools that the model may call now, by the agent's rules. Cached, because each piece of a
        call may need them, and there may be a thousand pieces and tools."""
        agent, tools, turn, known = self.agent, self.tools, self.progress.turn, self.progress.next_calls
        if known is None or known.agent is not agent or known.tools is not tools or known.turn is not turn:
            may_call = next_calls(agent.tool_rules, tools, turn)
            known = self.progress.next_calls = KnownCalls(agent, tools, turn, may_call)
        return known.may_call

    @property
    def must_choose(self) -> bool:
        """Whether the run's own choice of tools demands a call in the next answer: in the run's first answer, and in
        the one after a reminder."""
        choice, steps, turn = self.run.options.tool_choice, self.handle.progress.step_count, self.progress.turn
        if choice is None or choice.mode != "required":
            return False
        return steps == 0 or (steps == 1 and turn.answered and not turn.called)

    @property
    def tool_names(self) -> list[str]:
        """The names of the agent's tools and of the request's."""
        return list(dict.fromkeys([*self.tools, *(tool.name for tool in self.run.options.client_tools)]))

    def permits(self, name: str) -> bool:
        """Whether the run's own choice of tools permits calls of this tool."""
        choice = self.run.options.tool_choice
        return choice is None or choice.permits(name)

    @property
    def may_call_no_more(self) -> bool:
        """Whether the run has reached its limit of calls of the agent's own tools."""
        most = self.run.options.max_tool_calls
        return most is not None and self.progress.calls_made >= most

    def count_calls(self, calls: Sequence[ToolCall]) -> None:
        """Refuses the calls of an answer beyond the run's limit, by their order, so that another owner refuses the same
        ones. Calls by which the agent speaks do not count."""
        most = self.run.options.max_tool_calls
        if most is not None:
            counted = [call.id for call in calls if call.speech is None]
            self.progress.refused_calls = frozenset(counted[max(most - self.progress.calls_made, 0) :])
            self.progress.calls_made += len(counted)

    def speaks_by(self, name: str) -> bool:
        """Returns whether a call of this tool is shown as a message of the agent."""
        tool = self.tools.get(name)
        return name == SPEAKS and tool is not None and is_base_tool(tool) and self.run.options.speech_as_text

    def asks_a_person(self, name: str) -> bool:
        """Returns whether a call of this tool needs an approval."""
        tool = self.tools.get(name)
        if tool is None:
            return False
        asks_always = self.services.runners.of(tool).traits.asks_always
        return asks_always or requires_approval(self.agent, name, tool.default_requires_approval)

    def missing_calls(self) -> list[str]:
        """Returns the agent's tools that must be called before the run may end."""
        if self.may_call_no_more:
            return []
        return missing_calls(self.agent.tool_rules, self.tools, self.progress.turn)

    @property
    def continues_answers(self) -> bool:
        """Whether the model can continue an answer that another worker has begun to show. It cannot if the agent speaks
        by a tool, because that answer is not text to the model, or if the run shows whole answers only."""
        if not self.run.options.stream_tokens or self.speaks_by(SPEAKS):
            return False
        return continues_answers(self.model, reasons=self.options.reasoning)

    def new_step(self, beginning: BegunAnswer | None = None) -> Step:
        """Returns the step of a model call; for a continued answer, the same step."""
        return Step(
            id=self.handle.ids.step() if beginning is None else beginning.step_id,
            run_id=self.run.id,
            agent_id=self.run.agent_id,
            number=self.handle.progress.step_count + 1,
            model=self.model,
            created_at=self.handle.clock.now(),
        )

    async def history(self) -> ContextOfRun:
        """Returns the stored history up to this run's turn. Also reads the agent's memory and tools again."""
        await self.read_equipment()
        return await self.handle.history()

    async def read_equipment(self) -> None:
        """Reads the agent's current tools, rules, gates and memory, which people, other agents and its own tools change
        during the run. Raises `NotFound` if the agent is deleted, and `UnreadableSecret`."""
        services, run = self.services, self.run
        now = await self.whole(lambda: services.agents.equipped(run.project_id, run.agent_id))
        self.equipment.renew(now, services.secret_keys, services.runners)
        self.progress.blocks = now.blocks
        await self.make_instructions()

    async def decided_call_ids(self) -> frozenset[str]:
        """Returns the ids of the decided calls of the run's thread. Reads them once, because no call of the thread is
        decided while the run is running."""
        progress, approvals = self.progress, self.services.approvals
        if progress.decided_call_ids is None:
            progress.decided_call_ids = await self.whole(lambda: approvals.decided_call_ids(self.run))
        return progress.decided_call_ids

    async def lost_calls(self) -> Usage:
        """Returns an estimate of the model calls that were lost with earlier workers, if the run ends before it makes
        another one. If the history ends in tool calls, the last worker was lost during one of those calls instead."""
        if not self.handle.shown.lost_calls or self.run.options.tool_name is not None:
            return Usage()
        history = (await self.handle.history()).messages
        if open_calls(history) is not None:
            return Usage()
        said = await beside(partial(text_to_count, history), weight(history))
        return self.handle.account.lost(self.model, self.system + said)


async def load_context(services: AgentServices, handle: RunHandle) -> AgentContext:
    """Returns a claimed run with everything that its steps need. Raises `NotFound` if its agent is deleted, and
    `UnreadableSecret`, before any model call, if a tool needs a secret that cannot be read."""
    run = handle.run
    equipped = await services.agents.equipped(run.project_id, run.agent_id)
    agent = equipped.agent
    handle.observation.run.agent_name = agent.name
    equipment = Equipment(agent)
    if run.answers_messages or run.options.tool_name is not None:
        equipment.renew(equipped, services.secret_keys, services.runners)
    progress = AgentProgress(blocks=equipped.blocks)
    if agent.tool_rules or run.continues is not None or run.step_count:
        # A continuation, or a run whose worker died, has called tools before. The agent may get rules during the run.
        earlier = await handle.services.messages.list_of_turn(run)
        progress.turn = turn_so_far(message.body for message in earlier)
        progress.calls_made = _calls_made(earlier, run)
    context = AgentContext(handle=handle, services=services, equipment=equipment, progress=progress)
    await context.make_instructions()
    return context


def _calls_made(turn: Sequence[Message], run: Run) -> int:
    """Returns the number of calls in the turn that the run has made or refused, without those that a person denied or
    the client made."""
    decisions = [
        one for message in turn if isinstance(message.body, ApprovalResponse) for one in message.body.decisions
    ]
    settled = {one.tool_call_id for one in decisions if one.kind == "tool" or not one.approve}
    results = [
        result
        for message in turn
        if message.run_id == run.id and isinstance(message.body, ToolReturns)
        for result in message.body.returns
    ]
    return sum(not result.of_speech and result.tool_call_id not in settled for result in results)


Work = Callable[[AgentContext], Awaitable[Outcome | Parked | AwaitsRuns]]
"""Executes a run of an agent."""


class AgentBody(Body):
    """The body of runs of an agent. `work` executes one run."""

    def __init__(self, services: AgentServices, work: Work) -> None:
        self._services = services
        self._work = work

    async def loaded(self, handle: RunHandle) -> Body:
        """Loads the current agent and its memory."""
        return _AgentAtWork(await load_context(self._services, handle), self._work)


class _AgentAtWork(Body):
    """An `AgentBody` for one run."""

    def __init__(self, context: AgentContext, work: Work) -> None:
        self._context = context
        self._work = work

    @property
    def continues_answers(self) -> bool:
        return self._context.continues_answers

    @property
    def model(self) -> str:
        return self._context.model

    async def execute(self, handle: RunHandle) -> Outcome | Parked | AwaitsRuns:
        return await self._work(self._context)

    async def lost_calls(self, handle: RunHandle) -> Usage:
        return await self._context.lost_calls()
