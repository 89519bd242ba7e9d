"""The response object: the fields that never change while a run goes on, and the fields that its end adds. Pure."""

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from api.errors import Refusal
from api.openai.chat_request import openai_error
from shared.domain import events
from shared.domain.errors import ErrorCode, ModelErrorType
from shared.domain.ids import MessageId, RunId, is_id
from shared.domain.runs import Run

DIALECT = "openai.responses"
"""The dialect of runs that were submitted as responses."""

INCLUDE_ENCRYPTED = "reasoning.encrypted_content"

_UNSAID: dict[str, Any] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "user": None,
}
"""A response's values for fields that the request omits. Open Responses forbids null for the numbers."""


def response_id(run_id: RunId) -> str:
    """The id of a run as a response."""
    return "resp_" + run_id.partition("-")[2].replace("-", "")


def run_id_of(named: str) -> RunId | None:
    """The run of a response's id. A run's own id is accepted too. None: the text is neither."""
    if is_id(named, "run"):
        return RunId(named)
    found = _dashed("run", named.removeprefix("resp_")) if named.startswith("resp_") else ""
    return RunId(found) if is_id(found, "run") else None


def conversation_id_of(named: str) -> str | None:
    """The conversation of an id in OpenAI's form or ours. None: the text is neither."""
    if is_id(named, "conv"):
        return named
    found = _dashed("conv", named.removeprefix("conv_")) if named.startswith("conv_") else ""
    return found if is_id(found, "conv") else None


def own_id_of(named: str) -> str:
    """Our own id for a response or a conversation id in OpenAI's form. Other texts are returned unchanged."""
    return run_id_of(named) or conversation_id_of(named) or named


def wire_conversation_id(conversation_id: str) -> str:
    """The id of a conversation in OpenAI's form."""
    return "conv_" + conversation_id.partition("-")[2].replace("-", "")


def message_id_of(item_id: str) -> MessageId | None:
    """The message whose item has this id. None: the text is not such an id."""
    kind, _, digits = item_id.partition("_")
    found = _dashed("message", digits.partition("_")[0]) if kind in ("msg", "rs", "cmp", "fco", "mcpa") else ""
    return MessageId(found) if is_id(found, "message") else None


def _dashed(prefix: str, digits: str) -> str:
    if len(digits) != 32:
        return ""
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@dataclass(frozen=True)
class ResponseHead:
    """The fields of a response that do not depend on the run's state."""

    fields: dict[str, Any]
    first_status: str
    encrypts: bool

    def response(self, output: list[dict[str, Any]], used: events.UsageReported | None, **more: Any) -> dict[str, Any]:
        """The whole object with this output. `more` are the fields for the run's state."""
        state = {"completed_at": None, "error": None, "incomplete_details": None, **more}
        return {**self.fields, **state, "output": output, "usage": None if used is None else _usage(used)}


def head_of(run: Run) -> ResponseHead:
    """The head of a run of any dialect."""
    options = run.options
    echoed = options.echoed if options.dialect == DIALECT else {}
    said = {name: value for name, value in echoed.items() if name in _UNSAID or name == "model"}
    conversation = None
    if run.conversation_id is not None:
        conversation = {"id": wire_conversation_id(run.conversation_id)}
    previous = None if run.continues is None else response_id(run.continues)
    fields = {
        "id": response_id(run.id),
        "object": "response",
        "created_at": int(run.created_at.timestamp()),
        "model": options.override_model or run.agent_id,
        **_UNSAID,
        "background": options.background,
        "conversation": conversation,
        "previous_response_id": previous,
        **said,
    }
    waits = options.background and options.dialect == DIALECT
    include = echoed.get("include") or ()
    return ResponseHead(fields, "queued" if waits else "in_progress", INCLUDE_ENCRYPTED in include)


def without_instructions(run: Run) -> Run:
    """The run without the sender's instructions beside the input, for keys that may not see them."""
    echoed = {name: value for name, value in run.options.echoed.items() if name not in ("instructions", "tools")}
    return replace(run, options=replace(run.options, echoed=echoed))


def ended_fields(stop_reason: str, failure: events.Failed | None, at_ms: int, *, was_filtered: bool) -> dict[str, Any]:
    """The fields that a run's end adds."""
    if stop_reason == events.StopReason.CANCELLED:
        return {"status": "cancelled"}
    if was_filtered and failure is None:
        return {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    if failure is not None:
        return {"status": "failed", "error": {"code": _error_code(failure.error_type), "message": _said(failure)}}
    if stop_reason == events.StopReason.TOKENS_USED_UP:
        return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if stop_reason == events.StopReason.STEPS_USED_UP:
        return {"status": "incomplete", "incomplete_details": {"reason": "max_messages"}}
    if stop_reason in (events.StopReason.FAILED, events.StopReason.MODEL_FAILED):
        return {"status": "failed", "error": {"code": "server_error", "message": "The run has failed."}}
    return {"status": "completed", "completed_at": at_ms // 1000}


def _said(failure: events.Failed) -> str:
    detail = failure.detail
    return f"{failure.message} {detail}" if detail and detail not in failure.message else failure.message


_RATE_LIMITED = (ModelErrorType.RATE_LIMIT, ErrorCode.BUDGET_EXCEEDED)
_INVALID = (ModelErrorType.BAD_REQUEST, ModelErrorType.CONTEXT_WINDOW, ModelErrorType.INSTRUCTIONS)


def _error_code(error_type: str) -> str:
    """One of the codes that OpenAI's clients know."""
    if error_type in _RATE_LIMITED:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error_type in _INVALID else "server_error"


def _usage(used: events.UsageReported) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": used.cached_input_tokens,
            "cache_write_tokens": used.cache_write_tokens,
        },
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }


# Refusals of the Responses API. OpenAI's SDKs retry every 409 unless a header forbids it, so a conflict that a retry
# cannot resolve is a 400.


_CODES = {
    ErrorCode.CONVERSATION_BUSY: "conversation_locked",
    ErrorCode.NOT_FOUND: None,
    ErrorCode.INVALID_ARGUMENT: None,
}
"""Codes for which OpenAI has another name, or no name."""

_PARAMS = {
    ErrorCode.CONVERSATION_BUSY: "conversation",
    ErrorCode.PENDING_APPROVAL: "input",
    ErrorCode.MODEL_NOT_FOUND: "model",
}

_OF_OPENAI = ("unsupported_parameter", "mutually_exclusive_parameters")
"""Types of a body's flaws that are OpenAI's own codes."""

_HELPED_BY_A_REPETITION = (ErrorCode.RUN_CHANGED,)


def responses_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body of a refusal."""
    status, body = openai_error(refusal)
    error = body["error"]
    if status == 409 and refusal.code not in _HELPED_BY_A_REPETITION:
        status, error["type"] = 400, "invalid_request_error"
    if refusal.code is ErrorCode.MODEL_NOT_FOUND:
        status = 400
    error["code"] = _CODES.get(refusal.code, error["code"])
    error["param"] = error["param"] or _PARAMS.get(refusal.code)
    if refusal.flaws and refusal.code is ErrorCode.INVALID_ARGUMENT:
        first = refusal.flaws[0]
        is_of_type = first["type"].endswith(("_type", "_parsing"))
        error["code"] = (
            first["type"] if first["type"] in _OF_OPENAI else "invalid_type" if is_of_type else "invalid_value"
        )
        error["param"] = error["param"] or first.get("ctx", {}).get("param") or None
    return status, body
