"""The errors that Holdfast raises on purpose. The docstring is the default message; nothing here knows HTTP.

HoldfastError
├── NotFound                    an id that this project does not have
│   ├── UnknownModel            a name of OpenAI's dialect that is neither an agent nor a conversation
│   └── UnknownHandle           a handle of no known model
├── InvalidRequest              the request cannot be understood or makes no sense
│   ├── UnknownPrevious         an earlier response that cannot be continued
│   ├── InvalidCursor           a cursor that no frame has
│   ├── BlockTooLong            a block's value does not fit its limit
│   ├── InvalidToolSource       a tool's source cannot be turned into a schema
│   ├── UnknownTools            an agent is to get tools that the project does not have
│   ├── NoPendingApproval       a decision, but nothing waits for one
│   └── WrongToolCalls          a decision that does not cover exactly the waiting calls
├── Conflict                    a valid request at the wrong time
│   ├── NothingToCancel, AlreadyDecided, DecidedOtherwise, HistoryWentOn
│   ├── NameTaken               the name of a submission belongs to another one
│   ├── PendingApproval         a person must decide before this history can go on
│   └── Busy                    another run of this conversation is active
├── LimitReached                a limit is used up for now (`limits.py`)
├── MoreInput                   a run that has taken in a message cannot end without answering it
├── QuarantineRequired          only a worker without other runs may claim this run
├── OtherVersion                the run needs a version of its code that this worker does not have
├── LogClosed                   nothing may be emitted after the end of a log
├── LifecycleError
│   ├── IllegalTransition       the table has no such move
│   ├── DeletedRun              also a NotFound: a run that is gone, for its worker as for a client
│   └── StaleFence              another worker has claimed the run since
├── RunInterrupted              raised inside a run by an end from outside
│   └── CancelRequested, LeaseLost, RunTimeout, BudgetExceeded, ShutdownRequested
├── ModelError                  a failed model call, with the kind of its failure
├── McpServerUnavailable        a project's MCP server was not reached, or sent an invalid answer
├── McpSignInNeeded             the MCP server refuses requests until a person signs in
├── UnreadableSecret            an agent's secret is encrypted, and this process lacks the key
└── Unavailable                 a service that we need does not answer
    └── Unusable                it is there, but its setup does not fit us: waiting does not help
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from shared.domain.approvals import WaitingCalls

# The codes of errors: every error that a client sees has one, in addition to its dialect's own name.
#
# A code is stable: programs may depend on it. Sentences may change. docs/errors.md shows the table, and a test compares
# the two.


class ErrorCode(StrEnum):
    """A code, and advice for its reader unless the error itself brings better advice."""

    hint: str

    def __new__(cls, code: str, hint: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.hint = hint
        return member

    # The request itself.
    INVALID_ARGUMENT = "invalid_argument", "Change what `field` and `message` name, and send the request again."
    UNKNOWN_FIELD = "unknown_field", "Correct or remove the name, or send the request without X-Holdfast-Strict."
    BLOCK_TOO_LONG = "block_too_long", "Shorten the block's value, or raise its `limit`."
    INVALID_TOOL_SOURCE = "invalid_tool_source", "Correct the tool's source_code as `message` says."
    TOOLS_NOT_FOUND = "tools_not_found", "GET /v1/tools lists the project's tools; make the missing ones first."
    NO_PENDING_APPROVAL = "no_pending_approval", "Send a message: nothing waits for a decision."
    WRONG_TOOL_CALLS = "wrong_tool_calls", "Decide exactly the calls that wait: GET /v1/approvals lists them."
    BODY_TOO_LARGE = "body_too_large", "Send less in one request, or raise HOLDFAST_MAX_BODY_BYTES."
    BODY_TIMEOUT = "body_timeout", "Send the request again; a slow client needs a longer HOLDFAST_REQUEST_TIMEOUT."
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", "Send the body in the form that `message` names."
    INVALID_HTTP = "invalid_http", "Use an HTTP/1.1 client: the received bytes are no HTTP request."
    URL_TOO_LONG = "url_too_long", "Shorten the URL: 16 KiB are the most."
    HEAD_TOO_LARGE = "head_too_large", "Send fewer or shorter headers: 100 headers and 64 KiB are the most."

    # The caller, and the rate of its requests.
    MISSING_API_KEY = "missing_api_key", "Send `Authorization: Bearer <key>`."
    INVALID_API_KEY = "invalid_api_key", "Use a key of this server that has not ended: an operator makes one."
    INVALID_STREAM_TOKEN = "invalid_stream_token", "Ask for a new token: POST /v1/runs/{run_id}/stream-token."
    INVALID_PAGE_TOKEN = "invalid_page_token", "Ask for a new token: POST /v1/agents/{agent_id}/page-token."
    FORBIDDEN = "forbidden", "Use a key that has the scope which `message` names."
    FORBIDDEN_ORIGIN = "forbidden_origin", "Allow the name in HOLDFAST_ALLOWED_HOSTS, or set HOLDFAST_API_KEYS."
    RATE_LIMITED = "rate_limited", "Wait for the seconds in Retry-After, then send the request again."
    TOO_MANY_CONNECTIONS = "too_many_connections", "Come again in some seconds, and use connections more than once."

    # The objects that the request names.
    NOT_FOUND = "not_found", "Check the id: it is wrong, deleted, or of another project than the key's."
    MODEL_NOT_FOUND = "model_not_found", "Give the id of an agent or of a conversation: GET /v1/agents lists agents."
    PREVIOUS_RESPONSE_NOT_FOUND = (
        "previous_response_not_found",
        "Name a response of this project that has ended and was not deleted, or send the whole story as `input`.",
    )
    PATH_NOT_FOUND = "path_not_found", "docs/api.md and /openapi.json list the paths."
    METHOD_NOT_ALLOWED = "method_not_allowed", "Use one of the methods in the Allow header."
    NOT_IMPLEMENTED = "not_implemented", "docs/api.md lists the paths of Letta's API that this server has."

    # The present state, which refuses the request.
    CONFLICT = "conflict", "Read the present state, and decide again."
    NOTHING_TO_CANCEL = "nothing_to_cancel", "Nothing: no run is active. GET /v1/runs shows how they have ended."
    IDEMPOTENCY_CONFLICT = "idempotency_conflict", "Send a new submission under a new otid or Idempotency-Key."
    PENDING_APPROVAL = "pending_approval", "Decide the calls that wait, or cancel their run."
    ALREADY_DECIDED = "already_decided", "Nothing: the first decision stands."
    CONVERSATION_BUSY = "conversation_busy", "Wait for the run in `run_id`, cancel it, or send `if_busy`."
    RUN_CHANGED = "run_changed", "Read the run again, GET /v1/runs/{run_id}: it has moved on meanwhile."

    # This server, and the services that it needs.
    INTERNAL_ERROR = "internal_error", "Look into the server's log for the request's id, which is in X-Request-Id."
    MCP_SERVER_UNAVAILABLE = "mcp_server_unavailable", "Correct the MCP server's address or secrets, or wait for it."
    MCP_SIGN_IN_NEEDED = "mcp_sign_in_needed", "Sign in: `holdfast mcp sign-in SERVER`, or as docs/mcp.md describes."
    SERVICE_UNAVAILABLE = "service_unavailable", "Send the request again when Retry-After has passed."
    SERVER_ENDING = "server_ending", "Ask again: another process, or this one's successor, answers."
    LOG_GAP = "log_gap", "Read the messages of the run: GET /v1/runs/{run_id}/messages."
    RUN_DELETED = "run_deleted", "Nothing: the run was deleted while it was read."

    # Failures of runs.
    RUN_TIMEOUT = "run_timeout", "Give the agent less to do at once, or raise HOLDFAST_RUN_TIMEOUT."
    BUDGET_EXCEEDED = "budget_exceeded", "Raise the budget of the run, or let it do less."
    BODY_ERROR = (
        "body_error",
        "Correct the agent's code: `detail` has the exception, and the worker's log its traceback.",
    )
    BODY_CHANGED = "body_changed", "Deploy the code that began the run, or send the message again for the new code."
    BODY_CRASHED = "body_crashed", "See why the agent's process ends: `detail` has the signal and the step in hand."
    BODY_OUT_OF_MEMORY = "body_out_of_memory", "Have the agent keep less at once, or raise HOLDFAST_AGENTS_MAX_MB."
    WORKER_LOST = "worker_lost", "See why workers end with this run, memory most of all, and send the message again."
    LLM_RATE_LIMIT = "llm_rate_limit", "Wait, then send the message again, or raise the quota at the model's provider."
    LLM_AUTHENTICATION = "llm_authentication", "Correct the provider's key in the workers' settings."
    LLM_TIMEOUT = "llm_timeout", "Send the message again; a slow model needs a longer HOLDFAST_IDLE_TIMEOUT."
    LLM_BAD_REQUEST = "llm_bad_request", "Read in `detail` why the provider refuses the model's settings or the input."
    LLM_ERROR = "llm_error", "Send the message again; `detail` has the text of the provider."
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded", "Compact the history, or take a model with a larger window."
    INSTRUCTIONS_TOO_LONG = (
        "context_window_overflow_in_system_prompt",
        "Shorten the agent's system prompt, blocks and tools, or take a model with a larger window.",
    )


def error_fields(code: ErrorCode, message: str, *, field: str | None = None, hint: str = "") -> dict[str, Any]:
    """The fields that every error has on every port, in addition to those of its dialect."""
    return {"code": code, "message": message, "field": field, "hint": hint or code.hint}


def code_of(error_type: str) -> ErrorCode:
    """The code of a run that failed with this error type. A newer release may have written an unknown type."""
    try:
        return ErrorCode(error_type)
    except ValueError:
        return ErrorCode.INTERNAL_ERROR


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
    """The `model` of a request in OpenAI's dialect names nothing that answers."""

    field = "model"

    def __init__(self, model: str, reason: str = "") -> None:
        known = "give the id of an agent (agent-…; GET /v1/agents lists them) or of a conversation (conv-…)"
        super().__init__(f"The model {model[:100]!r} does not exist: {reason or known}")


