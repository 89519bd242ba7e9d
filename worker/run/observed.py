"""What observers of a run are told: a record of each thing that the run does. `observation` tells them.

    ObservedRun            from its claim until this worker has it no more
    ├── ObservedStep       one model call with what belongs to it, or the calls that an earlier owner left open
    │   ├── ObservedModelCall      the step's own, and that of a summary; its retries, and its first piece
    │   ├── ObservedToolCall       several at a time, if the tools may run together
    │   └── ObservedWrite          a checkpoint, or the question for an approval
    └── ObservedWrite      the settlement

Each is one mutable record: observers get it when it begins, and again, filled in, when it has ended. Of a token an
observer hears nothing; of a batch of events that was shown, it hears once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shared.domain.ids import StepId
from shared.domain.messages import AssistantMessage, ToolCall, ToolReturn
from shared.domain.runs import Run, Step, Usage
from worker.models.provider import AttemptFailed, ModelCall

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
