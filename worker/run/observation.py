"""Notifies observers of what happens to a run in its worker.

Each claim of a run creates a `RunObservation`, which code reaches as `publisher.observation` and
`context.observation`. That code reports what it does here, once, and the observers receive it: the times of the steps,
the metrics, the traces. No other code of the worker measures, and nothing here decides anything about the run.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Generic, Literal, TypeVar

import structlog
from msgspec.structs import replace

from shared.concurrency import Clock, unix_ms
from shared.domain.errors import (
    BudgetExceeded,
    CancelMode,
    CancelRequested,
    LeaseLost,
    LifecycleError,
    ModelError,
    MoreInput,
    RunTimeout,
    ShutdownRequested,
    Unavailable,
)
from shared.domain.ids import StepId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturn
from shared.domain.run_trees import CallWaits
from shared.domain.runs import Run, Step, StepTiming, ToolTiming, Usage
from worker.models.provider import AttemptFailed, ModelCall, ModelEvent
from worker.run.interruption import Interruption

# Observers of a run receive a record of each thing that the run does:
#
#     ObservedRun            from its claim until this worker gives it up
#     ├── ObservedStep       one model call with what belongs to it, or the calls that an earlier owner left open
#     │   ├── ObservedModelCall      the step's call or that for a summary, with its retries and its first piece
#     │   ├── ObservedToolCall       several at a time, if the tools may run together
#     │   └── ObservedWrite          a checkpoint, or the request for an approval
#     └── ObservedWrite      the settlement
#
# Each is one mutable record: observers get it when it begins, and again, complete, when it has ended. They are not
# called for each token, but once for each batch of events that is shown.


SUCCESS = "success"


@dataclass(kw_only=True, eq=False)
class Observed:
    """Something that a run does. It compares by identity, so that an observer may use it as a key of a dictionary."""

    parent: "Observed | None" = None
    began_at: int = 0
    """Unix time in milliseconds."""
    ended_at: int = 0
    began_s: float = 0.0
    """By a monotonic clock, which also measures the duration `seconds`."""
    seconds: float = 0.0
    outcome: str = ""
    """Set at the end: `success`; an interruption (`cancelled`, `timed_out`, `budget`, `handed_over`, `lost`, `put_off`,
    `waits`, `interrupted`); or a failure (`error`, for a model call the `ModelErrorType`). A record with other outcomes
    documents them."""
    error: BaseException | None = None
    """The exception that ended it. Its text may be a model's or a tool's."""


@dataclass(kw_only=True, eq=False)
class ObservedRun(Observed):
    """One claim of a run. `outcome`: the status that this worker gave it (`completed`, `failed`, `cancelled`), `parked`
    if it waits for a person, `waits` if it waits for room in a budget or for other runs, `refused` if another owner
    ended it; else the interruption."""

    run: Run
    """The run as it was claimed: `fence` is the number of the attempt."""
    worker: str
    agent_name: str = ""
    """Known once the run is loaded."""
    queue_wait_s: float | None = None
    """From the run's submission to its first claim; None for later claims."""
    settled: Run | None = None
    """The run as this worker ended it."""
    cancelled_after_s: float | None = None
    """From a client's cancel request to the run's end; None if the cancel let the step end first."""
    interrupted_in: Literal["model", "tool", "between"] = "between"
    """The work that the interrupt cut off."""


@dataclass(kw_only=True, eq=False)
class ObservedStep(Observed):
    """One step. `outcome` is `parked` if its calls wait for a person or the client, and `waits` if they wait for other
    runs."""

    number: int
    """In the run, from 1."""
    goes_on: bool = False
    """The step makes only calls that an earlier owner left open or that a decision has allowed."""


@dataclass(kw_only=True, eq=False)
class ObservedModelCall(Observed):
    """One model call, with its retries."""

    call: ModelCall
    step: Step | None
    """The step of this call; None for the summary of a history that is too long."""
    provider: str
    model: str
    claimed_s: float
    """Seconds from the claim to the request."""
    is_silent: bool = True
    """No piece of the answer has arrived. The consumer of the stream calls `RunObservation.hear` only while this is
    true."""
    is_first: bool = False
    """The call brought the first piece of an answer in this claim of the run. A call for a summary never does."""
    first_piece_at: int = 0
    first_piece_s: float = 0.0
    """Seconds from the request to the first piece."""
    retries: int = 0
    usage: Usage | None = None
    """None if the call did not finish."""
    answer: AssistantMessage | None = None
    finish_reason: str = ""
    """As `Finished.reason`."""

    def finish(self, usage: Usage, reason: str, answer: AssistantMessage | None = None) -> None:
        """Records the complete answer; a summary has no message."""
        self.usage, self.finish_reason, self.answer = usage, reason, answer


