"""Requests that are refused before anything is done, in the words and the shapes of Letta's wire."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

NO_MESSAGES = "Messages must not be empty"

STREAM_DEFAULTS: Mapping[str, bool] = {"background": False, "stream_tokens": False, "include_pings": True}
"""What a request without a stream must leave as it is."""


def without_stream(option: str) -> str:
    """Why an option is refused in a request without a stream."""
    wanted = str(not STREAM_DEFAULTS[option]).lower()
    return (
        f"Streaming options set without streaming enabled. {option} can only be {wanted} when streaming=true. "
        "Either set streaming=true or use default values for streaming options."
    )


_PATH_PATTERN = re.compile(r"\^(?P<prefix>[a-z]+)-\[0-9a-f\]")
MOST_FLAWS = 20
"""Of one request that are shown: a body has room for a hundred thousand."""
_LONGEST_INPUT = 500
_SECRET_FIELDS = frozenset({"secrets", "tool_exec_environment_variables"})


def validation_refusal(found: Sequence[Mapping[str, Any]], *, trace_id: str) -> dict[str, Any]:
    """The body of a 422 for these errors of pydantic's. The wire has their list as a text. `trace_id` is what the
    request is found by in our logs."""
    shown = found[:MOST_FLAWS]
    body: dict[str, Any] = {"trace_id": trace_id, "detail": repr([_wire_validation_error(one) for one in shown])}
    if len(found) > len(shown):
        body["more_errors"] = len(found) - len(shown)
    prefixes = [match["prefix"] for one in shown if (match := _malformed_id(one))]
    if prefixes:
        body["examples"] = [f"{prefix}-123e4567-e89b-42d3-8456-426614174000" for prefix in prefixes]
    return body


def model_error_body(error_type: str, message: str, detail: str | None) -> dict[str, Any]:
    """The body of an answer to a run whose model failed."""
    return {"error": {"type": error_type, "message": message, "detail": detail}}


def _malformed_id(error: Mapping[str, Any]) -> re.Match[str] | None:
    if error.get("type") != "string_pattern_mismatch" or error["loc"][0] != "path":
        return None
    return _PATH_PATTERN.match(error["ctx"]["pattern"])


def _wire_validation_error(error: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(error)
    if malformed := _malformed_id(error):
        shown["msg"] = f"String should match pattern '{malformed['prefix']}-{{uuid4}}'"
    # The whole body may be the input: megabytes, or secrets, in an error that the client logs.
    if _SECRET_FIELDS.intersection(map(str, shown.get("loc", ()))):
        shown["input"] = "…"
    elif isinstance(shown.get("input"), Mapping):
        shown["input"] = {name: "…" if name in _SECRET_FIELDS else value for name, value in shown["input"].items()}
    beginning = repr(_beginning(shown.get("input"), [_LONGEST_INPUT]))
    if len(beginning) > _LONGEST_INPUT:
        shown["input"] = beginning[:_LONGEST_INPUT] + "…"
    if "loc" in shown:
        shown["loc"] = tuple(key[:_LONGEST_INPUT] if isinstance(key, str) else key for key in shown["loc"])
    return shown


def _beginning(value: object, room: list[int]) -> object:
    """As much of a JSON value as has so many characters when it is shown, and a little more. `room` shrinks."""
    room[0] -= 1
    if isinstance(value, str):
        text = value[: max(room[0], 0) + 2]
        room[0] -= len(text)
        return text
    if isinstance(value, Mapping):
        items = takewhile(lambda _: room[0] > 0, cast("Mapping[str, object]", value).items())
        return {_beginning(name, room): _beginning(inside, room) for name, inside in items}
    if isinstance(value, list):
        return [_beginning(inside, room) for inside in takewhile(lambda _: room[0] > 0, cast("list[object]", value))]
    return value
