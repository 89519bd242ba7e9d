"""What every answer tells a browser: to believe its type, to keep nothing, to show it in no frame of another page."""

from collections.abc import Awaitable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
"""The console shows what models and tools wrote. No script but its own files runs there, whatever they wrote."""


class SecurityHeaders:
    """Adds them to every answer. `Cache-Control` is left to whoever has set it, as streams do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path: str = scope["path"]

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Content-Security-Policy"] = _policy_of(path)
                if path.startswith("/v1/"):
                    # Conversations are nobody's business but the caller's: no proxy and no browser keeps them.
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        return self._app(scope, receive, guarded)


def _policy_of(path: str) -> str:
    """What a page at this path may load."""
    if path == "/docs":
        return "; ".join(_DOCUMENTATION)
    return "; ".join(_CONSOLE) if path == "/console" or path.startswith("/console/") else _NOTHING
