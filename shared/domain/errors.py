"""Every error that Holdfast raises on purpose. The docstring is the default message; nothing here knows HTTP.

HoldfastError
├── NotFound                    an id that this project does not have
│   ├── UnknownModel                a name of OpenAI's dialect that is neither an agent nor a conversation
│   └── UnknownHandle               a handle that is no model's
├── InvalidRequest              the request cannot be understood or makes no sense
│   ├── BlockTooLong                a block's value does not fit its limit
│   ├── InvalidToolSource       a tool's source cannot be turned into a schema
│   ├── UnknownTools            an agent is to get tools that the project does not have
│   ├── NoPendingApproval       a decision, but nothing waits for one
│   └── WrongToolCalls          a decision that does not cover exactly the waiting calls
├── Conflict                    true request, wrong moment
│   ├── NothingToCancel
│   ├── NameTaken                a submission comes under the name of another one
│   ├── PendingApproval         a person must decide before this history can go on
│   └── Busy                    another run of this conversation is active
├── LimitReached                a limit is used up for now (`limits.py`)
├── MoreInput                   a run that has taken in a message cannot end without answering it
├── LogClosed                   nothing may be emitted behind the end of a log
├── LifecycleError
│   ├── IllegalTransition       the table has no such move
│   └── StaleFence              somebody else has claimed the run since
├── RunInterrupted              raised inside a run by what ends it from outside
│   ├── CancelRequested
│   ├── LeaseLost
│   ├── RunTimeout
│   ├── BudgetExceeded
│   └── ShutdownRequested
├── ModelError                  a model call that failed; carries the error type of the wire
├── UnreadableSecret            an agent's secret is encrypted, and its key is not here
└── Unavailable                 a service that we need does not answer
    └── Unusable                it is there, and does not serve us as it is set up: waiting does not help
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from shared.domain.approvals import WaitingCalls
from shared.domain.error_codes import ErrorCode


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    field: str | None = None
    """The field of a request, or its parameter, that the error is about: `memory_blocks[0].limit`."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])

    @property
    def message(self) -> str:
        return str(self)


class NotFound(HoldfastError):
    """There is nothing with this id."""


class UnknownModel(NotFound):
    """What a client of OpenAI's dialect calls a model is neither an agent nor a conversation of its project."""

    field = "model"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model {model[:100]!r} does not exist: give the id of an agent (agent-…; GET /v1/agents lists them) "
            "or of a conversation (conv-…)"
        )


class UnknownHandle(NotFound):
    """The handle that a request names is no model's."""

    field = "override_model"

    def __init__(self, handle: str, reason: str) -> None:
        super().__init__(f"Model {handle[:100]!r} not found or not accessible: {reason}")


class InvalidRequest(HoldfastError):
    """The request is not valid."""

    def __init__(self, message: str | None = None, *, field: str | None = None) -> None:
        super().__init__(message)
        if field is not None:
            self.field = field


class BlockTooLong(InvalidRequest):
    """The value is longer than the block's limit."""

    field = "value"


class InvalidToolSource(InvalidRequest):
    """The tool's source cannot be turned into a schema."""

    field = "source_code"


class UnknownTools(InvalidRequest):
    """The project has no tools of these names."""

    field = "tools"

    def __init__(self, names: Sequence[str], hints: Sequence[str] = ()) -> None:
        # The wire's words: programs look for them, and go on without these tools.
        listed = ", ".join(map(repr, names))
        what_to_do = " ".join([*hints, "GET /v1/tools lists what there is; PUT makes a tool."])
        super().__init__(f"Tools not found by name: {{{listed}}}. {what_to_do}")


class NoPendingApproval(InvalidRequest):
    """A decision was sent, but no tool call waits for one."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot process approval response: No tool call is currently awaiting approval. "
            "Please send a regular message to interact with the agent."
        )


class WrongToolCalls(InvalidRequest):
    """The decision does not cover exactly the tool calls that wait for one."""

    field = "approvals"

    def __init__(self, expected: list[str], received: list[str]) -> None:
        super().__init__(f"Invalid tool call IDs. Expected '{expected}', but received '{received}'.")


class Conflict(HoldfastError):
    """The request does not fit the present state."""


class NothingToCancel(Conflict):
    """There is no active run to cancel."""


class NameTaken(Conflict):
    """Something else was sent under this otid or Idempotency-Key: give what is new a new one."""

    def __init__(self, *, name: str, run_id: str) -> None:
        super().__init__(
            f"Something else was sent under {name} (run {run_id}), and this was not sent: give what is new a new one, "
            "or send again exactly what was sent first."
        )
        self.run_id = run_id


class PendingApproval(Conflict):
    """A tool call waits for approval: decide it before sending a new message."""

    def __init__(self, waiting: WaitingCalls) -> None:
        super().__init__(
            "Cannot send a new message: The agent is waiting for approval on a tool call. "
            "Please approve or deny the pending request before continuing."
        )
        self.waiting = waiting


class AlreadyDecided(Conflict):
    """These tool calls were decided before; nothing was started again."""


class Busy(Conflict):
    """Another run of this conversation is active."""

    def __init__(self, *, run_id: str) -> None:
        super().__init__(
            f"Another request is being processed for this conversation (run {run_id}). Wait for it to end, cancel it, "
            "or say what to do with `if_busy`: enqueue, interrupt, rollback or inject."
        )
        self.run_id = run_id


class MoreInput(HoldfastError):
    """The run has taken in a message since its last answer was given."""


class MustRunAlone(HoldfastError):
    """Workers were lost with the run before it finished a step: only a worker that runs nothing else may claim it."""


class LogClosed(HoldfastError):
    """The end of the log is being stored: nothing more may be emitted."""


class LifecycleError(HoldfastError):
    """A run cannot be moved like that."""


class IllegalTransition(LifecycleError):
    """The run's status does not allow this."""

    def __init__(self, status: str, trigger: str) -> None:
        super().__init__(f"a run that is {status} cannot {trigger}")
        self.status = status
        self.trigger = trigger


