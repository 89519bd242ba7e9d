"""Tells observers what happens to a run in its worker: the one place where a run is observed.

A `RunObservation` is made with each claim of a run, and is reached as `publisher.observation` and
`context.observation`. Code that does something says so here, once, and the observers hear it: the times of the
steps, the metrics, the traces. Nothing else in the worker knows of measurements, and nothing here decides anything
about the run.
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
from shared.domain.runs import Run, Step, StepTiming, ToolTiming, Usage
from worker.models.provider import AttemptFailed, ModelCall, ModelEvent
from worker.run.interruption import Interruption

# What observers of a run hear: a record of each thing that the run does.
#
#     ObservedRun            from its claim until this worker has it no more
#     ├── ObservedStep       one model call with what belongs to it, or the calls that an earlier owner left open
#     │   ├── ObservedModelCall      the step's own, and that of a summary; its retries, and its first piece
#     │   ├── ObservedToolCall       several at a time, if the tools may run together
#     │   └── ObservedWrite          a checkpoint, or the question for an approval
#     └── ObservedWrite      the settlement
#
# Each is one mutable record: observers get it when it begins, and again, filled in, when it has ended. Of a token an
# observer hears nothing; of a batch of events that was shown, it hears once.


SUCCESS = "success"


@dataclass(kw_only=True, eq=False)
class Observed:
    """Something that a run does. Told apart by identity, so that an observer may keep it in a dictionary."""

    parent: "Observed | None" = None
    began_at: int = 0
    """Unix time in milliseconds."""
    ended_at: int = 0
    began_s: float = 0.0
    """By a clock that never goes back, as `seconds`, which says how long it took."""
    seconds: float = 0.0
    outcome: str = ""
    """Set when it ends: `success`; what interrupted it (`cancelled`, `timed_out`, `budget`, `handed_over`, `lost`,
    `put_off`, `interrupted`); or how it failed (`error`, for a model call the `ModelErrorType`). A record that says
    more of its outcome documents it."""
    error: BaseException | None = None
    """What it ended with. Its text may be a model's or a tool's."""


@dataclass(kw_only=True, eq=False)
class ObservedRun(Observed):
    """One claim of a run. `outcome`: the status that this worker gave it (`completed`, `failed`, `cancelled`), `parked`
    when it waits for a person, `waits` when it waits for room in a budget, `refused` when its end was another owner's;
    else what interrupted it."""

    run: Run
    """As it was claimed: `fence` is the number of the attempt."""
    worker: str
    agent_name: str = ""
    """Known when the run was loaded."""
    queue_wait_s: float | None = None
    """From its submission to its first claim; None for a later one."""
    settled: Run | None = None
    """The run as this worker ended it."""
    cancelled_after_s: float | None = None
    """From a client's wish to cancel it to its end; None for one that let the step end first."""
    interrupted_in: Literal["model", "tool", "between"] = "between"
    """What an interrupt has cut off."""


@dataclass(kw_only=True, eq=False)
class ObservedStep(Observed):
    """One step. `outcome` is `parked` when its calls wait for a person or the client."""

    number: int
    """In the run, from 1."""
    goes_on: bool = False
    """Only the calls are made here that an earlier owner left open, or that a decision has allowed."""


@dataclass(kw_only=True, eq=False)
class ObservedModelCall(Observed):
    """One call of a model, with its retries."""

    call: ModelCall
    step: Step | None
    """The step that this call makes; None for the summary of a history that became too long."""
    provider: str
    model: str
    claimed_s: float
    """Seconds from the claim until the model was asked."""
    is_silent: bool = True
    """Nothing of the answer has come. Whoever takes pieces looks at it before it calls `RunObservation.hear`."""
    is_first: bool = False
    """With it came the first piece of an answer in this claim of the run. A summary answers nobody."""
    first_piece_at: int = 0
    first_piece_s: float = 0.0
    """Seconds from the question to the first piece."""
    retries: int = 0
    usage: Usage | None = None
    """None: the call did not get to its end."""
    answer: AssistantMessage | None = None
    finish_reason: str = ""
    """As `Finished.reason`."""

    def finish(self, usage: Usage, reason: str, answer: AssistantMessage | None = None) -> None:
        """The answer is whole; of a summary there is no message."""
        self.usage, self.finish_reason, self.answer = usage, reason, answer


@dataclass(kw_only=True, eq=False)
class ObservedToolCall(Observed):
    """One call of a tool. `outcome` is `error` when the tool said so, or was not started."""

    call: ToolCall
    step_id: StepId | None
    """None: a client asked for the call."""
    returned: ToolReturn | None = None

    def returns(self, returned: ToolReturn) -> None:
        """What the call came to."""
        self.returned, self.outcome = returned, SUCCESS if returned.status == "success" else "error"


@dataclass(kw_only=True, eq=False)
class ObservedWrite(Observed):
    """A write that the run waits for, with its repetitions while the database is away."""

    kind: Literal["checkpoint", "park", "settle"]


