"""The port of bodies: a body does the work of a run between its claim and its end, by the run's handle.

The worker claims a run, adopts its log, watches for cancels and stores its end in the same way for an agent's loop, a
compaction and an agent of another framework. The body does everything between. Each of its writes carries the fence of
the claim: if the worker has lost the run, SQL refuses the next write, and that ends the body.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from shared.concurrency import Clock, retry_while_unavailable, unix_ms
from shared.domain.approvals import Approval
from shared.domain.errors import CancelMode, CancelRequested, InvalidRequest, ShutdownRequested
from shared.domain.events import Event, InputDelivered
from shared.domain.ids import IdMaker
from shared.domain.journal import JournalEntry
from shared.domain.log_writer import LogTail
from shared.domain.messages import Message, MessageBody, NewMessage, ToolCall, ToolReturn, UserMessage, text_of
from shared.domain.run_trees import CallWaits, SeenChild
from shared.domain.runs import Compaction, Dispatch, Run, Step, Usage
from shared.domain.settling import RunEnd, ShownStep, unknown_return
from shared.redis.event_log import EventLog
from shared.sql.history.messages import ContextOfRun, MessageStore
from shared.sql.runs.checkpoints import Checkpoint, CheckpointStore, Spent
from shared.sql.runs.children import ChildStore
from shared.sql.runs.inbox import InboxStore
from shared.sql.runs.run_store import RunStore
from shared.sql.runs.settlement import SettlementStore
from shared.sql.runs.steps import EventStore
from worker.run.interruption import Interruption
from worker.run.observation import RunObservation, RunObserver
from worker.run.progress import BudgetService, RunAccount, RunProgress
from worker.run.publisher import Publisher

Result = TypeVar("Result")

LARGEST_STATE = 1_000_000
"""The most bytes of a body's own state. Each checkpoint that has a state writes all of it."""


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """The services that all runs of a worker share."""

    messages: MessageStore
    runs: RunStore
    checkpoints: CheckpointStore
    settlements: SettlementStore
    events: EventStore
    inbox: InboxStore
    children: ChildStore
    event_log: EventLog
    budgets: BudgetService
    clock: Clock
    ids: IdMaker
    stores_first: bool
    """Whether SQL stores events before readers see them (see `Publisher`)."""
    patience_s: float
    """Seconds for which a run repeats a write while the database is unavailable."""
    observers: Sequence[RunObserver] = ()
    """They record what happens to a run: metrics, traces, log lines."""

    def publisher(self, run: Run, worker: str, interruption: Interruption) -> Publisher:
        """Returns the publisher of a run that `worker` has just claimed, with its observation. The publisher stops the
        run if the log has a newer owner."""
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
    """The run waits for a person. SQL has the last entries of its log."""

    tail: LogTail


class AwaitsRuns(msgspec.Struct, frozen=True):
    """The run waits for other runs. Another claim continues it."""

    seen: frozenset[SeenChild]
    next: Dispatch | None
    """The run's next dispatch, if the run need not wait because a child has changed meanwhile."""


