"""A run in its owner's hands: all that a body may do with it.

Writes carry the fence of the claim. So a body whose worker has lost the run changes nothing any more: the first write
that is refused ends it.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from shared.concurrency import Clock, retry_while_unavailable, unix_ms
from shared.domain.approvals import Approval
from shared.domain.errors import CancelMode, CancelRequested, InvalidRequest, ShutdownRequested
from shared.domain.events import Event, InputDelivered, StopReason
from shared.domain.ids import IdMaker, StepId
from shared.domain.log_writer import LogTail
from shared.domain.messages import NewMessage, ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.runs import Compaction, Run, Step, Usage
from shared.domain.settling import PARKED, ShownStep, lost_usage, unknown_return
from shared.redis.event_log import EventLog
from shared.sql.history.messages import ContextOfRun, MessageStore
from shared.sql.runs.checkpoints import Checkpoint, CheckpointStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import EventStore
from worker.models.provider import ModelCall
from worker.run.interruption import Interruption
from worker.run.observation import ObserverOf, RunObservation
from worker.run.publisher import Publisher
from worker.run.spending import BudgetService

Result = TypeVar("Result")

LARGEST_STATE = 1_000_000
"""Bytes that a body may keep of its own. It is written whole with every checkpoint that has it."""


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What every run of a worker shares, whatever its body is."""

    messages: MessageStore
    runs: RunStore
    checkpoints: CheckpointStore
    settlements: SettlementStore
    events: EventStore
    inbox: InboxStore
    event_log: EventLog
    budgets: BudgetService
    clock: Clock
    ids: IdMaker
    stores_first: bool
    """Whether events go to SQL before they are shown (see `Publisher`)."""
    patience_s: float
    """Seconds that a run repeats a write while the database is away."""
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


class Parked(msgspec.Struct, frozen=True):
    """The run waits for a person; its stream's last entries are stored."""

    tail: LogTail


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


@dataclass(kw_only=True)
class RunProgress:
    """How far the run is: what it has used, the step in hand, and the results of its calls. Its end is stored from
    this, whoever brings it about."""

    usage: Usage
    step_count: int
    in_hand: StepInHand | None = None
    open_returns: dict[str, ToolReturn] = field(default_factory=dict[str, ToolReturn])
    """Results of calls that no step of this owner has made: an earlier owner left them open, a decision has allowed
    them, or the body has no steps."""
    open_step_id: StepId | None = None
    """The step that these calls belong to."""
    unstored: list[ToolReturn] = field(default_factory=list[ToolReturn])
    """Results that the next worker would not find."""

    def take_unstored(self) -> list[ToolReturn]:
        """These results, for who stores them now."""
        results, self.unstored = self.unstored, []
        return results

    def begin_step(self, step: Step, asked: str) -> StepInHand:
        """A model call begins."""
        self.in_hand = StepInHand(step=step, asked=asked)
        return self.in_hand

    @property
    def step_id(self) -> StepId | None:
        """The step of the answer in hand. None: the run answers no message, or has not begun a step."""
        return self.open_step_id if self.in_hand is None else self.in_hand.step.id

    @property
    def returns(self) -> dict[str, ToolReturn]:
        """Results of the answer in hand, by tool call id."""
        return self.open_returns if self.in_hand is None else self.in_hand.returns