class RunObserver:
    """Is told what happens to one run; a subscriber overrides what it wants to know. All of it is called on the event
    loop, in the task that does the thing, and must not wait. What one raises is logged, and ends nothing."""

    def began(self, what: Observed) -> None:
        """Something begins. Its `parent` is under way."""

    def ended(self, what: Observed) -> None:
        """It has ended, also when it was interrupted. Its record is complete."""

    def first_piece(self, call: ObservedModelCall) -> None:
        """The first piece of a model's answer came."""

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        """A model call failed before its answer, and is tried again."""

    def shown(self, size: int, delay_s: float | None) -> None:
        """Events of `size` bytes are in Redis' log, and so before live readers; the oldest of them came up `delay_s`
        seconds ago. None: they are the log's end, which SQL has made."""

    def restarted(self) -> None:
        """What readers have seen of a step is void: it begins again."""

    def log_lost(self) -> None:
        """Redis has lost a part of the log, and is sent again what SQL lacks."""


ObserverOf = Callable[[ObservedRun], RunObserver]
"""Makes the observer of a run that was just claimed."""


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Record = TypeVar("Record", bound=Observed)

_OUTCOMES: Sequence[tuple[type[BaseException], str]] = (
    (CancelRequested, "cancelled"),
    (RunTimeout, "timed_out"),
    (BudgetExceeded, "budget"),
    (ShutdownRequested, "handed_over"),
    (MoreInput, "handed_over"),
    (LeaseLost, "lost"),
    (LifecycleError, "lost"),
    (Unavailable, "put_off"),
    (asyncio.CancelledError, "interrupted"),
    (GeneratorExit, "interrupted"),
)


class StepTimes(RunObserver):
    """The times of what one owner of a run has seen of its steps."""

    def __init__(self) -> None:
        self._timings: dict[StepId, StepTiming] = {}

    def of(self, step: Step) -> Step:
        """The step with its times, as far as they are known."""
        timing = self._timings.get(step.id)
        return step if timing is None else replace(step, timing=timing)

    def calls_of(self, step_id: StepId) -> list[ToolTiming]:
        """The calls of a step that were made here, as they ended."""
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
    """One claim of a run, as it is observed. `observers` make those who hear of it; `claimed_at` is the moment of the
    claim."""

    def __init__(
        self,
        run: Run,
        *,
        worker: str,
        clock: Clock,
        interruption: Interruption,
        observers: Sequence[ObserverOf] = (),
    ) -> None:
        waited_s = (clock.now() - run.created_at).total_seconds()
        self.run = ObservedRun(run=run, worker=worker, queue_wait_s=max(waited_s, 0) if run.fence == 1 else None)
        self.times = StepTimes()
        self._clock = clock
        self._interruption = interruption
        self._observers: list[RunObserver] = [self.times, *(observer_of(self.run) for observer_of in observers)]
        self._step: Observed = self.run
        self._claimed_at = clock.monotonic()
        self._has_answered = False

    def executing(self) -> AbstractContextManager[ObservedRun]:
        """Around all that this worker does with the run."""
        return self._observed(self.run)

    def step(self, number: int, *, goes_on: bool = False) -> AbstractContextManager[ObservedStep]:
        """Around a step. One at a time."""
        return self._observed(ObservedStep(parent=self.run, number=number, goes_on=goes_on))

    def model_call(self, call: ModelCall, step: Step | None) -> AbstractContextManager[ObservedModelCall]:
        """Around a call of a model, with its retries. Whoever takes the answer's pieces calls `hear`."""
        provider, _, model = call.handle.partition("/")
        claimed_s = self._clock.monotonic() - self._claimed_at
        return self._observed(
            ObservedModelCall(
                parent=self._step,
                call=call,
                step=step,
                provider=provider,
                model=model,
                claimed_s=claimed_s,
            )
        )

    def hear(self, call: ObservedModelCall, event: ModelEvent) -> None:
        """An event came while the model was still silent: its first piece, or a failure that is tried again."""
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
        """Around a call of a tool. `returns` takes its result."""
        return self._observed(ObservedToolCall(parent=self._step, call=call, step_id=step_id))

    def write(self, kind: Literal["checkpoint", "park", "settle"]) -> AbstractContextManager[ObservedWrite]:
        """Around a write that the run waits for."""
        return self._observed(ObservedWrite(parent=self._step, kind=kind))

    def ended_as(self, settled: Run, now: datetime) -> None:
        """This worker has stored the run's end."""
        self.run.settled, self.run.outcome = settled, settled.status
        cancel = settled.cancel
        if settled.status is not RunStatus.CANCELLED or cancel is None:
            return
        # A client that lets the step end waits for the model or the tool because it wants to.
        if cancel.mode is not CancelMode.AFTER_STEP:
            self.run.cancelled_after_s = max((now - cancel.requested_at).total_seconds(), 0)

    def left_as(self, outcome: Literal["parked", "waits", "refused"]) -> None:
        """This worker has the run no more, and has not ended it."""
        self.run.outcome = outcome

    def shown(self, size: int, delay_s: float | None) -> None:
        """See `RunObserver.shown`. Once for each batch of events."""
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
        """Its scope calls it."""
        what.began_at, what.began_s = unix_ms(self._clock.now()), self._clock.monotonic()
        if isinstance(what, ObservedStep):
            self._step = what
        self._tell(lambda observer: observer.began(what))

    def end(self, what: Observed, error: BaseException | None) -> None:
        """Its scope calls it."""
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
    """The block in which something happens."""

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
