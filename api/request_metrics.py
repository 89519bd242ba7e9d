"""Counts requests, for Prometheus: by the route that answered them, never by their path."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.request_log import asked_method
from shared.concurrency import Clock
from shared.telemetry.api_metrics import ApiMetrics

NO_ROUTE = "none"
"""Of a request that no route has seen: it was refused before, or there is no such path."""

_ROUTE = "route_template"


class RequestMetrics:
    """Counts each request when its answer begins, and how long that took: a stream goes on for as long as its run. The
    first that a request meets, so that refusals count too."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics, clock: Clock) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        state = scope.setdefault("state", {})
        has_begun = False

        def count(status: int) -> None:
            seconds = self._clock.monotonic() - began
            self._metrics.request_answered(asked_method(scope), state.get(_ROUTE, NO_ROUTE), status, seconds)

        async def counted(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            # The answer to an error that nobody foresaw is made outside of here, where no middleware sees it.
            if not has_begun:
                count(500)
            raise


class RouteNames:
    """Notes for `RequestMetrics` which route answers. The last that a request meets before its route: only there is
    known which it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        def note() -> None:
            if "route" in scope:
                state[_ROUTE] = getattr(scope["route"], "path", NO_ROUTE)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note()
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            note()
            raise
