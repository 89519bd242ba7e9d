"""The step loop's surroundings: one claimed run, the services that it needs, and its progress."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from shared.concurrency import Clock, beside, retry_while_unavailable, unix_ms
from shared.domain.agents import Agent, Block, ModelOptions, characters_of_memory, requires_approval
from shared.domain.approvals import Approval
from shared.domain.errors import (
    BudgetExceeded,
    CancelMode,
    CancelRequested,
    ModelError,
    ModelErrorType,
    ShutdownRequested,
)
from shared.domain.events import Event
from shared.domain.ids import BlockId, IdMaker
from shared.domain.limits import UNCHOSEN_ANSWER, Amount, Budgets, amount_of
from shared.domain.log_writer import LogTail
from shared.domain.messages import NewMessage, ToolCall
from shared.domain.models import continues_answers
from shared.domain.runs import Compaction, Run, Step, Usage
from shared.domain.settling import BegunAnswer, RunEnd, lost_usage
from shared.domain.tool_catalog import SPEAKS, is_base_tool
from shared.domain.tools import NextCalls, Tool, missing_calls, next_calls, turn_so_far
from shared.redis.event_log import EventLog
from shared.secret_keys import SecretKeys
from shared.sql.definitions.agents import AgentStore, EquippedAgent
from shared.sql.history.messages import ContextOfRun, MessageStore
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.budgets import BudgetStore
from shared.sql.runs.checkpoints import Checkpoint, CheckpointStore
from shared.sql.runs.event_blocks import EventStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import StepStore
from worker.models.prices import Prices
from worker.models.provider import ModelCall
from worker.models.registry import Models
from worker.run.interruption import Interruption
from worker.run.observation import ObserverOf, RunObservation
from worker.run.progress import Instructions, KnownCalls, RunProgress
from worker.run.publisher import Publisher
from worker.run.tool_runner import ToolRunners
from worker.tools.invocation import ToolSandbox

# Pays for the calls of models: what a call may use is set aside before it is made, and counted when it has ended.
#
# A call's prompt is estimated, as for the window; its answer may have what was chosen for it, or `UNCHOSEN_ANSWER`. So
# a share that runs have in common is exceeded by no more than what answers are longer than that. A run's own budget is
# not shared with anybody, and is compared with the prompt alone: the answer is what the run is there for.


ONE_TOKEN = Amount(tokens=1)
"""What every call has at least."""


@dataclass(frozen=True, kw_only=True)
class BudgetService:
    """The service that pays for the calls of a worker's runs."""

    budgets: Budgets
    prices: Prices
    store: BudgetStore
    clock: Clock

    def priced(self, handle: str, usage: Usage) -> Usage:
        """The usage of one call, with its price where a budget asks for prices."""
        if not self.budgets.count_money:
            return usage
        return msgspec.structs.replace(usage, cost_nano_usd=self.prices.nano_usd(handle, usage) or 0)

    def check(self, used: Usage) -> None:
        """To be called between calls. Raises `BudgetExceeded` when the run has used up its own budget."""
        self._check_run(amount_of(used).plus(ONE_TOKEN))

    async def reserve(self, run: Run, used: Usage, call: ModelCall) -> None:
        """Sets aside what the call may use. Raises `BudgetExceeded` when it would go over, `StaleFence`, `ModelError`
        when a budget is in money and nobody knows the model's price."""
        budgets = self.budgets
        accounts = budgets.accounts_of(run)
        if not budgets.run.is_set and not accounts:
            return
        prompt = call.estimated_tokens()
        asked = self._amount(call.handle, Usage(prompt_tokens=prompt))
        self._check_run(amount_of(used).plus(asked))
        if accounts:
            longest = call.options.max_output_tokens or UNCHOSEN_ANSWER
            amount = self._amount(call.handle, Usage(prompt_tokens=prompt, completion_tokens=longest))
            await self.store.reserve(run, accounts, amount, self.clock.now(), prompt=asked)

    def _amount(self, handle: str, usage: Usage) -> Amount:
        price = self.prices.nano_usd(handle, usage) if self.budgets.count_money else 0
        if price is None:
            raise ModelError(
                ModelErrorType.BAD_REQUEST,
                f"There is a budget in money, and nobody knows what {handle!r} costs: write its price into the file "
                "that HOLDFAST_PRICES_FILE names.",
            )
        return Amount(amount_of(usage).tokens, price)

    def _check_run(self, amount: Amount) -> None:
        over = self.budgets.run.exceeded_by(amount)
        if over is not None:
            raise BudgetExceeded(
                f"the next call would bring the run to {over}, which HOLDFAST_RUN_TOKEN_BUDGET and "
                "HOLDFAST_RUN_COST_BUDGET allow one run"
            )


