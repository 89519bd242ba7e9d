"""The id by which a request is found, and the access log: one line per request, when its answer has ended.

The id is bound to every line that is logged on the way, and is on every answer. The line has the route as it is
declared, never the path or the query as they were sent: those may hold what users wrote, or a token.
"""

import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from api.access.callers import Network, client_address
from shared.concurrency import Clock
from shared.telemetry.api_metrics import ApiMetrics
from shared.telemetry.tracer import trace_id_of

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HEADER = "X-Request-Id"
_HEADER = HEADER.lower().encode()

_SANE = re.compile(r"[\x21-\x7e]{1,128}")
"""An id of a caller's that is taken over: as long as the ids of proxies and of traces, and nothing that breaks a
line."""

_OURS = re.compile(r"[a-z]+-[0-9a-f-]{36}")
"""What a parameter of a path looks like that is an id, and not a text."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PREFIXES = ("/v1/", "/openai/v1/")

MCP = "/mcp"
"""The address of the Model Context Protocol."""


def is_of_api(path: str) -> bool:
    """Whether the path is one of the API's, which a caller alone is answered."""
    return path == MCP or (path.startswith(_PREFIXES) and path != "/v1/health")


PROBES = frozenset({"/healthz", "/readyz", "/v1/health", "/metrics"})
"""Asked every few seconds by machines: their lines are for DEBUG while all is well."""


ASKED_METHOD = "asked_method"
"""The key in the state of a request of the method that its client has sent, where it is answered as another."""


@dataclass(slots=True)
class StreamFigures:
    """What was sent of a stream, and why it ended. Kept in the request's state under `KEY`."""

    frames: int = 0
    end: str = "client_left"

    KEY = "stream_figures"


def request_id() -> str:
    """The id of the request that the present task answers; empty outside of one."""
    return str(get_contextvars().get("request_id", ""))


def asked_method(scope: Scope) -> str:
    """The method that the client has sent."""
    return str(scope.get("state", {}).get(ASKED_METHOD, scope["method"]))


class RequestRecord:
    """Gives each request its id and its trace, counts it when its answer begins, and logs it when that has ended.

    `is_on`: whether there is an access log. `proxies` are believed what they say about addresses. It stands outside of
    whatever may refuse a request, so that refusals count too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        metrics: ApiMetrics,
        proxies: Sequence[Network],
        routes: Sequence[BaseRoute],
        is_on: bool,
    ) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics
        self._proxies = proxies
        self._nouns = frozenset(_noun(getattr(route, "path", "")) for route in routes)
        self._is_on = is_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked_at = self._clock.monotonic()
        said, status = _id_of(scope), 0
        # The rest of the product finds one id, whoever made it.
        scope["headers"] = [*((name, value) for name, value in scope["headers"] if name != _HEADER), (_HEADER, said)]
        # Never taken back: what fails is logged outside of here, too, and each request is a task of its own.
        clear_contextvars()
        bind_contextvars(request_id=said.decode())
        trace = _given(scope)
        _INCOMING.set(trace)
        bind_trace(trace)
        method, path = asked_method(scope), scope["path"]

        def begins(with_status: int) -> None:
            """Counts it now: a stream goes on for as long as its run."""
            nonlocal status
            status = with_status
            template = getattr(scope.get("route"), "path", NO_ROUTE)
            self._metrics.request_answered(method, template, status, self._clock.monotonic() - asked_at)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                begins(message["status"])
                MutableHeaders(scope=message)[HEADER] = said.decode()
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception:
            # The answer to an error that nobody foresaw is made outside of here, where no middleware sees it.
            if not status:
                begins(500)
            raise
        finally:
            if self._is_on:
                self._log(scope, method, path, status or 500, self._clock.monotonic() - asked_at)

    def _log(self, scope: Scope, method: str, path: str, status: int, seconds: float) -> None:
        log_as = log.debug if path in PROBES and status < 400 else log.info
        log_as(
            "request_answered",
            method=method if method in _METHODS else "other",
            route=self._route(scope, path),
            status=status,
            duration_ms=round(seconds * 1000, 1),
            client=client_address(scope, self._proxies),
            **dict(_ids(scope)),
            **_figures(scope),
        )

    def _route(self, scope: Scope, path: str) -> str:
        """The declared path; of a request that no route saw, the noun of one."""
        found = getattr(scope.get("route"), "path", None)
        if found is not None:
            return str(found)
        noun = _noun(path)
        return f"{noun}/…" if noun in self._nouns else "unknown"


def _id_of(scope: Scope) -> bytes:
    given = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
    return (given if _SANE.fullmatch(given) else f"req-{uuid4()}").encode()


def _noun(path: str) -> str:
    """`/v1/agents` of everything below it."""
    parts = path.split("/", 3)
    return "/".join(parts[:3] if parts[1:2] == ["v1"] else parts[:2])


def _ids(scope: Scope) -> Iterator[tuple[str, str]]:
    parameters: dict[str, Any] = scope.get("path_params", {})
    for name, value in parameters.items():
        if name.endswith("_id") and isinstance(value, str) and _OURS.fullmatch(value):
            yield name, value


def _figures(scope: Scope) -> dict[str, Any]:
    figures = scope.get("state", {}).get(StreamFigures.KEY)
    return {"frames": figures.frames, "stream_end": figures.end} if isinstance(figures, StreamFigures) else {}


# The trace that a request came with: W3C's `traceparent`, with which its sender says what the request is a part of.
#
# What the request starts goes on in that trace, and the lines that are logged on its behalf name it. A header that is
# not well-formed, or is there twice, is passed over, as W3C says: it is no reason to refuse a request.


_INCOMING: ContextVar[str | None] = ContextVar("trace context of the request", default=None)


def incoming_trace() -> str | None:
    """The W3C trace context that the present request came with, if it came with one."""
    return _INCOMING.get()


def bind_trace(traceparent: str | None) -> None:
    """Lets what is logged from here on, on behalf of the present request, name its trace."""
    trace_id = trace_id_of(traceparent)
    if trace_id is not None:
        bind_contextvars(trace_id=trace_id)


def _given(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    text = values[0].decode("latin-1").strip() if len(values) == 1 else None
    return text if trace_id_of(text) else None


NO_ROUTE = "none"
"""In the metrics, of a request that no route has seen: it was refused before, or there is no such path."""
