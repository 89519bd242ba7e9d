"""Middlewares for every answer: details of HTTP that the application ignores, headers that a route or a check adds,
warnings of input without effect, and rules for browsers."""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

import structlog
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.direct_route import declaration_of, models_in
from api.errors import RETRY_AFTER_S, refused
from api.letta.agents import AgentFields
from api.letta.memory import BlockCreate, BlockUpdate
from api.letta.message_input import MessageIn, MessagesRequest
from api.letta.messages import wire_time
from api.letta.model_settings import ModelSettingsFields
from api.letta.runs import StreamRequest
from api.letta.tools import ToolFields
from api.openai.chat_request import ChatRequest, left_out
from api.request_log import is_of_api
from shared.domain.errors import ErrorCode
from shared.domain.runs import Run

# Headers of every answer. With them a browser trusts the content type, stores nothing, and never shows the answer in a
# frame of another page.


_NOTHING = "default-src 'none'; frame-ancestors 'none'"
_DOCUMENTATION: Sequence[str] = (
    "default-src 'none'",
    "connect-src 'self'",
    "script-src 'self'",
    # Swagger UI writes styles into its elements.
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_CONSOLE: Sequence[str] = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "font-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
"""The console shows text that models and tools wrote. Whatever that text contains, the policy lets only the console's
own scripts run."""


SERVER_ENDS = "SERVICE_UNAVAILABLE: this server is ending; send the request again"


class EveryAnswer:
    """Adds these headers to every answer. A `Cache-Control` that the answer already has stays: streams set their own.

    A request that the server cancels when it ends gets a 503, if its answer has not begun. uvicorn would send a bare
    500.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        has_begun = False

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if message["type"] == "http.response.start":
                _guard(MutableHeaders(scope=message), path)
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except asyncio.CancelledError:
            if not has_begun:
                headers = {"Retry-After": str(RETRY_AFTER_S)}
                answer = refused(503, ErrorCode.SERVER_ENDING, SERVER_ENDS, headers=headers)
                await answer(scope, receive, guarded)
            raise


def _guard(headers: MutableHeaders, path: str) -> None:
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Content-Security-Policy"] = _policy_of(path)
    if is_of_api(path):
        # Answers may contain conversations, so no proxy and no browser may cache them.
        headers.setdefault("Cache-Control", "no-store")


def _policy_of(path: str) -> str:
    """The content security policy of the page at this path."""
    if path == "/docs":
        return "; ".join(_DOCUMENTATION)
    return "; ".join(_CONSOLE) if path == "/console" or path.startswith("/console/") else _NOTHING


# Finds fields of a request that have no effect, so that the API can report them to the client.
#
# `NOT_ACTED_ON` lists fields of Letta's wire. Other fields are unknown if the request's model does not have them.
# Delete a row once Holdfast uses its field. docs/api.md shows the table, and a test compares the two.


class Unused(NamedTuple):
    """Fields of one kind of body, and their treatment."""

    body: str
    models: tuple[type[BaseModel], ...]
    fields: tuple[str, ...]
    because: str


NOT_ACTED_ON = (
    Unused("agent", (AgentFields,), ("base_template_id", "template_id"), "given back; there are no templates"),
    Unused(
        "agent", (AgentFields,), ("max_files_open", "per_file_view_window_char_limit"), "given back; there are no files"
    ),
    Unused("agent", (AgentFields,), ("from_template", "template"), "noted in `not_acted_on`; there are no templates"),
    Unused("agent", (AgentFields,), ("folder_ids", "source_ids"), "noted in `not_acted_on`; as for files"),
    Unused("agent", (AgentFields,), ("include_default_source",), "dropped; as for files"),
    Unused("agent", (AgentFields,), ("project", "project_id"), "dropped; the API key says the project"),
    Unused("agent", (AgentFields,), ("embedding_chunk_size",), "dropped; nothing is cut into chunks"),
    Unused(
        "agent",
        (AgentFields,),
        ("last_run_completion", "last_run_duration_ms", "last_stop_reason", "message_ids"),
        "dropped; they follow from runs and messages",
    ),
    Unused(
        "message",
        (MessagesRequest,),
        ("return_logprobs", "return_token_ids", "top_logprobs"),
        "dropped; answers have no probabilities",
    ),
    Unused("message", (MessagesRequest,), ("enable_thinking",), "dropped; the model's settings say it"),
    Unused("message", (MessageIn,), ("batch_item_id", "group_id"), "dropped; there are no batches and groups"),
    Unused("stream", (StreamRequest,), ("batch_size", "poll_interval"), "dropped; events are sent as they come"),
    Unused("tool", (ToolFields,), ("npm_requirements",), "given back; nothing is installed"),
    Unused("tool", (ToolFields,), ("pip_requirements",), "given back; a server without a package index installs none"),
    Unused(
        "block",
        (BlockCreate, BlockUpdate),
        (
            "base_template_id", "deployment_id", "entity_id", "hidden", "is_template", "preserve_on_migration",
            "project_id", "template_id", "template_name",
        ),
        "dropped; there are no templates",
    ),
)  # fmt: skip

MAX_ITEMS = 100
"""The search examines at most this many items of a list."""


class Known(NamedTuple):
    """The fields of a body's model: the effective fields under all their names, the fields among them that are models,
    and the fields without effect, each with the reason."""

    fields: frozenset[str]
    nested: Mapping[str, type[BaseModel]]
    unused: Mapping[str, str]


@lru_cache(maxsize=100)
def known_of(model: type[BaseModel]) -> Known:
    """Returns the fields of a request's model, grouped by their effect."""
    unused = {
        name: line.because
        for line in NOT_ACTED_ON
        for known in line.models
        if issubclass(model, known)
        for name in line.fields
    }
    nested: dict[str, type[BaseModel]] = {}
    fields: set[str] = set()
    for name, field in model.model_fields.items():
        names = {name, *([field.alias] if field.alias else [])} - unused.keys()
        fields |= names
        inner = next(models_in(field.annotation), None)
        if inner is not None:
            nested |= dict.fromkeys(names, inner)
    return Known(frozenset(fields), nested, unused)


class Unacted(NamedTuple):
    """A field of a body without effect."""

    loc: tuple[str | int, ...]
    known: Known
    """The model's fields at this place."""

    def __str__(self) -> str:
        return "".join("[]" if isinstance(one, int) else f".{one}" for one in self.loc).removeprefix(".")


def unused_fields(model: type[BaseModel], given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the fields without effect, for example `memory_blocks[].hidden`, but not those with empty values."""
    return map(str, unacted(model, given))


def unacted(
    model: type[BaseModel], given: Mapping[str, Any], *, strict: bool = False, loc: tuple[str | int, ...] = ()
) -> Iterator[Unacted]:
    """As `unused_fields`, with the places. `strict`: reports an unknown field even if its value is empty."""
    known = known_of(model)
    # Tool rules have fields that only their type knows.
    is_open = model.model_config.get("extra") == "allow" and model is not ModelSettingsFields
    for name, value in given.items():
        if not value and (not strict or name in known.unused):
            continue
        if name not in known.fields:
            yield from () if is_open else (Unacted((*loc, name), known),)
        elif name in known.nested:
            yield from _unacted_inside(known.nested[name], value, (*loc, name), strict=strict)


def _unacted_inside(
    model: type[BaseModel], value: object, loc: tuple[str | int, ...], *, strict: bool
) -> Iterator[Unacted]:
    if isinstance(value, dict):
        yield from unacted(model, cast("dict[str, Any]", value), strict=strict, loc=loc)
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[object]", value)[:MAX_ITEMS]):
            if isinstance(item, dict):
                yield from unacted(model, cast("dict[str, Any]", item), strict=strict, loc=(*loc, number))


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASKS_FOR_NOTHING = {"order_by": "created_at"}
"""Query parameters with a value that every list uses anyway."""

PIP_REQUIREMENTS = ("pip_requirements",)
"""Fields that have an effect only where the operator has configured a package index."""

MAX_NAMES = 20
"""Names per request that the middleware looks for, shows and logs."""
MAX_LOGGED = 10_000
LONGEST_NOTE, LONGEST_WARNING = 500, 4000
"""Characters. Some clients refuse long heads."""
_SHOWABLE = re.compile(r"[\w.\[\]-]{1,80}", re.ASCII)


def document_of(body: bytes) -> object:
    """The JSON of a body; None if there is none."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return None  # a route that reads the body refuses it with the reason


class UnusedInputWarnings:
    """Names the ignored parts of an accepted request in a `Warning` header, and logs them once per agent.

    Requests that name no agent are logged once per path.
    """

    def __init__(self, *, installs_packages: bool) -> None:
        """`installs_packages`: this server uses the `pip_requirements` of tools."""
        self._acted_on = PIP_REQUIREMENTS if installs_packages else ()
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._parameters: dict[str, frozenset[str]] = {}

    def warn(self, scope: Scope, body: bytes, message: Message) -> None:
        """Adds the header to the head of an answer."""
        # The router has put the matched route into the scope. Requests without a route are not checked.
        route = scope.get("route")
        if isinstance(route, APIRoute) and (names := self._first_unused(route, scope, body)):
            self._log(route, scope, names)
            MutableHeaders(scope=message).append("Warning", _warning(names))

    def _first_unused(self, route: APIRoute, scope: Scope, body: bytes) -> list[str]:
        """The ignored names, at most one more than the answer shows: a body has room for tens of thousands."""
        return list(islice(_once_each(self._unused(route, scope, body)), MAX_NAMES + 1))

    def _unused(self, route: APIRoute, scope: Scope, body: bytes) -> Iterator[str]:
        known = self._parameters.get(route.unique_id)
        if known is None:
            known = frozenset(one.alias for one in declaration_of(route).all_of("query"))
            self._parameters[route.unique_id] = known
        for name, value in dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)).items():
            if name not in known and ASKS_FOR_NOTHING.get(name) != value:
                yield f"query.{name}"
        model = declaration_of(route).body_model()
        given = None if model is None else document_of(body)
        if model is not None and isinstance(given, dict):
            said = cast("dict[str, Any]", given)
            yield from (name for name in unused_fields(model, said) if name not in self._acted_on)
            if model is ChatRequest:
                yield from left_out(said["messages"])

    def _log(self, route: APIRoute, scope: Scope, names: list[str]) -> None:
        makes_agent = (scope["method"], route.path) == ("POST", "/v1/agents")
        place: str = scope["path_params"].get("agent_id", route.unique_id)
        new = [name for name in names if makes_agent or (place, name) not in self._logged]
        if new:
            log.warning("input_not_acted_on", request=f"{scope['method']} {scope['path']}", fields=_listed(new))
        for name in names:
            self._logged[place, name] = None
            self._logged.move_to_end((place, name))
        while len(self._logged) > MAX_LOGGED:
            self._logged.popitem(last=False)


