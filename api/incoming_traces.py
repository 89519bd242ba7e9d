"""The trace that a request came with: W3C's `traceparent`, with which its sender says what the request is a part of.

What the request starts goes on in that trace, and the lines that are logged on its behalf name it. A header that is not
well-formed, or is there twice, is passed over, as W3C says: it is no reason to refuse a request.
"""

from collections.abc import Awaitable
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from shared.telemetry.tracer import trace_id_of

_INCOMING: ContextVar[str | None] = ContextVar("trace context of the request", default=None)


def incoming_trace() -> str | None:
    """The W3C trace context that the present request came with, if it came with one."""
    return _INCOMING.get()


def bind_trace(traceparent: str | None) -> None:
    """Lets what is logged from here on, on behalf of the present request, name its trace."""
    trace_id = trace_id_of(traceparent)
    if trace_id is not None:
        bind_contextvars(trace_id=trace_id)


class IncomingTraces:
    """Reads the trace context of each request. `RequestLog` comes before it: it begins the request's lines anew."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        given = _given(scope)
        return self._app(scope, receive, send) if given is None else self._traced(given, scope, receive, send)

    async def _traced(self, given: str, scope: Scope, receive: Receive, send: Send) -> None:
        before = _INCOMING.set(given)
        try:
            # Never taken back: the access log has the last line, outside of here. Each request is a task of its own.
            bind_trace(given)
            await self._app(scope, receive, send)
        finally:
            _INCOMING.reset(before)


def _given(scope: Scope) -> str | None:
    if scope["type"] != "http":
        return None
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    text = values[0].decode("latin-1").strip() if len(values) == 1 else None
    return text if trace_id_of(text) else None
