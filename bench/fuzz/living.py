"""Makes most requests name existing objects, because otherwise nearly every answer would be a 404.

Schemathesis loads it. It makes objects when they are needed, and replaces them after a while, because requests delete
and change them.
"""

import json
import os
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import schemathesis

USES = 40
"""Requests that name an object before another replaces it."""
TRIES = 4
NAMED = 0.8
"""The share of requests that name existing objects."""

_ID = re.compile(r"[a-z]+-[0-9a-f-]{36}|default")
_TOOL = '''
def roll_dice(sides: int) -> str:
    """Rolls.

    Args:
        sides (int): How many.
    """
    return "4"
'''


class Living:
    """The ids of existing objects."""

    def __init__(self) -> None:
        self._url = os.environ["HOLDFAST_FUZZ_URL"]
        self._key = os.environ["HOLDFAST_FUZZ_KEY"]
        self._makers: dict[str, Callable[[], str]] = {
            "agent_id": self._agent_id,
            "tool_id": self._tool_id,
            "block_id": self._block_id,
            "archive_id": self._archive_id,
            "conversation_id": self._conversation_id,
            "run_id": self._run_id,
            "step_id": self._step_id,
            "tool_name": lambda: "roll_dice",
            "block_label": lambda: "human",
        }
        self._found: dict[str, tuple[str, int]] = {}

    def of(self, parameter: str) -> str | None:
        """Returns an id for this parameter of a path; None for other parameters."""
        make = self._makers.get(parameter)
        if make is None:
            return None
        found, uses = self._found.get(parameter, ("", USES))
        if uses >= USES:
            found, uses = self._made(make), 0
        self._found[parameter] = found, uses + 1
        return found

    def _made(self, make: Callable[[], str]) -> str:
        """Makes an object. It tries again if another request has just deleted an object that it needs."""
        for _ in range(TRIES):
            with suppress(urllib.error.HTTPError):
                return make()
        return make()

    def _agent_id(self) -> str:
        blocks = [{"label": "human", "value": "Likes tea."}]
        body = {"model": "builtin/echo", "memory_blocks": blocks, "tool_ids": [self._tool_id()], "tags": ["fuzz"]}
        agent_id = self._post("/v1/agents", body)["id"]
        self._post(f"/v1/agents/{agent_id}/messages", {"input": "Hello"})
        return agent_id

    def _tool_id(self) -> str:
        return self._request("PUT", "/v1/tools", {"source_code": _TOOL})["id"]

    def _block_id(self) -> str:
        return self._post("/v1/blocks", {"label": "human", "value": "Likes tea."})["id"]

    def _archive_id(self) -> str:
        archive_id = self._post("/v1/archives", {"name": "fuzz"})["id"]
        self._post(f"/v1/archives/{archive_id}/passages", {"text": "Tea."})
        return archive_id

    def _conversation_id(self) -> str:
        made = self._post(f"/v1/conversations?agent_id={self._agent_id()}", {})
        return made["id"]

    def _run_id(self) -> str:
        return self._post(f"/v1/agents/{self._agent_id()}/messages/async", {"input": "Hello"})["id"]

    def _step_id(self) -> str:
        steps = self._request("GET", "/v1/steps?limit=1")
        return steps[0]["id"] if steps else "step-00000000-0000-4000-8000-000000000000"

    def _post(self, path: str, body: Any) -> Any:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


living = Living()


hook: Callable[[Callable[..., None]], Callable[..., None]] = cast("Any", schemathesis).hook


@hook
def before_call(_context: Any, case: Any, **_: Any) -> None:
    """Replaces generated ids with existing ones, and asks for streams that end. Each request gets its own client
    address, because the API counts wrong keys by address."""
    address = ".".join(str(random.randrange(1, 255)) for _ in range(3))
    leaves_key_out = case.meta is not None and getattr(case.meta.phase.data, "parameter", None) == "Authorization"
    if case.headers is not None and not leaves_key_out:  # with other headers, schemathesis would add the key again
        case.headers["X-Forwarded-For"] = f"10.{address}"
    if case.operation.path.endswith(("/events", "/connect")) and case.operation.method.lower() == "get":
        asked: dict[str, Any] = case.query or {}
        case.query = asked | {"follow": "false"}
    if case.meta is not None and case.meta.phase.name.value == "stateful":
        return  # it names objects that it has made itself
    given: list[dict[str, Any] | None] = [case.path_parameters, case.query]
    for parameters in filter(None, given):
        for name, value in parameters.items():
            is_id = isinstance(value, str) and (_ID.fullmatch(value) or name in ("tool_name", "block_label"))
            if is_id and random.random() < NAMED:
                parameters[name] = living.of(name) or value


DONE = {"const": "[DONE]"}


@hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Wraps the schemas of streams: the document describes an event's `data`, for generated types, but schemathesis
    expects the whole event."""
    for methods in raw_schema["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                stream = answer.get("content", {}).get("text/event-stream")
                if stream is not None:
                    stream["schema"] = event_of(stream["schema"])


def event_of(frame: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an event whose data is one of these frames, or the end."""
    as_json = {"type": "string", "contentMediaType": "application/json", "contentSchema": frame}
    return {"type": "object", "properties": {"data": {"if": DONE, "else": as_json}}}