class UnknownHandle(NotFound):
    """The handle in the request is not the handle of a model."""

    field = "override_model"

    def __init__(self, handle: str, reason: str) -> None:
        super().__init__(f"Model {handle[:100]!r} not found or not accessible: {reason}")


class InvalidRequest(HoldfastError):
    """The request is not valid."""

    def __init__(self, message: str | None = None, *, field: str | None = None) -> None:
        super().__init__(message)
        if field is not None:
            self.field = field


class UnknownPrevious(InvalidRequest):
    """The request names an earlier response that cannot be continued."""

    field = "previous_response_id"


class InvalidCursor(InvalidRequest):
    """The cursor does not have the form of this kind of stream."""


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
        # Programs look for these words, and continue without these tools.
        listed = ", ".join(map(repr, names))
        what_to_do = " ".join([*hints, "GET /v1/tools lists the project's tools; PUT makes a tool."])
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
    """Another submission has this otid or Idempotency-Key: give a new submission a new one."""

    def __init__(self, *, name: str, run_id: str) -> None:
        super().__init__(
            f"Another submission (run {run_id}) has {name}, so this one was refused: give a new submission a new one, "
            "or repeat the first submission exactly."
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


class DecidedOtherwise(Conflict):
    """The call was decided before, in another way."""


class HistoryWentOn(Conflict):
    """A newer run has continued from the place where the caller meant to continue."""


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


class QuarantineRequired(HoldfastError):
    """Workers were lost with the run before it finished a step: only a worker that runs nothing else may claim it."""


class OtherVersion(HoldfastError):
    """The run began in a version of its code that this worker does not have."""

    def __init__(self, agent: str, version: str, fence: int) -> None:
        super().__init__(f"the run began in version {version} of {agent}")
        self.agent = agent
        self.version = version
        self.fence = fence
        """The run's fence at the refusal."""


class LogClosed(HoldfastError):
    """The end of the log is being stored: nothing more may be emitted."""


class LifecycleError(HoldfastError):
    """The run's state does not allow this move."""


class IllegalTransition(LifecycleError):
    """The run's status does not allow this."""

    def __init__(self, status: str, trigger: str) -> None:
        super().__init__(f"a run that is {status} cannot {trigger}")
        self.status = status
        self.trigger = trigger


class StaleFence(LifecycleError):
    """Another worker has claimed the run since."""

    def __init__(self, run_id: str, held: int, current: int | None) -> None:
        super().__init__(f"{run_id} was claimed again: this worker holds fence {held}, the run has {current}")


class DeletedRun(NotFound, LifecycleError):
    """The run was deleted. Its worker stops, as if another one had claimed the run."""


class RunInterrupted(HoldfastError):
    """The run was stopped from outside."""


class CancelMode(StrEnum):
    """The effect of a cancel on the work in progress."""

    INTERRUPT = "interrupt"
    """Stop now; the streamed part is stored, marked as partial."""
    AFTER_STEP = "after_step"
    """Let the current step end, then stop."""
    ROLLBACK = "rollback"
    """Stop now, and remove the run's messages from the conversation."""


class CancelRequested(RunInterrupted):
    """A caller cancelled the run."""

    def __init__(self, mode: CancelMode = CancelMode.INTERRUPT) -> None:
        super().__init__()
        self.mode = mode


class LeaseLost(RunInterrupted):
    """Another worker may own the run now: nothing more may be written for it."""


class RunTimeout(RunInterrupted):
    """The run took longer than it may."""


class BudgetExceeded(RunInterrupted):
    """The run has used up its budget, or one that it shares. `room_at` is the time when a shared budget is renewed;
    None for the run's own, which is not renewed."""

    def __init__(self, message: str, *, room_at: datetime | None = None) -> None:
        super().__init__(message)
        self.room_at = room_at


class ShutdownRequested(RunInterrupted):
    """This worker is shutting down: another worker continues the run."""


class ModelErrorType(StrEnum):
    """How a model call may fail. Each is the code that clients see, and is stored with the failed run; a dialect may
    have other words for it."""

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
"""The sentence for each type, stored with the run that failed. The provider's own text is stored beside it."""


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
        """The fields that a log line may have. The provider's text is not one of them, because it may quote the
        conversation."""
        return self.error_type if self.status is None else f"{self.error_type} (HTTP {self.status})"


class McpServerUnavailable(HoldfastError):
    """The MCP server cannot be reached."""


class McpSignInNeeded(HoldfastError):
    """The MCP server refuses requests until a person signs in at it."""


class UnreadableSecret(HoldfastError):
    """A secret of an agent is encrypted and cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name!r} cannot be read: {reason}")
        self.reason = reason
        """It leaves out the secret's name, which belongs to the agent's owner."""


class Unavailable(HoldfastError):
    """A service that Holdfast needs does not answer."""


class Unusable(Unavailable):
    """A service that Holdfast needs is there, but its setup does not fit Holdfast."""