# What every run of a worker shares: the stores, the models, the tools, and the observers.


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What every run of a worker shares."""

    models: Models
    sandbox: ToolSandbox
    runners: ToolRunners
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
    patience_s: float
    """Seconds that a run repeats a write while the database is away."""
    budgets: BudgetService
    observers: Sequence[ObserverOf] = ()
    """They hear what happens to a run: metrics, traces, log lines."""

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


Result = TypeVar("Result")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the step loop ended a run, and what is not stored yet."""

    end: RunEnd
    messages: list[NewMessage] = []
    """The final answer."""
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """The change of the thread, when the run compacts it."""
    is_answer: bool = False
    """The model has answered every message that it was sent. A message that comes meanwhile wants one more step."""


class Parked(msgspec.Struct, frozen=True):
    """The run waits for a person; its stream's last entries are stored."""

    tail: LogTail


AS_THEY_ARE_NOW = ("tool_rules", "extra", "approval_expires_s", "on_approval_expiry")
"""Fields of an agent in which a run at work obeys every change: which calls may be made, and what asks a person."""


class Equipment:
    """What the agent of a run may call, by which rules, and with which secrets.

    It changes while the run is at work: a caller that switches a gate on, detaches a tool or changes a rule is obeyed
    from the next call on. The agent's instructions, its model and its secrets stay as they were when the run was
    claimed.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.tools: Mapping[str, Tool] = {}
        self.secrets: Mapping[str, str] = {}
        self._are_secrets_open = False

    def renew(self, now: EquippedAgent, keys: SecretKeys, runners: ToolRunners) -> None:
        """Takes over what may be called now. Raises `UnreadableSecret`, before a tool would have to run without what it
        was given."""
        self.agent = replace(self.agent, **{name: getattr(now.agent, name) for name in AS_THEY_ARE_NOW})
        self.tools = {tool.name: tool for tool in now.tools}
        if not self._are_secrets_open and any(runners.of(tool).is_foreign for tool in now.tools):
            self.secrets = keys.open_all(self.agent.id, self.agent.tool_environment)
            self._are_secrets_open = True


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One run that a worker executes: what is fixed, and its progress."""

    equipment: Equipment
    services: RunServices
    publisher: Publisher
    interruption: Interruption
    progress: RunProgress

    @property
    def agent(self) -> Agent:
        """The agent as it was when this owner claimed the run, but for what may be called, and when."""
        return self.equipment.agent

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The agent's tools, by their names."""
        return self.equipment.tools

    @property
    def secrets(self) -> Mapping[str, str]:
        """The agent's secrets, readable: what its tools get, and what is left out of their results."""
        return self.equipment.secrets

    @property
    def blocks(self) -> Sequence[Block]:
        """The agent's memory as the model has seen it."""
        return self.progress.blocks

    @property
    def seen_memory(self) -> dict[BlockId, int]:
        """The version of each block that the model has seen."""
        return self.progress.seen_memory

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """Holds the run's writes in their order. Gives the run with the fence that its owner has now."""
        return self.publisher.writing()

    @property
    def run(self) -> Run:
        """The run as it was claimed, with the fence that its owner has now."""
        return self.publisher.run

    @property
    def observation(self) -> RunObservation:
        """Where to say what happens to the run."""
        return self.publisher.observation

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
        """The instructions for this run's model calls. Several ask for them in each step, and the memory may be
        long."""
        agent, blocks, made = self.agent, self.progress.blocks, self.progress.instructions
        if made is None or made.agent is not agent or made.blocks is not blocks:
            made = self.progress.instructions = Instructions(agent, blocks, self.run.instructions(agent, blocks))
        return made.text

    async def make_instructions(self) -> None:
        """Makes them where nobody waits for that, once the agent has been read."""
        await beside(lambda: self.system, characters_of_memory(self.progress.blocks))

    def next_calls(self) -> NextCalls:
        """The agent's tools that the model may call now, by the agent's rules. Each piece of a call may ask, and there
        may be a thousand of both."""
        agent, tools, turn, known = self.agent, self.tools, self.progress.turn, self.progress.next_calls
        if known is None or known.agent is not agent or known.tools is not tools or known.turn is not turn:
            may_call = next_calls(agent.tool_rules, tools, turn)
            known = self.progress.next_calls = KnownCalls(agent, tools, turn, may_call)
        return known.may_call

    def speaks_by(self, name: str) -> bool:
        """Whether a call of this tool is shown as something that the agent says."""
        tool = self.tools.get(name)
        return name == SPEAKS and tool is not None and is_base_tool(tool) and self.run.options.speech_as_text

    def asks_a_person(self, name: str) -> bool:
        """Whether a call of this tool of the agent's waits for a person."""
        tool = self.tools.get(name)
        return tool is not None and requires_approval(self.agent, name, tool.default_requires_approval)

    def missing_calls(self) -> list[str]:
        """The agent's tools that must be called before the run may end."""
        return missing_calls(self.agent.tool_rules, self.tools, self.progress.turn)

    def emit(self, *events: Event) -> None:
        self.publisher.emit(*events)

    @property
    def continues_answers(self) -> bool:
        """Whether the model can go on with an answer that another worker has begun to show. An answer that is said by
        a tool is no text to the model, and one that is shown as a whole was whole."""
        if not self.run.options.stream_tokens or self.speaks_by(SPEAKS):
            return False
        return continues_answers(self.model, reasons=self.options.reasoning)

    def new_step(self, beginning: BegunAnswer | None = None) -> Step:
        """The step that a model call makes; the same one for an answer that is continued."""
        return Step(
            id=self.services.ids.step() if beginning is None else beginning.step_id,
            run_id=self.run.id,
            agent_id=self.run.agent_id,
            number=self.progress.step_count + 1,
            model=self.model,
            created_at=self.services.clock.now(),
        )

    async def history(self) -> ContextOfRun:
        """The conversation as it is stored, up to this run's turn. The agent's memory and tools are read with it."""
        await self.read_equipment()
        return await self.first_history()

    async def first_history(self) -> ContextOfRun:
        """The same for who has read the agent just now."""
        messages = self.services.messages
        return await self.retry_while_unavailable(lambda: messages.context_of_run(self.run))

    async def read_equipment(self) -> None:
        """Reads the agent's tools, the rules and gates for them, and its memory, as they are now: people, other agents
        and its own tools change them while the run goes on. Raises `NotFound` when the agent is gone, and
        `UnreadableSecret`."""
        services, run = self.services, self.run
        now = await self.retry_while_unavailable(lambda: services.agents.equipped(run.project_id, run.agent_id))
        self.equipment.renew(now, services.secret_keys, services.runners)
        self.progress.blocks = now.blocks
        await self.make_instructions()

    async def decided_call_ids(self) -> frozenset[str]:
        """Ids of the calls that were decided in the run's thread. None is decided there while the run is at work, so
        they are looked for once."""
        progress, approvals = self.progress, self.services.approvals
        if progress.decided_call_ids is None:
            progress.decided_call_ids = await self.retry_while_unavailable(lambda: approvals.decided_call_ids(self.run))
        return progress.decided_call_ids

    async def checkpoint(
        self, messages: list[NewMessage], *, starting: Sequence[ToolCall] = (), earlier: Step | None = None
    ) -> None:
        """Stores messages, with the events that showed them; and `earlier`, the new state of a step that was made
        before this owner came, if no step is in hand."""
        record = self.services.checkpoints.record
        async with self.publisher.saving() as tail:
            checkpoint = self._checkpoint(messages, tail, earlier)
            with self.observation.write("checkpoint"):
                await self.retry_while_unavailable(lambda: record(self.run, checkpoint, starting=starting))

    async def record_intent(self, call: ToolCall) -> None:
        """Stores that the tool of this call is about to start, and what the calls before it came to."""
        now, record = self.services.clock.now(), self.services.checkpoints.record_intents
        async with self.publisher.writing() as run:
            results = self.progress.take_unstored()
            await self.retry_while_unavailable(lambda: record(run, [call], now, results=results))

    async def record_results(self) -> None:
        """Stores what calls came to while others of the same answer go on. Of calls that end together, the first one
        stores what the others came to."""
        record = self.services.checkpoints.record_results
        async with self.publisher.writing() as run:
            if results := self.progress.take_unstored():
                await self.retry_while_unavailable(lambda: record(run, results))

    async def park(self, messages: list[NewMessage], asked: Sequence[Approval]) -> Parked:
        """Stores the answer together with what it waits for. Raises `CancelRequested` when a cancel came first."""
        park = self.services.settlements.park
        if self.progress.in_hand is not None:
            self.progress.in_hand.wait()
        async with self.publisher.ending() as tail:
            checkpoint = self._checkpoint(messages, tail)
            with self.observation.write("park"):
                return Parked(await self.retry_while_unavailable(lambda: park(self.run, checkpoint, asked)))

    async def retry_while_unavailable(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Does a write that must be whole: nothing interrupts it, and it is repeated while the database is away."""
        services = self.services
        with self.interruption.shielded():
            return await retry_while_unavailable(lambda _: action(), for_s=services.patience_s, clock=services.clock)

    async def pay_for(self, call: ModelCall) -> None:
        """To be called before every call of a model. Raises `BudgetExceeded`, or `ModelError` when a budget is in money
        and nobody knows the model's price."""
        budgets, run = self.services.budgets, self.run
        await self.retry_while_unavailable(lambda: budgets.reserve(run, self.progress.usage, call))

    def count(self, handle: str, usage: Usage) -> Usage:
        """A step's call has ended; what it used, with its price."""
        priced = self.services.budgets.priced(handle, usage)
        self.progress.count(priced)
        return priced

    def count_lost(self, handle: str, asked: str) -> None:
        """Counts the calls of workers that were lost with the step: they asked this model what it is asked anew,
        or would be."""
        shown = self.publisher.shown
        lost = lost_usage(shown.lost_calls, asked, shown.lost_text)
        self.progress.count_lost(self.services.budgets.priced(handle, lost))
        shown.forget_lost()

    def check_budget(self) -> None:
        """To be called when tokens were used. Raises `BudgetExceeded`."""
        self.services.budgets.check(self.progress.usage)

    def stop_if_asked(self) -> None:
        """To be called between steps. Raises `CancelRequested` when a cancel waits for the step to end,
        `ShutdownRequested` when another worker is to continue from here."""
        if self.interruption.after_step:
            raise CancelRequested(CancelMode.AFTER_STEP)
        if self.interruption.leaves:
            raise ShutdownRequested

    @property
    def step_in_hand(self) -> Step | None:
        """The step in hand, with its times, as it is stored."""
        in_hand = self.progress.in_hand
        return None if in_hand is None else self.observation.times.of(in_hand.step)

    def _checkpoint(self, messages: list[NewMessage], tail: LogTail, earlier: Step | None = None) -> Checkpoint:
        progress = self.progress
        return Checkpoint(
            now=self.services.clock.now(),
            messages=messages,
            tail=tail,
            usage=progress.usage,
            step_count=progress.step_count,
            step=self.step_in_hand or earlier,
            shown_at=self.publisher.shown.first_piece_at,
        )


async def load_context(services: RunServices, publisher: Publisher, interruption: Interruption) -> RunContext:
    """A claimed run with everything that its steps need. Raises `NotFound` when its agent is gone, and
    `UnreadableSecret` before anything is spent when a tool would have to run without what it was given."""
    run = publisher.run
    equipped = await services.agents.equipped(run.project_id, run.agent_id)
    agent, blocks = equipped.agent, equipped.blocks
    publisher.observation.run.agent_name = agent.name
    equipment = Equipment(agent)
    if run.answers_messages or run.options.tool_name is not None:
        equipment.renew(equipped, services.secret_keys, services.runners)
    progress = RunProgress(usage=run.usage, step_count=run.step_count, blocks=blocks)
    if agent.tool_rules or run.continues is not None or run.step_count:
        # A run that continues another one, or goes on after its worker died, has called tools before. It may get rules
        # while it is at work.
        earlier = await services.messages.list_of_turn(run)
        progress.turn = turn_so_far(message.body for message in earlier)
    context = RunContext(
        equipment=equipment,
        services=services,
        publisher=publisher,
        interruption=interruption,
        progress=progress,
    )
    await context.make_instructions()
    return context
