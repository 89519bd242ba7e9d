"""The request id, the client's address, and the access log, which has one line per request, written when its answer has
ended.

The id is bound to every log line of the request, and every answer has it. The line contains the declared route, never
the path or the query of the request: those may contain users' texts, or a token.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars, get_contextvars

from shared.concurrency import Clock
from shared.network.addresses import Network
from shared.telemetry.metrics import ApiMetrics
from shared.telemetry.tracer import trace_id_of

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HEADER = "X-Request-Id"
_HEADER = HEADER.lower().encode()

_SANE = re.compile(r"[\x21-\x7e]{1,128}")
"""A caller's request id that the API accepts: at most as long as the ids of proxies and traces, and without characters
that would break a log line."""

_OURS = re.compile(r"[a-z]+-[0-9a-f-]{36}")
"""A path parameter that is an id, not a text."""

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PREFIXES = ("/v1/", "/openai/v1/", "/ag-ui/", "/ai-sdk/")

MCP = "/mcp"
"""The address of the Model Context Protocol."""


def is_of_api(path: str) -> bool:
    """Whether the path is one of the API's. Their requests need a caller."""
    return path == MCP or (path.startswith(_PREFIXES) and path != "/v1/health")


PROBES = frozenset({"/healthz", "/readyz", "/v1/health", "/metrics"})
"""Monitoring systems request these every few seconds. Successful ones are logged at DEBUG."""


ASKED_METHOD = "asked_method"
"""Key in a request's state: the client's method, if the application sees another one."""


@dataclass(slots=True)
class StreamStats:
    """Figures of a stream, and the reason of its end. Stored in the request's state under `KEY`."""

    frames: int = 0
    end: str = "client_left"
    is_open: bool = False
    """The stream goes on after the application has returned."""
    on_end: Callable[[], None] | None = None

    KEY = "stream_stats"

    def has_ended(self) -> None:
        """Writes the log line that waits for the stream's end, if there is one."""
        on_end, self.is_open, self.on_end = self.on_end, False, None
        if on_end is not None:
            on_end()


def request_id() -> str:
    """The id of the request that the current task answers; empty outside of one."""
    return str(get_contextvars().get("request_id", ""))


def asked_method(scope: Scope) -> str:
    """The method that the client has sent."""
    return str(scope.get("state", {}).get(ASKED_METHOD, scope["method"]))


class RequestRecord:
    """Gives each request its id and its trace, counts it when its answer begins, and logs it when the answer has ended.

    `is_on`: whether to write the access log. `proxies` may set the client's address by headers. No middleware outside
    of this one can refuse a request, so refusals count too.
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
        # The rest of the product reads the id from one place, whether the caller or the API made it.
        scope["headers"] = [*((name, value) for name, value in scope["headers"] if name != _HEADER), (_HEADER, said)]
        # Never unbound: errors are logged outside of this block too, and each request has its own task.
        clear_contextvars()
        bind_contextvars(request_id=said.decode())
        trace = _given(scope)
        _INCOMING.set(trace)
        bind_trace(trace)
        method, path = asked_method(scope), scope["path"]

        def begins(with_status: int) -> None:
            """Counts the request at this point: a stream lasts as long as its run."""
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
            # The answer to an unexpected error is made outside of all middlewares.
            if not status:
                begins(500)
            raise
        finally:
            if self._is_on:
                self._log(scope, method, path, status or 500, asked_at)

    def _log(self, scope: Scope, method: str, path: str, status: int, asked_at: float) -> None:
        """Logs the request now, or when its stream has ended. The scope is released by then."""
        stats = scope.get("state", {}).get(StreamStats.KEY)
        line = _Line(
            clock=self._clock,
            asked_at=asked_at,
            is_quiet=path in PROBES and status < 400,
            method=method if method in _METHODS else "other",
            route=self._route(scope, path),
            status=status,
            client=client_address(scope, self._proxies),
            ids=tuple(_ids(scope)),
            stats=stats,
        )
        if stats is not None and stats.is_open:
            stats.on_end = line.write
        else:
            line.write()

    def _route(self, scope: Scope, path: str) -> str:
        """The declared path. For a request that matched no route: its noun."""
        found = getattr(scope.get("route"), "path", None)
        if found is not None:
            return str(found)
        noun = _noun(path)
        return f"{noun}/…" if noun in self._nouns else "unknown"


def _id_of(scope: Scope) -> bytes:
    given = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
    return (given if _SANE.fullmatch(given) else f"req-{uuid4()}").encode()


def _noun(path: str) -> str:
    """The noun of a path, such as `/v1/agents` for everything below it."""
    parts = path.split("/", 3)
    return "/".join(parts[:3] if parts[1:2] == ["v1"] else parts[:2])


def _ids(scope: Scope) -> Iterator[tuple[str, str]]:
    parameters: dict[str, Any] = scope.get("path_params", {})
    for name, value in parameters.items():
        if name.endswith("_id") and isinstance(value, str) and _OURS.fullmatch(value):
            yield name, value


@dataclass(slots=True, kw_only=True)
class _Line:
    """A line of the access log, before its request has ended."""

    clock: Clock
    asked_at: float
    is_quiet: bool
    method: str
    route: str
    status: int
    client: str | None
    ids: tuple[tuple[str, str], ...]
    stats: StreamStats | None

    def write(self) -> None:
        stats = self.stats
        log_as = log.debug if self.is_quiet else log.info
        log_as(
            "request_answered",
            method=self.method,
            route=self.route,
            status=self.status,
            duration_ms=round((self.clock.monotonic() - self.asked_at) * 1000, 1),
            client=self.client,
            **dict(self.ids),
            **({} if stats is None else {"frames": stats.frames, "stream_end": stats.end}),
        )


# The trace of the request's sender (W3C's `traceparent`). The work that the request starts continues that trace, and
# log lines name it. A header that is malformed or duplicated is ignored, as W3C demands: it is no reason to refuse a
# request.


_INCOMING: ContextVar[str | None] = ContextVar("trace context of the request", default=None)


def incoming_trace() -> str | None:
    """The W3C trace context that the current request came with, if any."""
    return _INCOMING.get()


def bind_trace(traceparent: str | None) -> None:
    """Adds the trace to all further log lines of the current request."""
    trace_id = trace_id_of(traceparent)
    if trace_id is not None:
        bind_contextvars(trace_id=trace_id)


def _given(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    text = values[0].decode("latin-1").strip() if len(values) == 1 else None
    return text if trace_id_of(text) else None


NO_ROUTE = "none"
"""Route label in the metrics for a request that reached no route: it was refused earlier, or its path does not
exist."""


def networks_of(text: str) -> list[Network]:
    """Parses a comma-separated list of addresses and CIDRs. Raises `ValueError`."""
    return [ip_network(part, strict=False) for part in text.replace(",", " ").split()]


def client_address(scope: Mapping[str, Any], trusted: Sequence[Network]) -> str:
    """Returns the client's address: the connection's, or the one that a trusted proxy reports.

    `X-Forwarded-For` is read from its end, where the nearest proxy wrote. The first address that is not a trusted
    proxy's is the client's; any sender may have written the addresses before it.
    """
    client = scope.get("client")
    address: str = client[0] if client else ""
    if not trusted or not _is_among(address, trusted):
        return address
    said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for part in reversed(",".join(said).split(",")):
        forwarded = part.strip()
        if not _is_address(forwarded):
            return address
        address = forwarded
        if not _is_among(address, trusted):
            return address
    return address


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_among(text: str, networks: Sequence[Network]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks if network.version == address.version)
