"""Errors in the shape in which OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping, Sequence
from typing import Any

from api.refusals import Refusal, sentence_of, showable
from api.waiting_calls import wire_waiting
from shared.domain.errors import ErrorCode, code_of

_CODES: Mapping[str, str] = {
    ErrorCode.MISSING_API_KEY: "invalid_api_key",
    ErrorCode.CONTEXT_WINDOW_EXCEEDED: "context_length_exceeded",
    ErrorCode.INSTRUCTIONS_TOO_LONG: "context_length_exceeded",
    ErrorCode.LLM_RATE_LIMIT: "rate_limit_exceeded",
}
"""Words of ours that OpenAI has a word for, which programs look for."""

_RATE_LIMIT, _INVALID, _SERVER = "rate_limit_error", "invalid_request_error", "server_error"
_MODEL_KINDS = {
    "rate_limit_exceeded": _RATE_LIMIT, "context_length_exceeded": _INVALID, "llm_bad_request": _INVALID,
}  # fmt: skip


def openai_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body with which OpenAI's clients are refused: what is wrong with a body is a 400 there."""
    status = 400 if refusal.status == 422 else refusal.status
    if refusal.flaws:
        return status, invalid_input(refusal.flaws, refusal.code)
    if refusal.failure is not None:
        return status, model_error(refusal.failure.error_type, refusal.message, refusal.failure.detail)
    message, more = refusal.message, dict[str, Any]()
    if refusal.waiting is not None:
        more = wire_waiting(refusal.waiting)
        message += f" To go on: answer calls of your own tools with messages of the role 'tool'; else {more['resolve']}"
    if refusal.run_id is not None:
        more["run_id"] = refusal.run_id
    hint = refusal.hint or more.get("resolve") or refusal.code.hint
    return status, error_body(_kind(status), message, code=refusal.code, param=refusal.field, hint=hint, **more)


def error_body(kind: str, message: str, *, code: str | None, param: str | None = None, **more: Any) -> dict[str, Any]:
    """The body of an error, and what a stream sends in the place of a chunk."""
    shown = {"message": message, "type": kind, "param": param, "code": _CODES.get(code or "", code)}
    return {"error": {**shown, **more}}


def model_error(error_type: str, message: str, detail: str | None) -> dict[str, Any]:
    """The error of a run that failed. What a provider has said of our request is no fault of the caller's key."""
    code = _CODES.get(error_type, error_type)
    said = f"{message} {detail}" if detail and detail not in message else message
    return error_body(_MODEL_KINDS.get(code, _SERVER), said, code=code, hint=code_of(error_type).hint)


def invalid_input(found: Sequence[Mapping[str, Any]], code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> dict[str, Any]:
    """The error for a request with these flaws, as pydantic finds them: what the first ten are, and where the first."""
    place = [str(one) for one in found[0]["loc"][1:]] if found else []
    param = showable(".".join(place)) or None  # a header is named as a field is
    return error_body(_INVALID, sentence_of(found), code=code, param=param, hint=code.hint)


def interrupted(message: str, code: ErrorCode, run_id: str) -> dict[str, Any]:
    """The error of a stream that cannot say how its run goes on."""
    more = f"see GET /v1/runs/{run_id} and its messages"
    return error_body(_SERVER, f"{message}: {more}", code=code, hint=code.hint, run_id=run_id)


def _kind(status: int) -> str:
    if status == 429:
        return _RATE_LIMIT
    return _SERVER if status >= 500 else _INVALID
