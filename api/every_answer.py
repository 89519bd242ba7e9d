"""Middlewares for every answer: details of HTTP that the application ignores, headers that a route or a check adds, and
rules for browsers."""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast
from urllib.parse import parse_qsl

import structlog
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.direct_route import declaration_of
from api.errors import RETRY_AFTER_S, refused
from api.letta.messages import wire_time
from api.letta.unused_input import unused_fields
from api.openai.chat_request import ChatRequest, left_out
from api.request_log import is_of_api
from shared.domain.errors import ErrorCode
from shared.domain.runs import Run

# Headers of every answer. They tell a browser to trust the content type, to store nothing, and to show the answer in no
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
"""The console shows text that models and tools wrote. The policy lets only the console's own scripts run, whatever that
text contains."""


SERVER_ENDS = "SERVICE_UNAVAILABLE: this server is ending; send the request again"


class EveryAnswer:
    """Adds these headers to every answer. A `Cache-Control` that the answer has already stays, as streams set their
    own.

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
        # The router has put the matched route there. Paths without one are not checked.
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
        if model is None or not body:
            return
        given: object = json.loads(body)
        if isinstance(given, dict):
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
    """Adds a `Warning` to an answer about a run whose log and steps retention has deleted, which is why the answer is
    empty."""
    if run.pruned_at is not None:
        said = f"run {run.id} was pruned at {wire_time(run.pruned_at)}: its log and its steps are deleted"
        response.headers.append("Warning", warning_of([said]))
