"""Refusals in the words and the form of Letta's wire, with further fields for programs: the code, one sentence, the
field, and the remedy."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

from api.errors import MOST_FLAWS, Refusal, field_of, plain_body, sentence_of, text_of, wire_waiting
from api.request_log import request_id
from shared.domain.errors import ErrorCode, code_of, error_fields

NO_MESSAGES = "Messages must not be empty"

STREAM_DEFAULTS: Mapping[str, bool] = {"background": False, "stream_tokens": False, "include_pings": True}
"""Options that have no effect without a stream, and their only allowed values there."""


def without_stream(option: str) -> str:
    """The reason why a request without a stream must not set an option."""
    wanted = str(not STREAM_DEFAULTS[option]).lower()
    return (
        f"Streaming options set without streaming enabled. {option} can only be {wanted} when streaming=true. "
        "Either set streaming=true or use default values for streaming options."
    )


_RUN_NOT_FOUND = re.compile(r"Run (run-\S+) not found")
_PATH_PATTERN = re.compile(r"\^(?P<prefix>[a-z_]+)-\[0-9a-f\]")
_LONGEST_INPUT = 500
_LONGEST_SENTENCE = 4000
_SECRET_FIELDS = frozenset({"secrets", "tool_exec_environment_variables"})


PENDING_APPROVAL = "PENDING_APPROVAL"
"""Letta's code for a request to a history with waiting calls."""


def letta_error(refusal: Refusal) -> tuple[int, dict[str, Any]]:
    """The status and the body of a refusal for Letta's clients."""
    if refusal.flaws:
        return 422, validation_refusal(refusal.flaws, trace_id=request_id(), code=refusal.code)
    if refusal.failure is not None:
        return refusal.status, model_error_body(refusal.failure.error_type, refusal.message, refusal.failure.detail)
    # Programs match the words of Letta's servers about an unknown run.
    detail: object = refusal.detail or _RUN_NOT_FOUND.sub(r"Run not found with id='['\1']'", refusal.message)
    hint = refusal.hint
    if refusal.waiting is not None:
        waiting = wire_waiting(refusal.waiting)
        detail, hint = {"code": PENDING_APPROVAL, "message": detail, **waiting}, waiting["resolve"]
    more = {} if refusal.run_id is None else {"run_id": refusal.run_id}
    body = plain_body(refusal.code, detail, refusal.message, field=refusal.field, hint=hint, **more)
    return refusal.status, body


def validation_refusal(
    found: Sequence[Mapping[str, Any]], *, trace_id: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT
) -> dict[str, Any]:
    """The body of a 422 for these errors of pydantic. The wire has their list as a text: here that text is JSON, and
    `errors` has the same list. `trace_id` is the request's id in our logs."""
    first = found[:MOST_FLAWS]
    shown = [_wire_validation_error(one) for one in first]
    errors = [{"field": field_of(one["loc"]), "message": text_of(one), "type": one["type"]} for one in shown]
    body = plain_body(
        code,
        json.dumps(shown),
        sentence_of(shown),
        field=errors[0]["field"] if errors else None,
        errors=errors,
        trace_id=trace_id,
    )
    if len(found) > len(shown):
        body["more_errors"] = len(found) - len(shown)
    prefixes = [match["prefix"] for one in first if (match := _malformed_id(one))]
    if prefixes:
        body["examples"] = [f"{prefix}-123e4567-e89b-42d3-8456-426614174000" for prefix in prefixes]
    return body


def model_error_body(error_type: str, message: str, detail: str | None) -> dict[str, Any]:
    """The body of the answer if a run's model failed."""
    error = {"type": error_type, "message": message, "detail": detail}
    return {"error": error, **error_fields(code_of(error_type), message)}


def _malformed_id(error: Mapping[str, Any]) -> re.Match[str] | None:
    if error.get("type") != "string_pattern_mismatch" or error["loc"][0] != "path":
        return None
    return _PATH_PATTERN.match(error["ctx"]["pattern"])


def _wire_validation_error(error: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(error)
    if malformed := _malformed_id(error):
        shown["msg"] = f"String should match pattern '{malformed['prefix']}-{{uuid4}}'"
    if "ctx" in shown:
        shown["ctx"] = _shown_value(shown["ctx"])
    if "input" in shown:
        shown["input"] = _shown_input(shown["input"], shown.get("loc", ()))
    if "loc" in shown:
        shown["loc"] = tuple(key[:_LONGEST_INPUT] if isinstance(key, str) else key for key in shown["loc"])
    shown["msg"] = str(shown["msg"])[:_LONGEST_SENTENCE]
    return shown


def _shown_input(given: object, loc: Sequence[Any]) -> Any:
    """The refused input, shortened: the input may be the whole body, with megabytes or secrets, and clients log it."""
    if _SECRET_FIELDS.intersection(map(str, loc)):
        return "…"
    if isinstance(given, Mapping):
        fields = cast("Mapping[str, Any]", given)
        given = {name: "…" if name in _SECRET_FIELDS else value for name, value in fields.items()}
    return _shown_value(given)


def _shown_value(given: object) -> Any:
    """A value that JSON can represent. A long one becomes the beginning of its text."""
    part = _beginning(given, [_LONGEST_INPUT])
    text = part if isinstance(part, str) else json.dumps(part, default=_as_text)
    if len(text) > _LONGEST_INPUT:
        return text[:_LONGEST_INPUT] + "…"
    return text if isinstance(part, str) else json.loads(text)


def _beginning(value: object, room: list[int]) -> object:
    """The part of a JSON value that has roughly this many characters. `room` shrinks."""
    room[0] -= 1
    if isinstance(value, str | bytes):
        text = value[: max(room[0], 0) + 2]
        room[0] -= len(text)
        return text
    if isinstance(value, Mapping):
        items = takewhile(lambda _: room[0] > 0, cast("Mapping[str, object]", value).items())
        return {_beginning(name, room): _beginning(inside, room) for name, inside in items}
    if isinstance(value, list):
        return [_beginning(inside, room) for inside in takewhile(lambda _: room[0] > 0, cast("list[object]", value))]
    return value


def _as_text(value: object) -> str:
    """A value that JSON cannot express, as text: the bytes of a body, the error of a check."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