class RunHandle:
    """One claimed run. Its body has this and nothing else of the run's machinery.

    | a body wants | it takes |
    |---|---|
    | what it is to do | `run`, `input()`, `history()` |
    | what it stored of its own, before a crash or a decision | `state()` |
    | readers to see something | `emit()`; `shown` is what they have seen of the step in hand |
    | progress to survive | `checkpoint()`, `compact()` |
    | tools to be started at most once | `calls` |
    | a person, or the client, to decide | `park()` |
    | messages that clients inject | `inbox` |
    | to pay for the calls of models | `account` |
    | to stop where a cancel or a drain wants it | `stop_if_asked()` |
    | a write of its own that must be whole | `writing()`, `whole()` |
    | moments and ids | `clock`, `at`, `ids` |
    | to be seen by operators | `observation` |

    An interrupt (cancel, timeout, lost lease, shutdown) cancels the body's task where it awaits. `checkpoint` and the
    other writes are whole: the interrupt arrives behind them.
    """

    def __init__(self, services: RunServices, publisher: Publisher, interruption: Interruption) -> None:
        run = publisher.run
        self.publisher = publisher
        """For who executes the run. Bodies have `emit`, `shown` and `begin_again`."""
        self.interruption = interruption
        """For who executes the run. Bodies have `whole` and `stop_if_asked`."""
        self.services = services
        """For the parts of the handle."""
        self.clock, self.ids = services.clock, services.ids
        self.progress = RunProgress(usage=run.usage, step_count=run.step_count)
        self.calls = RunCalls(self)
        self.inbox = RunInbox(self)
        self.account = RunAccount(self)

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
        return unix_ms(self.clock.now())

    async def input(self) -> list[NewMessage]:
        """The messages of the run's submission. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.runs.input_of(self.run.id))

    async def history(self) -> ContextOfRun:
        """The conversation as it is stored, up to this run's turn; every call in it has its result, but for those of
        its last answer. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.messages.context_of_run(self.run))

    async def state(self) -> bytes | None:
        """What the body stored of its own with its last checkpoint, in any worker; the same for a run that goes on
        where another one was parked. None: it has stored nothing. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.checkpoints.body_state(self.run))

    @property
    def shown(self) -> ShownStep:
        """What readers have seen of the step in hand."""
        return self.publisher.shown

    def emit(self, *events: Event) -> None:
        """Shows events to readers, at once; SQL has them with the next checkpoint at the latest."""
        self.publisher.emit(*events)

    def begin_again(self) -> None:
        """Says to readers that what they have seen of the step in hand is void."""
        self.publisher.begin_again()

    async def checkpoint(
        self,
        messages: Sequence[NewMessage] = (),
        *,
        starting: Sequence[ToolCall] = (),
        earlier: Step | None = None,
        state: bytes | None = None,
    ) -> None:
        """Stores messages in the history, with the events that showed them and the step in hand, in one transaction:
        from then on the next owner goes on behind it.

        `starting`: the tools of these calls are about to start. `earlier` is the new state of a step that was made
        before this owner came, if no step is in hand. `state` is the body's own, as `state()` gives it; None leaves
        what is stored. Raises `InvalidRequest` for a state of more than `LARGEST_STATE` bytes, `StaleFence`, and
        `Unavailable` when the database is away for longer than the worker waits.
        """
        if state is not None and len(state) > LARGEST_STATE:
            raise InvalidRequest(
                f"The state that this run's body wants to keep has {len(state)} bytes, {LARGEST_STATE} are allowed: "
                "keep what is large elsewhere, and its address here."
            )
        record = self.services.checkpoints.record
        async with self.publisher.saving() as tail:
            checkpoint = self._checkpoint(messages, tail, earlier, state)
            with self.observation.write("checkpoint"):
                await self.whole(lambda: record(self.run, checkpoint, starting=starting))
        self.calls.were_begun(starting)

    async def compact(self, compaction: Compaction, *events: Event) -> None:
        """Stores that a summary takes the place of old messages in the history, with the events that show it. The next
        owner goes on behind them. Raises `StaleFence` and `Unavailable`."""
        store, now = self.services.checkpoints.compact, self.clock.now()
        with self.interruption.shielded():
            self.emit(*events)
            async with self.publisher.storing() as tail:
                usage, shown_at = self.progress.usage, self.shown.first_piece_at
                await self.whole(lambda: store(self.run, compaction, tail, usage, now, shown_at=shown_at))

    async def park(self, messages: Sequence[NewMessage], asked: Sequence[Approval]) -> Parked:
        """Stores an answer together with what it waits for, so that no worker waits for a person. A run that continues
        this one gets the decisions with its history. Raises `CancelRequested` when a cancel came first."""
        park = self.services.settlements.park
        if self.progress.in_hand is not None:
            self.progress.in_hand.wait()
        async with self.publisher.ending() as tail:
            checkpoint = self._checkpoint(messages, tail)
            with self.observation.write("park"):
                return Parked(await self.whole(lambda: park(self.run, checkpoint, asked)))

    def stop_if_asked(self) -> None:
        """To be called between steps. Raises `CancelRequested` when a cancel waits for the step to end,
        `ShutdownRequested` when another worker is to continue from here."""
        if self.interruption.after_step:
            raise CancelRequested(CancelMode.AFTER_STEP)
        if self.interruption.leaves:
            raise ShutdownRequested

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """Holds the run's writes in their order. Gives the run with the fence that its owner has now."""
        return self.publisher.writing()

    async def whole(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Does what must be whole: nothing interrupts it, and it is repeated while the database is away. Raises
        `Unavailable` when that takes longer than the worker waits."""
        services = self.services
        with self.interruption.shielded():
            return await retry_while_unavailable(lambda _: action(), for_s=services.patience_s, clock=services.clock)

    @property
    def step_in_hand(self) -> Step | None:
        """The step in hand, with its times, as it is stored."""
        in_hand = self.progress.in_hand
        return None if in_hand is None else self.observation.times.of(in_hand.step)

    def _checkpoint(
        self, messages: Sequence[NewMessage], tail: LogTail, earlier: Step | None = None, state: bytes | None = None
    ) -> Checkpoint:
        progress = self.progress
        return Checkpoint(
            now=self.clock.now(),
            messages=list(messages),
            tail=tail,
            usage=progress.usage,
            step_count=progress.step_count,
            step=self.step_in_hand or earlier,
            shown_at=self.shown.first_piece_at,
            body_state=state,
        )


class RunCalls:
    """The run's calls of tools: each is started at most once, whatever happens to its worker."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._begun: set[str] = set()

    async def make(
        self, call: ToolCall, perform: Callable[[], Awaitable[ToolReturn]], *, may_start_again: bool = False
    ) -> ToolReturn:
        """The result of a call, which `perform` makes behind a stored intent.

        A result that was stored counts. A call that an earlier owner had started, of which no result is stored, is
        performed again if it may be; else its result says that nobody knows what it came to. Raises what `perform`
        raises, `StaleFence` and `Unavailable`.
        """
        handle, progress = self._handle, self._handle.progress
        known = await self.started()
        result = known.get(call.id)
        if result is None and call.id in known and call.id not in self._begun and not may_start_again:
            result = unknown_return(call)
        if result is None:
            if call.id not in known:
                await self.starting(call)
            with handle.observation.tool_call(call, progress.step_id) as observed:
                result = await perform()
                observed.returns(result)
            progress.unstored.append(result)
        progress.returns[call.id] = result
        return result

    async def started(self) -> dict[str, ToolReturn | None]:
        """The ids of the run's calls whose tools were about to start, in any worker, with the results that are
        stored."""
        checkpoints, run_id = self._handle.services.checkpoints, self._handle.run.id
        return await self._handle.whole(lambda: checkpoints.intents(run_id))

    async def starting(self, call: ToolCall) -> None:
        """Stores that the tool of this call is about to start, and what the calls before it came to."""
        handle, record = self._handle, self._handle.services.checkpoints.record_intents
        now = handle.clock.now()
        async with handle.writing() as run:
            results = handle.progress.take_unstored()
            await handle.whole(lambda: record(run, [call], now, results=results))
        self.were_begun([call])

    async def store_results(self) -> None:
        """Stores what calls came to while others go on. Of calls that end together, the first one stores what the
        others came to."""
        handle, record = self._handle, self._handle.services.checkpoints.record_results
        async with handle.writing() as run:
            if results := handle.progress.take_unstored():
                await handle.whole(lambda: record(run, results))

    def were_begun(self, calls: Sequence[ToolCall]) -> None:
        """The intents of these calls are stored, by this owner."""
        self._begun.update(call.id for call in calls)


class RunInbox:
    """Messages that clients inject into the run while it is at work."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle

    async def deliver(self) -> bool:
        """Takes the messages that wait into the history; whether there were any.

        Each enters the history once, and the stream shows it once. A worker may die between the two. The next worker
        finds in the log what was shown, and does not show it again.
        """
        handle, inbox = self._handle, self._handle.services.inbox
        with handle.interruption.shielded():
            waiting = await handle.whole(lambda: inbox.waiting(handle.run.id))
            if not waiting.messages:
                return False
            for message in waiting.messages:
                if isinstance(message.body, UserMessage) and message.id not in handle.shown.input_ids:
                    text = text_of(message.body.content)
                    handle.emit(InputDelivered(handle.at, message.id, text, message.body.otid))
            now = handle.clock.now()
            async with handle.publisher.storing() as tail:
                await handle.whole(lambda: inbox.deliver(handle.run, waiting, tail, now))
        return True

    async def has_more(self) -> bool:
        """Whether a message waits."""
        inbox, run_id = self._handle.services.inbox, self._handle.run.id
        return await self._handle.whole(lambda: inbox.has_waiting(run_id))


class RunAccount:
    """What the run's calls of models use, and what its budgets leave for them."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle

    async def reserve(self, call: ModelCall) -> None:
        """To be called before every call of a model. Raises `BudgetExceeded`, or `ModelError` when a budget is in money
        and nobody knows the model's price."""
        handle, budgets = self._handle, self._handle.services.budgets
        await handle.whole(lambda: budgets.reserve(handle.run, handle.progress.usage, call))

    def priced(self, model: str, usage: Usage) -> Usage:
        """The usage of one call, with its price where a budget asks for prices."""
        return self._handle.services.budgets.priced(model, usage)

    def count(self, model: str, usage: Usage) -> Usage:
        """A step's call has ended; what it used, with its price."""
        progress, priced = self._handle.progress, self.priced(model, usage)
        progress.usage = progress.usage.plus(priced)
        progress.step_count += 1
        return priced

    def count_aside(self, model: str, usage: Usage) -> None:
        """A call that is no step has ended: its tokens count, and the context is as it was."""
        progress = self._handle.progress
        total = progress.usage.plus(self.priced(model, usage))
        progress.usage = msgspec.structs.replace(total, context_tokens=progress.usage.context_tokens)

    def count_lost(self, model: str, asked: str) -> None:
        """Counts the calls of workers that were lost with the step: they asked this model what it is asked anew,
        or would be."""
        shown, progress = self._handle.shown, self._handle.progress
        lost = self.priced(model, lost_usage(shown.lost_calls, asked, shown.lost_text))
        if lost.estimated:
            progress.usage = progress.usage.plus(lost)
        shown.forget_lost()

    def check(self) -> None:
        """To be called when tokens were used. Raises `BudgetExceeded`."""
        self._handle.services.budgets.check(self._handle.progress.usage)
