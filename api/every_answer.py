"""What stands around every answer: HTTP that the application does not know of, and what an answer tells a browser."""

import asyncio
from collections.abc import Awaitable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RETRY_AFTER_S, refused
from api.event_stream import RAW_SEND
from api.request_log import ASKED_METHOD
from shared.domain.errors import ErrorCode


class ClientSide:
    """Keeps to HTTP what the application does not know of: to be the first that a request meets.

    * HEAD is answered as GET is, without the body (RFC 9110, 9.3.2). A stream ends behind its head.
    * A client may hold its body back (`Expect: 100-continue`). Where the answer comes before it was asked for the body,
      the connection ends behind the answer: the client may send the body then, or leave it out (RFC 9110, 10.1.1), and
      a server that reads on takes the next request for the body if it is left out.
    * A stream finds the server's own `send` (`RAW_SEND`).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        if scope["method"] == "HEAD":
            send = _head_alone(send)
            scope = {**scope, "method": "GET", "state": {**scope.get("state", {}), ASKED_METHOD: "HEAD"}}
        scope.setdefault("state", {})[RAW_SEND] = send
        if any(name == b"expect" for name, _ in scope["headers"]):
            receive, send = _closing_unless_asked(receive, send)
        return self._app(scope, receive, send)


def _head_alone(send: Send) -> Send:
    async def head_alone(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return head_alone


def _closing_unless_asked(receive: Receive, send: Send) -> tuple[Receive, Send]:
    is_held_back = True

    def asked() -> Awaitable[Message]:
        nonlocal is_held_back
        is_held_back = False
        return receive()

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start" and is_held_back:
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return asked, closing


# What every answer tells a browser: to believe its type, to keep nothing, to show it in no frame of another page.


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


SERVER_ENDS = "SERVICE_UNAVAILABLE: this server is ending; send the request again"


class EveryAnswer:
    """Adds these headers to every answer. `Cache-Control` is left to whoever has set it, as streams do.

    A request that the server cancels at its end gets a 503, if nothing of its answer is out yet. The server itself
    would answer it with a bare 500.
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
    if path.startswith("/v1/"):
        # Conversations are nobody's business but the caller's: no proxy and no browser keeps them.
        headers.setdefault("Cache-Control", "no-store")


def _policy_of(path: str) -> str:
    """What a page at this path may load."""
    if path == "/docs":
        return "; ".join(_DOCUMENTATION)
    return "; ".join(_CONSOLE) if path == "/console" or path.startswith("/console/") else _NOTHING
