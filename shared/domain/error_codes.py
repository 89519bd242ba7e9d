"""The codes of errors: every error that a client is shown has one, whatever the wire calls it beside that.

A code is stable: a program may decide by it. Sentences may change. docs/errors.md shows the table, and a test compares
the two.
"""

from enum import StrEnum
from typing import Any, Self


class ErrorCode(StrEnum):
    """A code, and what its reader can do unless the error itself knows better."""

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
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", "Send the body with the Content-Type that `message` names."
    INVALID_HTTP = "invalid_http", "Use an HTTP/1.1 client: what arrived is no HTTP request."
    URL_TOO_LONG = "url_too_long", "Shorten the URL: 16 KiB are the most."
    HEAD_TOO_LARGE = "head_too_large", "Send fewer or shorter headers: 100 headers and 64 KiB are the most."

    # Who asks, and how often.
    MISSING_API_KEY = "missing_api_key", "Send `Authorization: Bearer <key>`."
    INVALID_API_KEY = "invalid_api_key", "Use a key of this server that has not ended: an operator makes one."
    INVALID_STREAM_TOKEN = "invalid_stream_token", "Ask for a new token: POST /v1/runs/{run_id}/stream-token."
    FORBIDDEN = "forbidden", "Use a key that has the scope which `message` names."
    FORBIDDEN_ORIGIN = "forbidden_origin", "Allow the name in HOLDFAST_ALLOWED_HOSTS, or set HOLDFAST_API_KEYS."
    RATE_LIMITED = "rate_limited", "Wait for as many seconds as Retry-After says, then send the request again."
    TOO_MANY_CONNECTIONS = "too_many_connections", "Come again in some seconds, and use connections more than once."

    # What it is about.
    NOT_FOUND = "not_found", "Check the id: it is wrong, deleted, or of another project than the key's."
    MODEL_NOT_FOUND = "model_not_found", "Give the id of an agent or of a conversation: GET /v1/agents lists agents."
    PATH_NOT_FOUND = "path_not_found", "docs/api.md and /openapi.json list the paths."
    METHOD_NOT_ALLOWED = "method_not_allowed", "Use one of the methods in the Allow header."
    NOT_IMPLEMENTED = "not_implemented", "docs/api.md lists what of Letta's API this server has."

    # What is in the way.
    CONFLICT = "conflict", "Read the present state, and decide again."
    NOTHING_TO_CANCEL = "nothing_to_cancel", "Nothing: no run is active. GET /v1/runs shows how they have ended."
    IDEMPOTENCY_CONFLICT = "idempotency_conflict", "Send what is new under a new otid or Idempotency-Key."
    PENDING_APPROVAL = "pending_approval", "Decide the calls that wait, or cancel their run."
    ALREADY_DECIDED = "already_decided", "Nothing: the first decision stands."
    CONVERSATION_BUSY = "conversation_busy", "Wait for the run in `run_id`, cancel it, or say `if_busy`."
    RUN_CHANGED = "run_changed", "Read the run again, GET /v1/runs/{run_id}: it has moved on meanwhile."

    # This server, and what it needs.
    INTERNAL_ERROR = "internal_error", "Look into the server's log for the request's id, which is in X-Request-Id."
    SERVICE_UNAVAILABLE = "service_unavailable", "Send the request again when Retry-After has passed."
    SERVER_ENDING = "server_ending", "Ask again: another process, or this one's successor, answers."
    LOG_GAP = "log_gap", "Read what the run has brought: GET /v1/runs/{run_id}/messages."
    RUN_DELETED = "run_deleted", "Nothing: somebody has deleted the run while it was read."

    # How runs fail.
    RUN_TIMEOUT = "run_timeout", "Give the agent less to do at once, or raise HOLDFAST_RUN_TIMEOUT."
    BUDGET_EXCEEDED = "budget_exceeded", "Raise the budget of the run, or let it do less."
    WORKER_LOST = "worker_lost", "See why workers end with this run, memory most of all, and send the message again."
    LLM_RATE_LIMIT = "llm_rate_limit", "Wait, then send the message again, or raise the quota at the model's provider."
    LLM_AUTHENTICATION = "llm_authentication", "Correct the provider's key in the workers' settings."
    LLM_TIMEOUT = "llm_timeout", "Send the message again; a slow model needs a longer HOLDFAST_IDLE_TIMEOUT."
    LLM_BAD_REQUEST = "llm_bad_request", "See in `detail` what the provider refuses: the model's settings or the input."
    LLM_ERROR = "llm_error", "Send the message again; see in `detail` what the provider said."
    CONTEXT_WINDOW_EXCEEDED = "context_window_exceeded", "Compact the history, or take a model with a larger window."
    INSTRUCTIONS_TOO_LONG = (
        "context_window_overflow_in_system_prompt",
        "Shorten the agent's system prompt, blocks and tools, or take a model with a larger window.",
    )


def error_fields(code: ErrorCode, message: str, *, field: str | None = None, hint: str = "") -> dict[str, Any]:
    """What every error says, on every port, beside what the wire has."""
    return {"code": code, "message": message, "field": field, "hint": hint or code.hint}


def code_of(error_type: str) -> ErrorCode:
    """The code of a run that failed with this error type. A newer release may have written one that is not known."""
    try:
        return ErrorCode(error_type)
    except ValueError:
        return ErrorCode.INTERNAL_ERROR