@dataclass(kw_only=True, eq=False)
class ObservedToolCall(Observed):
    """One tool call. `outcome` is `error` if the tool returned an error or was not started."""

    call: ToolCall
    step_id: StepId | None
    """None if a client requested the call."""
    returned: ToolReturn | None = None

    def returns(self, returned: ToolReturn) -> None:
        """Records the result of the call."""
        self.returned, self.outcome = returned, SUCCESS if returned.status == "success" else "error"


@dataclass(kw_only=True, eq=False)
class ObservedWrite(Observed):
    """A write that the run waits for, with its retries while the database is unavailable."""

    kind: Literal["checkpoint", "park", "settle"]


class RunObserver:
    """Receives what happens to one run; a subclass overrides the methods that it needs. They are called on the event
    loop, in the task that does the work, and must not block. An exception that one raises is logged and ignored."""

    def for_run(self, run: ObservedRun) -> "RunObserver":
        """Returns the observer of a run that was just claimed: by default this one, which observes every run."""
        return self

    def began(self, what: Observed) -> None:
        """`what` begins. Its `parent` has begun and not ended."""

    def ended(self, what: Observed) -> None:
        """`what` has ended, possibly by an interrupt. Its record is complete."""

    def first_piece(self, call: ObservedModelCall) -> None:
        """The first piece of a model's answer has arrived."""

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        """A model call failed before its answer, and is retried."""

    def shown(self, size: int, delay_s: float | None) -> None:
        """Redis has events of `size` bytes, so live readers see them. The oldest was emitted `delay_s` seconds ago;
        `delay_s` is None for the end of the log, which SQL has numbered."""

    def restarted(self) -> None:
        """The events that readers have seen of a step are void; the step begins again."""

    def log_lost(self) -> None:
        """Redis has lost a part of the log; the publisher sends again what SQL lacks."""


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Record = TypeVar("Record", bound=Observed)

_OUTCOMES: Sequence[tuple[type[BaseException], str]] = (
    (CancelRequested, "cancelled"),
    (RunTimeout, "timed_out"),
    (BudgetExceeded, "budget"),
    (CallWaits, "waits"),
    (ShutdownRequested, "handed_over"),
    (MoreInput, "handed_over"),
    (LeaseLost, "lost"),
    (LifecycleError, "lost"),
    (Unavailable, "put_off"),
    (asyncio.CancelledError, "interrupted"),
    (GeneratorExit, "interrupted"),
)


class StepTimes(RunObserver):
    """The times of a run's steps, as far as one owner has executed them."""

    def __init__(self) -> None:
        self._timings: dict[StepId, StepTiming] = {}

    def of(self, step: Step) -> Step:
        """Returns the step with its known times."""
        timing = self._timings.get(step.id)
        return step if timing is None else replace(step, timing=timing)

    def calls_of(self, step_id: StepId) -> list[ToolTiming]:
        """Returns the calls of a step that this owner has made, in the order in which they ended."""
        return self._timings.get(step_id, StepTiming()).tools

    def ended(self, what: Observed) -> None:
        match what:
            case ObservedModelCall(step=Step() as step):
                answered_at = what.ended_at if what.outcome == SUCCESS else 0
                self._timings[step.id] = StepTiming(what.began_at, what.first_piece_at, answered_at)
            case ObservedToolCall(call=call, step_id=step_id) if step_id is not None:
                timing = self._timings.get(step_id, StepTiming())
                one = ToolTiming(call.id, call.name, what.began_at, what.ended_at, what.outcome != SUCCESS)
                self._timings[step_id] = replace(timing, tools=[*timing.tools, one])
            case _:
                pass