def _warning(names: list[str]) -> str:
    return f'299 holdfast "not acted on: {_listed(names)}"'


def _listed(names: list[str]) -> str:
    shown = ", ".join(_shown(name) for name in names[:MAX_NAMES])
    return f"{shown} and more" if len(names) > MAX_NAMES else shown


def _once_each(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def _shown(name: str) -> str:
    """The name, unless it has characters that a header or a log cannot contain."""
    return name if _SHOWABLE.fullmatch(name) else "a name that cannot be shown"


def warning_of(notes: Sequence[str]) -> str:
    """The notes as a `Warning` header in ASCII, as many as fit. The log has them unchanged."""
    header = ""
    for note in notes:
        plain = "".join(one if one.isascii() and one.isprintable() else "?" for one in note[:LONGEST_NOTE])
        value = f'299 holdfast "{plain.replace(chr(92), "/").replace(chr(34), chr(39))}"'
        if len(header) + len(value) > LONGEST_WARNING:
            break
        header += f", {value}" if header else value
    return header


def warn_if_pruned(response: Response, run: Run) -> None:
    """Adds a `Warning` to an answer that is empty because retention has deleted the run's log and steps."""
    if run.pruned_at is not None:
        said = f"run {run.id} was pruned at {wire_time(run.pruned_at)}: its log and its steps are deleted"
        response.headers.append("Warning", warning_of([said]))
