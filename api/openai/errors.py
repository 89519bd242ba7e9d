"""Errors in the shape in which OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`.

Routes, checks and middleware refuse a request in Letta's words. `as_openai` says the same on this wire, so that whoever
refuses need not know who asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from api.letta.refusals import sentence_of, showable
from shared.domain.errors import ErrorCode, code_of

PATHS = "/v1/chat/"
"""Where requests in OpenAI's shapes are answered."""

_CODES: Mapping[str, str] = {
    ErrorCode.MISSING_API_KEY: "invalid_api_key",
    ErrorCode.CONTEXT_WINDOW_EXCEEDED: "context_length_exceeded",
    ErrorCode.INSTRUCTIONS_TOO_LONG: "context_length_exceeded",
    ErrorCode.LLM_RATE_LIMIT: "rate_limit_exceeded",
}
"""Words of ours that OpenAI has a word for, which programs look for."""

_UNSAID_CODES = {401: "invalid_api_key"}
_SAID_OTHERWISE = frozenset(("detail", "code", "message", "field", "param", "errors", "trace_id"))
"""What a body of Letta's wire has and OpenAI's error says under another name, or not at all."""
_RATE_LIMIT, _INVALID, _SERVER = "rate_limit_error", "invalid_request_error", "server_error"
_MODEL_KINDS = {
    "rate_limit_exceeded": _RATE_LIMIT, "context_length_exceeded": _INVALID, "llm_bad_request": _INVALID,
}  # fmt: skip


def speaks_openai(path: str) -> bool:
    """Whether a request to this path is answered in OpenAI's shapes."""
    return path.startswith(PATHS)


def status_of(status: int) -> int:
    """The status that OpenAI gives where Letta gives this one: what is wrong with a body is a 400 there."""
    return 400 if status == 422 else status


def as_openai(status: int, body: object) -> dict[str, Any]:
    """The body of an error, from the body that Letta's clients would get with this status."""
    given = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    error = given.get("error")
    if isinstance(error, dict):
        failed = cast("dict[str, Any]", error)
        if "param" in failed:
            return given
        return model_error(failed.get("type", ""), failed.get("message", ""), failed.get("detail"))
    detail = given.get("detail")
    # One that says more than a sentence, such as which calls wait for a person.
    said = given | (cast("dict[str, Any]", detail) if isinstance(detail, dict) else {})
    more = {name: value for name, value in said.items() if name not in _SAID_OTHERWISE}
    message = str(given.get("message") or cast("object", detail) or "An unknown error occurred")
    if "resolve" in more:
        message += f" To go on: answer calls of your own tools with messages of the role 'tool'; else {more['resolve']}"
    code = given.get("code") or _UNSAID_CODES.get(status)
    return error_body(_kind(status), message, code=code, param=given.get("field"), **more)


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