class RunObservation:
    """The observation of one claim of a run. `observers` observe every run of the worker."""

    def __init__(
        self, run: Run, *, worker: str, clock: Clock, interruption: Interruption, observers: Sequence[RunObserver] = ()
    ) -> None:
        waited_s = (clock.now() - run.created_at).total_seconds()
        self.run = ObservedRun(run=run, worker=worker, queue_wait_s=max(waited_s, 0) if run.fence == 1 else None)
        self.times = StepTimes()
        self._clock = clock
        self._interruption = interruption
        self._observers: list[RunObserver] = [self.times, *(observer.for_run(self.run) for observer in observers)]
        self._step: Observed = self.run
        self._claimed_at = clock.monotonic()
        self._has_answered = False

    def executing(self) -> AbstractContextManager[ObservedRun]:
        """Wraps all work of this worker on the run."""
        return self._observed(self.run)

    def step(self, number: int, *, goes_on: bool = False) -> AbstractContextManager[ObservedStep]:
        """Wraps a step. Steps do not overlap."""
        return self._observed(ObservedStep(parent=self.run, number=number, goes_on=goes_on))

    def model_call(self, call: ModelCall, step: Step | None) -> AbstractContextManager[ObservedModelCall]:
        """Wraps a model call, with its retries. The consumer of the answer's pieces calls `hear`."""
        provider, _, model = call.handle.partition("/")
        claimed_s = self._clock.monotonic() - self._claimed_at
        return self._observed(
            ObservedModelCall(
                parent=self._step, call=call, step=step, provider=provider, model=model, claimed_s=claimed_s
            )
        )

    def hear(self, call: ObservedModelCall, event: ModelEvent) -> None:
        """Reports the first piece of an answer, or a failure that is retried before it."""
        if isinstance(event, AttemptFailed):
            call.retries = event.attempt
            failure = event
            self._tell(lambda observer: observer.retried(call, failure))
            return
        call.is_silent = False
        call.first_piece_at = unix_ms(self._clock.now())
        call.first_piece_s = self._clock.monotonic() - call.began_s
        if call.step is not None:
            call.is_first, self._has_answered = not self._has_answered, True
        self._tell(lambda observer: observer.first_piece(call))

    def tool_call(self, call: ToolCall, step_id: StepId | None) -> AbstractContextManager[ObservedToolCall]:
        """Wraps a tool call. The caller passes the result to `returns`."""
        return self._observed(ObservedToolCall(parent=self._step, call=call, step_id=step_id))

    def write(self, kind: Literal["checkpoint", "park", "settle"]) -> AbstractContextManager[ObservedWrite]:
        """Wraps a write that the run waits for."""
        return self._observed(ObservedWrite(parent=self._step, kind=kind))

    def ended_as(self, settled: Run, now: datetime) -> None:
        """Reports that this worker has stored the run's end."""
        self.run.settled, self.run.outcome = settled, settled.status
        cancel = settled.cancel
        if settled.status is not RunStatus.CANCELLED or cancel is None:
            return
        # With this mode, the client waits for the model or the tool deliberately.
        if cancel.mode is not CancelMode.AFTER_STEP:
            self.run.cancelled_after_s = max((now - cancel.requested_at).total_seconds(), 0)

    def left_as(self, outcome: Literal["parked", "waits", "refused"]) -> None:
        """Reports that this worker gave the run up without ending it."""
        self.run.outcome = outcome

    def shown(self, size: int, delay_s: float | None) -> None:
        """See `RunObserver.shown`. Called once for each batch of events."""
        self._tell(lambda observer: observer.shown(size, delay_s))

    def restarted(self) -> None:
        """See `RunObserver.restarted`."""
        self._tell(lambda observer: observer.restarted())

    def log_lost(self) -> None:
        """See `RunObserver.log_lost`."""
        self._tell(lambda observer: observer.log_lost())

    def _observed(self, record: Record) -> "_Scope[Record]":
        return _Scope(self, record)

    def begin(self, what: Observed) -> None:
        """Called by the scope of `what`."""
        what.began_at, what.began_s = unix_ms(self._clock.now()), self._clock.monotonic()
        if isinstance(what, ObservedStep):
            self._step = what
        self._tell(lambda observer: observer.began(what))

    def end(self, what: Observed, error: BaseException | None) -> None:
        """Called by the scope of `what`."""
        what.ended_at, what.seconds = unix_ms(self._clock.now()), self._clock.monotonic() - what.began_s
        what.error = error
        what.outcome = what.outcome or self._outcome_of(error)
        if what is self._step:
            self._step = self.run
        if isinstance(error, asyncio.CancelledError) and self.run.interrupted_in == "between":
            self.run.interrupted_in = _part_of(what)
        self._tell(lambda observer: observer.ended(what))

    def _tell(self, tell: Callable[[RunObserver], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:
                # An observer that raises must not fail the run or starve the other observers.
                log.exception("observer_failed", observer=type(observer).__name__)

    def _outcome_of(self, error: BaseException | None) -> str:
        if error is None:
            return SUCCESS
        if isinstance(error, ModelError):
            return error.error_type
        if isinstance(error, asyncio.CancelledError) and self._interruption.error is not None:
            error = self._interruption.error
        return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), "error")


def _part_of(what: Observed) -> Literal["model", "tool", "between"]:
    match what:
        case ObservedModelCall():
            return "model"
        case ObservedToolCall():
            return "tool"
        case _:
            return "between"


class _Scope(AbstractContextManager[Record], Generic[Record]):
    """The block that wraps an observed thing."""

    def __init__(self, observation: RunObservation, record: Record) -> None:
        self._observation = observation
        self._record = record

    def __enter__(self) -> Record:
        self._observation.begin(self._record)
        return self._record

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._observation.end(self._record, error)
