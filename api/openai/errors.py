"""Errors in the shape in which OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`.

Routes, checks and middleware refuse a request in Letta's words. `as_openai` says the same on this wire, so that whoever
refuses need not know who asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

PATHS = "/v1/chat/"
"""Where requests in OpenAI's shapes are answered."""

_PREFIX = re.compile(r"(?P<code>[A-Z_]{4,}): (?P<message>.*)", re.DOTALL)
_CODES = {"context_window_exceeded": "context_length_exceeded", "llm_rate_limit": "rate_limit_exceeded"}
"""Words of ours that OpenAI has a word for, which programs look for."""

_MOST_FLAWS = 10
_UNSAID_CODES = {401: "invalid_api_key"}
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
        said = cast("dict[str, Any]", error)
        if "param" in said:
            return given
        return model_error(said.get("type", ""), said.get("message", ""), said.get("detail"))
    detail, more = given.get("detail"), {name: value for name, value in given.items() if name != "detail"}
    if isinstance(detail, dict):
        # One that says more than a sentence, such as which calls wait for a person.
        more |= cast("dict[str, Any]", detail)
    said_of_it = str(more.pop("message", detail or "An unknown error occurred"))
    prefixed = _PREFIX.fullmatch(said_of_it)
    code = more.pop("code", None) or (prefixed["code"] if prefixed else _UNSAID_CODES.get(status))
    message = prefixed["message"] if prefixed else said_of_it
    if "resolve" in more:
        message += f" To go on: answer calls of your own tools with messages of the role 'tool'; else {more['resolve']}"
    return error_body(_kind(status), message, code=None if code is None else code.lower(), **more)


def error_body(kind: str, message: str, *, code: str | None, param: str | None = None, **more: Any) -> dict[str, Any]:
    """The body of an error, and what a stream sends in the place of a chunk."""
    shown = {"message": message, "type": kind, "param": param, "code": _CODES.get(code or "", code)}
    return {"error": {**shown, **more}}


def model_error(error_type: str, message: str, detail: str | None) -> dict[str, Any]:
    """The error of a run that failed. What a provider has said of our request is no fault of the caller's key."""
    code = _CODES.get(error_type, error_type)
    said = f"{message} {detail}" if detail and detail not in message else message
    return error_body(_MODEL_KINDS.get(code, _SERVER), said, code=code)


def invalid_input(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The error for a request with these flaws, as pydantic finds them: what the first ten are, and where the first."""
    places = [".".join(map(str, one["loc"][1:])) for one in found[:_MOST_FLAWS]]
    texts = [str(one["msg"]).removeprefix("Value error, ") for one in found[:_MOST_FLAWS]]
    message = "; ".join(f"{place}: {text}" if place else text for place, text in zip(places, texts, strict=True))
    return error_body(_INVALID, message, code="invalid_argument", param=places[0] if places and places[0] else None)


def interrupted(message: str, code: str, run_id: str) -> dict[str, Any]:
    """The error of a stream that cannot say how its run goes on."""
    more = f"see GET /v1/runs/{run_id} and its messages"
    return error_body(_SERVER, f"{message}: {more}", code=code, run_id=run_id)


def _kind(status: int) -> str:
    if status == 429:
        return _RATE_LIMIT
    return _SERVER if status >= 500 else _INVALID