class RunHandle:
    """One claimed run. A body uses a run only through this handle.

    | a body needs | it uses |
    |---|---|
    | its task | `run`, `input()`, `history()` |
    | its own state from before a crash or a decision | `state()` |
    | to show readers something | `emit()`; `shown` is what they have seen of the current step |
    | to store progress | `checkpoint()`, `compact()` |
    | to start each tool call at most once | `calls` |
    | a decision of a person or the client | `park()` |
    | the answers of runs that it has started | `let_wait()` |
    | messages that clients inject | `inbox` |
    | to pay for model calls | `account` |
    | to stop for a cancel or a drain | `stop_if_asked()` |
    | a write of its own without interruption | `writing()`, `whole()` |
    | times and ids | `clock`, `at`, `ids` |
    | to report to operators | `observation` |

    An interrupt (cancel, timeout, lost lease, shutdown) cancels the body's task where it awaits. It never
    interrupts `checkpoint` or another write: it arrives after the write.
    """

    def __init__(self, services: RunServices, publisher: Publisher, interruption: Interruption) -> None:
        run = publisher.run
        self.publisher = publisher
        """For the executor. Bodies use `emit`, `shown` and `begin_again`."""
        self.interruption = interruption
        """For the executor. Bodies use `whole` and `stop_if_asked`."""
        self.services = services
        """For the parts of the handle."""
        self.held = AsyncExitStack()
        """Resources that the body needs until the run's end is stored."""
        self.clock, self.ids = services.clock, services.ids
        self.progress = RunProgress(usage=run.usage, step_count=run.step_count)
        self.calls, self.inbox = RunCalls(self), RunInbox(self)
        self.account = RunAccount(publisher, self.progress, services.budgets, self.whole)

    @property
    def run(self) -> Run:
        """The run as it was claimed, with its owner's current fence."""
        return self.publisher.run

    @property
    def observation(self) -> RunObservation:
        """Records what happens to the run."""
        return self.publisher.observation

    @property
    def at(self) -> int:
        """The current time for an event, in Unix milliseconds."""
        return unix_ms(self.clock.now())

    async def input(self) -> list[NewMessage]:
        """Returns the messages of the run's submission. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.runs.input_of(self.run))

    def unstored(self, body: MessageBody) -> Message:
        """A message of the run that only the model sees."""
        run = self.run
        return Message(
            id=self.ids.message(),
            agent_id=run.agent_id,
            thread_id=run.thread_id,
            conversation_id=run.conversation_id,
            run_id=run.id,
            step_id=None,
            created_at=self.clock.now(),
            body=body,
        )

    async def history(self) -> ContextOfRun:
        """Returns the stored history up to this run's turn. Every call in it has its result, except those of the last
        answer. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.messages.context_of_run(self.run))

    async def state(self) -> bytes | None:
        """Returns the body's own state from its last checkpoint, in any worker. A continuation gets the state of the
        parked run. None if the body has stored nothing. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.checkpoints.body_state(self.run))

    async def thread_state(self) -> dict[str, Any]:
        """Returns the JSON object that the body of the thread's last completed run has left as its state; empty if
        there is none. Raises `Unavailable`."""
        text = await self.whole(lambda: self.services.checkpoints.thread_state(self.run))
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])

    @property
    def shown(self) -> ShownStep:
        """The part of the current step that readers have seen."""
        return self.publisher.shown

    def emit(self, *events: Event) -> None:
        """Shows events to readers at once. SQL has them with the next checkpoint at the latest."""
        self.publisher.emit(*events)

    def begin_again(self) -> None:
        """Makes void what readers have seen of the current step."""
        self.publisher.begin_again()

    async def checkpoint(
        self,
        messages: Sequence[NewMessage] = (),
        *,
        starting: Sequence[ToolCall] = (),
        earlier: Step | None = None,
        state: bytes | None = None,
        journal: Sequence[JournalEntry] = (),
    ) -> None:
        """Stores messages in the history, with the events that showed them and the current step, in one transaction.
        The next owner continues after it.

        `starting`: the tools of these calls are about to start. `earlier` is the new state of an earlier owner's step,
        if this owner has no current step. `state` is what `state()` returns later; None keeps the stored one. `journal`
        are entries of the turn's journal that are new, or have changed. Raises `InvalidRequest` if the state has more
        than `LARGEST_STATE` bytes, `StaleFence`, and `Unavailable` after the worker's patience.
        """
        if state is not None and len(state) > LARGEST_STATE:
            raise InvalidRequest(
                f"The state that this run's body wants to keep has {len(state)} bytes, {LARGEST_STATE} are allowed: "
                "keep what is large elsewhere, and its address here."
            )
        record = self.services.checkpoints.record
        async with self.publisher.saving() as tail:
            checkpoint = self._checkpoint(messages, tail, earlier, state, journal)
            with self.observation.write("checkpoint"):
                await self.whole(lambda: record(self.run, checkpoint, starting=starting))
        self.calls.were_begun(starting)

    async def journal(self) -> list[JournalEntry]:
        """Returns the journal of the run's turn, which a body may have. Raises `Unavailable`."""
        return await self.whole(lambda: self.services.checkpoints.journal(self.run))

    async def record_journal(
        self, entries: Sequence[JournalEntry], *, step: Step | None = None, anew: bool = False, state: bytes = b""
    ) -> None:
        """Stores entries, a model call and a state in a step; `anew` deletes other entries. Raises as `compact`."""
        record, now, used = self.services.checkpoints.record_journal, self.clock.now(), self.progress
        spent = step and Spent(step, used.usage, used.step_count, self.services.budgets.accounts_of(self.run))
        with self.interruption.shielded():
            async with self.publisher.storing() as tail:
                await self.whole(lambda: record(self.run, entries, tail, now, spent=spent, anew=anew, state=state))

    async def compact(self, compaction: Compaction, *events: Event) -> None:
        """Replaces old messages of the history by a summary, and stores the events that show it. The next owner
        continues after them. Raises `StaleFence` and `Unavailable`."""
        store, now = self.services.checkpoints.compact, self.clock.now()
        with self.interruption.shielded():
            self.emit(*events)
            async with self.publisher.storing() as tail:
                usage, shown_at = self.progress.usage, self.shown.first_piece_at
                await self.whole(lambda: store(self.run, compaction, tail, usage, now, shown_at=shown_at))

    async def park(
        self, messages: Sequence[NewMessage], asked: Sequence[Approval], *, journal: Sequence[JournalEntry] = ()
    ) -> Parked:
        """Stores an answer together with the approvals that it needs, and frees the worker. The continuation gets the
        decisions with its history. Raises `CancelRequested` if a cancel came first."""
        park = self.services.settlements.park
        if self.progress.in_hand is not None:
            self.progress.in_hand.wait()
        async with self.publisher.ending() as tail:
            checkpoint = self._checkpoint(messages, tail, journal=journal)
            with self.observation.write("park"):
                return Parked(await self.whole(lambda: park(self.run, checkpoint, asked)))

    async def let_wait(self, waits: CallWaits) -> AwaitsRuns:
        """Frees the worker until the runs that a call waits for have changed. The next claim makes the call again.
        Raises `CancelRequested` if a cancel came first."""
        let_wait, now = self.services.children.let_wait, self.clock.now()
        with self.interruption.shielded():
            async with self.publisher.storing() as tail:
                dispatch = await self.whole(
                    lambda: let_wait(self.run, tail, waits.seen, until=now + waits.wait, now=now)
                )
        return AwaitsRuns(waits.seen, dispatch)

    def stop_if_asked(self) -> None:
        """A body calls this between steps. Raises `CancelRequested` if a cancel waits for the step to end, and
        `ShutdownRequested` if another worker shall continue from here."""
        if self.interruption.after_step:
            raise CancelRequested(CancelMode.AFTER_STEP)
        if self.interruption.leaves:
            raise ShutdownRequested

    def writing(self) -> AbstractAsyncContextManager[Run]:
        """Keeps the run's writes in order. Yields the run with its owner's current fence."""
        return self.publisher.writing()

    async def whole(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Performs `action` without interruption, and repeats it while the database is unavailable. Raises
        `Unavailable` if that takes longer than the worker waits."""
        with self.interruption.shielded():
            return await retry_while_unavailable(lambda _: action(), for_s=self.services.patience_s, clock=self.clock)

    @property
    def step_in_hand(self) -> Step | None:
        """The current step with its times, as SQL stores it."""
        in_hand = self.progress.in_hand
        return None if in_hand is None else self.observation.times.of(in_hand.step)

    def _checkpoint(
        self,
        messages: Sequence[NewMessage],
        tail: LogTail,
        earlier: Step | None = None,
        state: bytes | None = None,
        journal: Sequence[JournalEntry] = (),
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
            journal=journal,
        )


class RunCalls:
    """The run's tool calls. Each starts at most once, even if its worker crashes."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._begun: set[str] = set()

    async def make(
        self, call: ToolCall, perform: Callable[[], Awaitable[ToolReturn]], *, may_start_again: bool = False
    ) -> ToolReturn:
        """Returns the result of a call. Stores the intent first, and then calls `perform`.

        A stored result is returned as it is. If an earlier owner started the call and stored no result, the call is
        performed again with `may_start_again`; otherwise its result says that the outcome is unknown. Raises what
        `perform` raises, `StaleFence` and `Unavailable`.
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
        """Returns the ids of the run's calls that have an intent, of any worker, with their stored results."""
        checkpoints, run_id = self._handle.services.checkpoints, self._handle.run.id
        return await self._handle.whole(lambda: checkpoints.intents(run_id))

    async def starting(self, call: ToolCall, attempt: int = 1) -> None:
        """Stores the intent of this call, and the results of the calls before it."""
        handle, now = self._handle, self._handle.clock.now()
        record = handle.services.checkpoints.record_intents
        async with handle.writing() as run:
            results = handle.progress.take_unstored()
            await handle.whole(lambda: record(run, [call], now, results=results, attempt=attempt))
        self.were_begun([call])

    async def store_results(self) -> None:
        """Stores results while other calls continue. Of calls that end together, the first one stores all results."""
        handle, record = self._handle, self._handle.services.checkpoints.record_results
        async with handle.writing() as run:
            if results := handle.progress.take_unstored():
                await handle.whole(lambda: record(run, results))

    def were_begun(self, calls: Sequence[ToolCall]) -> None:
        """Records that this owner has stored the intents of these calls."""
        self._begun.update(call.id for call in calls)


class RunInbox:
    """Messages that clients inject into the run while it is running."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle

    async def deliver(self, journal: Callable[[list[NewMessage]], Sequence[JournalEntry]] | None = None) -> bool:
        """Moves waiting messages into the history. Returns whether there were any. `journal` returns the entries of the
        journal that record them.

        Each message enters the history once, and the log shows it once. If a worker dies between these two writes, the
        next worker finds the shown messages in the log, and does not show them again.
        """
        handle, inbox = self._handle, self._handle.services.inbox
        with handle.interruption.shielded():
            waiting = await handle.whole(lambda: inbox.waiting(handle.run.id))
            if not waiting.messages:
                return False
            for message in waiting.messages:
                if isinstance(message.body, UserMessage) and message.id not in handle.shown.input_ids:
                    said = message.body
                    shown = InputDelivered(handle.at, message.id, text_of(said.content), said.otid, said.role)
                    handle.emit(shown)
            now, entries = handle.clock.now(), journal(waiting.messages) if journal is not None else ()
            async with handle.publisher.storing() as tail:
                await handle.whole(lambda: inbox.deliver(handle.run, waiting, tail, now, entries))
        return True

    async def has_more(self) -> bool:
        """Returns whether a message waits."""
        inbox, run_id = self._handle.services.inbox, self._handle.run.id
        return await self._handle.whole(lambda: inbox.has_waiting(run_id))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end that a body has given its run, and the data that the worker still has to store."""

    end: RunEnd
    messages: list[NewMessage] = []
    """The final answer."""
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """The change of the thread, when the run compacts it."""
    is_answer: bool = False
    """The run has answered every message that was sent to it. A message that arrives meanwhile causes one more step."""


class Sleeps(msgspec.Struct, frozen=True):
    """The run has nothing to do before `until`. Another claim continues it."""

    until: datetime


class Body:
    """Does the work of runs of one kind. A body overrides `execute`, and the other methods if it needs them."""

    continues_answers = False
    """Whether the body can continue an answer that another worker began to show. If not, the worker publishes that the
    answer is void."""
    model = ""
    """Handle of the model whose answer the end of the run cuts off."""

    async def loaded(self, handle: RunHandle) -> "Body":
        """Loads what the run needs and returns the body for this one run. A worker loads few runs at a time.

        Raises `NotFound` and `UnreadableSecret` if the run cannot start: it fails before it has shown anything.
        """
        return self

    async def execute(self, handle: RunHandle) -> Outcome | Parked | AwaitsRuns | Sleeps:
        """Does the run's work, from where its last checkpoint left it.

        Raises `ModelError`, `BudgetExceeded` and `UnreadableSecret`, with which the run fails or waits. It does not
        catch what interrupts a run. Any other exception is a defect and fails the run.
        """
        raise NotImplementedError

    async def lost_calls(self, handle: RunHandle) -> Usage:
        """Called when the run failed or was cancelled, before its end is stored. Returns an estimate of calls of models
        that were lost with earlier workers and are not in the run's usage. By default there are none."""
        return Usage()