class StaleFence(LifecycleError):
    """Somebody else has claimed the run since."""

    def __init__(self, run_id: str, held: int, current: int | None) -> None:
        super().__init__(f"{run_id} was claimed again: this worker holds fence {held}, the run has {current}")


class RunInterrupted(HoldfastError):
    """The run was stopped from outside."""


class CancelMode(StrEnum):
    """What a cancel does with the work in hand."""

    INTERRUPT = "interrupt"
    """Stop now; what was streamed is kept, marked partial."""
    AFTER_STEP = "after_step"
    """Let the step in hand end, then stop."""
    ROLLBACK = "rollback"
    """Stop now, and take the run's messages out of the conversation."""


class CancelRequested(RunInterrupted):
    """Somebody asked for the run to be cancelled."""

    def __init__(self, mode: CancelMode = CancelMode.INTERRUPT) -> None:
        super().__init__()
        self.mode = mode


class LeaseLost(RunInterrupted):
    """Another worker may own the run now: nothing more may be written for it."""


class RunTimeout(RunInterrupted):
    """The run took longer than it may."""


class BudgetExceeded(RunInterrupted):
    """The run has used up its budget, or a share that it has with others. `room_at` is when the share is renewed; None
    for the run's own, which is not."""

    def __init__(self, message: str, *, room_at: datetime | None = None) -> None:
        super().__init__(message)
        self.room_at = room_at


class ShutdownRequested(RunInterrupted):
    """This worker is going away: the run goes on elsewhere."""


class ModelErrorType(StrEnum):
    """The error types of the wire, for a model call that failed."""

    RATE_LIMIT = ErrorCode.LLM_RATE_LIMIT
    AUTHENTICATION = ErrorCode.LLM_AUTHENTICATION
    TIMEOUT = ErrorCode.LLM_TIMEOUT
    BAD_REQUEST = ErrorCode.LLM_BAD_REQUEST
    CONTEXT_WINDOW = ErrorCode.CONTEXT_WINDOW_EXCEEDED
    INSTRUCTIONS = ErrorCode.INSTRUCTIONS_TOO_LONG
    ERROR = ErrorCode.LLM_ERROR


MODEL_ERROR_MESSAGES: Mapping[str, str] = {
    ModelErrorType.RATE_LIMIT: (
        "Rate limit exceeded for LLM model provider. Please wait before making another request."
    ),
    ModelErrorType.AUTHENTICATION: "Authentication failed with the LLM model provider.",
    ModelErrorType.TIMEOUT: "The LLM request timed out.",
    ModelErrorType.BAD_REQUEST: "The request to the LLM model provider was invalid.",
    ModelErrorType.CONTEXT_WINDOW: "The conversation no longer fits into the model's context window.",
    ModelErrorType.INSTRUCTIONS: "The agent's instructions alone are longer than the model's context window.",
    ModelErrorType.ERROR: "An error occurred with the LLM request.",
}
"""The wire's sentence for each type. What the provider said goes beside it."""


class ModelError(HoldfastError):
    """A model call failed."""

    def __init__(
        self,
        error_type: ModelErrorType,
        detail: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        """`detail` is the provider's own text; `retry_after` is in seconds; `status` is the provider's HTTP status."""
        super().__init__(detail)
        self.error_type = error_type
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status

    @property
    def facts(self) -> str:
        """What a log may say of it. The provider's text may quote the conversation."""
        return self.error_type if self.status is None else f"{self.error_type} (HTTP {self.status})"


class UnreadableSecret(HoldfastError):
    """A secret of an agent is encrypted and cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name!r} cannot be read: {reason}")
        self.reason = reason
        """Without the name, which is the agent's owner's."""


class Unavailable(HoldfastError):
    """A service that Holdfast needs does not answer."""

    def __init__(self, message: str | None = None, **context: Any) -> None:
        super().__init__(message)
        self.context = context


class Unusable(Unavailable):
    """A service that Holdfast needs is there, but does not serve it as it is set up."""
