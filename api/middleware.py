"""What every request passes before it is routed: where it comes from, its key, its body, its path.

Nobody without a key makes this process read, parse or keep anything, and nobody with a key makes it keep more than the
limit, however the body is sent. What is left to the routes is a body that can be parsed, stored and shown again.
"""

import asyncio
import re
from collections.abc import Awaitable, Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.accepted_keys import AcceptedKeys
from api.errors import RETRY_AFTER_S, input_refusal, refused
from api.request_log import ASKED_METHOD
from shared.concurrency import others_turn
from shared.domain.errors import ErrorCode, Unavailable
from shared.json_limits import flaw_of_document

SAID = "SERVICE_UNAVAILABLE: this server is ending; send the request again"


class ShutdownAnswers:
    """Answers 503 for requests that the server cancels at its end, which it would answer with a bare 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] == "http" and not has_begun:
                answer = refused(503, ErrorCode.SERVER_ENDING, SAID, headers={"Retry-After": str(RETRY_AFTER_S)})
                await answer(scope, receive, send)
            raise


class HeadRequests:
    """Has HEAD answered as GET is, without the body (RFC 9110, 9.3.2). A stream ends behind its head. To be the first
    that a request meets: what is behind it sees a GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return self._app(scope, receive, send)

        async def head_alone(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        state = {**scope.get("state", {}), ASKED_METHOD: "HEAD"}
        return self._app({**scope, "method": "GET", "state": state}, receive, head_alone)


class UnsentBodies:
    """Ends the connection behind an answer that was given before the client was asked for the body that it holds back
    (`Expect: 100-continue`).

    It may send the body then, or leave it out (RFC 9110, 10.1.1). A server that reads on takes the next request for the
    body if it is left out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        is_held_back = scope["type"] == "http" and any(name == b"expect" for name, _ in scope["headers"])
        if not is_held_back:
            return self._app(scope, receive, send)

        def asked() -> Awaitable[Message]:
            nonlocal is_held_back
            is_held_back = False
            return receive()

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and is_held_back:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return self._app(scope, asked, closing)


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class BrowserGuard:
    """Refuses what a web page of somebody else could send to a server that asks for no key.

    Such a server trusts whoever reaches it, and the browser of whoever runs it does: a page can have its own name lead
    to 127.0.0.1 (DNS rebinding), or send a form there. Both are seen by a name in `Host` or `Origin` that is not ours.
    A page of another server on this machine has one of our names, and a browser sends its forms without asking first.
    So what changes something comes from the pages of this very server, by its port.

    `names` are those that are allowed beside loopback's, `origins` the pages that may ask from elsewhere.
    """

    def __init__(self, app: ASGIApp, *, keys: AcceptedKeys, names: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._keys = keys
        self._origins = frozenset(origins)
        self._allowed = frozenset(name.lower() for name in names)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        refusal = self._refusal(scope["method"], scope["headers"]) if scope["type"] == "http" else None
        return self._app(scope, receive, send) if refusal is None else self._judge(refusal, scope, receive, send)

    async def _judge(self, refusal: tuple[str, str], scope: Scope, receive: Receive, send: Send) -> None:
        is_closed = await self._is_closed()
        field, sentence = refusal
        answer = self._app if is_closed else refused(403, ErrorCode.FORBIDDEN_ORIGIN, sentence, field=field)
        await answer(scope, receive, send)

    async def _is_closed(self) -> bool:
        try:
            return await self._keys.are_required()
        except Unavailable:
            return False

    def _refusal(self, method: str, headers: list[tuple[bytes, bytes]]) -> tuple[str, str] | None:
        """The header that says that the request may be a foreign page's, and a sentence; None when it is not. A program
        sends no `Origin`."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        for said in hosts:
            if not self._is_ours(_name_of(f"//{said}")):
                return "header.Host", _not_ours("Host", said)
        for said in origins:
            if said in self._origins:
                continue
            name = _name_of(said)
            if not self._is_ours(name):
                return "header.Origin", _not_ours("Origin", said)
            if method not in _READS and name not in self._allowed and not _is_same_server(said, hosts):
                return "header.Origin", _not_our_page(said)
        return None

    def _is_ours(self, name: str) -> bool:
        # Browsers take every name under `localhost` for this machine, and nobody can rebind one.
        return name in LOOPBACK_NAMES or name in self._allowed or name.endswith(".localhost")


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""What changes nothing, and what a browser asks before it sends something else; it shows an answer to its own pages
alone."""


def _name_of(address: str) -> str:
    """The host of an address, without its port; "" for what is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_same_server(origin: str, hosts: Sequence[str]) -> bool:
    """Whether a page's origin is the server that is asked, by its port as well. A browser leaves the usual port out of
    both."""
    return urlsplit(origin).netloc.lower() in {host.lower() for host in hosts}


def _not_our_page(said: str) -> str:
    return (
        f"FORBIDDEN: Origin is {said[:200]!r}, and without API keys this server lets its own pages alone change "
        "something. Name the page's origin in HOLDFAST_CORS_ORIGINS, or set HOLDFAST_API_KEYS"
    )


def _not_ours(header: str, said: str) -> str:
    return (
        f"FORBIDDEN: {header} is {said[:200]!r}, and without API keys this server answers requests to this machine's "
        "own names only. Allow the name in HOLDFAST_ALLOWED_HOSTS, or set HOLDFAST_API_KEYS"
    )


_AGENT = r"agents/[^/]+/"
_NOT_OURS = re.compile(
    "/v1/(?:"
    # whole nouns
    r"(?:client-side-access-tokens|embeddings|environments|files|folders|groups|identities|jobs"
    r"|mcp-servers|metadata|providers|ready|repositories|sandbox-config|shared-agents|sources|telemetry|templates"
    r"|voice-beta)(?:/.*)?"
    # Letta's own administration, and what its own pages and coding tools ask
    r"|(?:_internal_[a-z]+|anthropic|orgs|users|zai)(?:/.*)?"
    # parts of nouns that are ours
    rf"|{_AGENT}(?:files|folders|groups|identities|mcp-servers|repositories|schedule|sources|variables)(?:/.*)?"
    rf"|{_AGENT}core-memory/variables|{_AGENT}system-prompt/recompile"
    rf"|{_AGENT}messages/preview-raw-payload|{_AGENT}messages/message-[^/]+"
    rf"|{_AGENT}sandboxes|sandboxes(?:/.*)?|git(?:/.*)?|admin/(?:orgs|users)(?:/.*)?|auth"
    r"|agents/(?:messages/)?search"
    r"|conversations/(?:ephemeral|search)|conversations/[^/]+/summarize"
    r"|blocks/[^/]+/identities(?:/.*)?"
    r"|conversations/[^/]+/messages/preview-raw-payload"
    r"|messages/batches(?:/.*)?"
    r"|models/catalog"
    r"|steps/[^/]+/transaction/.*"
    r"|tools/(?:composio.*|generate-schema|generate-tool|mcp.*|run|search)"
    r")"
)


_LETTAS_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


class LettaPaths:
    """Lets `/v1/agents/` and `/v1/agents` be one path, without a redirect: that would lose a POST's body.

    A path of Letta that Holdfast does not have gets a 501 that says so, instead of a 404 that looks like a wrong id.
    `lists` are the routes there that are answered all the same.
    """

    def __init__(self, app: ASGIApp, *, lists: Sequence[BaseRoute]) -> None:
        self._app = app
        self._lists = lists

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path = scope["path"].rstrip("/") or "/"
        scope["path"] = path  # in place: who stands outside reads the route that was found in this scope
        is_letta = scope["method"] in _LETTAS_METHODS and _NOT_OURS.fullmatch(path)
        if is_letta and not any(route.matches(scope)[0] is Match.FULL for route in self._lists):
            said = _refusal(scope["method"], path)
            return refused(501, ErrorCode.NOT_IMPLEMENTED, said)(scope, receive, send)
        return self._app(scope, receive, send)


def _refusal(method: str, path: str) -> str:
    return (
        f"NOT_IMPLEMENTED: {method} {path} is part of Letta's API that Holdfast does not have. "
        "Holdfast runs agents; docs/api.md lists what it serves."
    )


TIMES_SLOWER = 10
"""A whole body may take so many times as long as the silence that is allowed inside it."""


class RequestBodies:
    """Checks the body of every request to a path under `/v1` before its route sees it: its counted bytes, then its
    JSON.

    `max_bytes` is the longest body; `timeout_s` is how long a client may be silent inside one.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["path"] == "/v1/health":
            # Nothing there reads a body.
            return self._app(scope, receive, send)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and self._is_over(declared):
            return self._too_long()(scope, receive, send)
        if scope["method"] in ("GET", "HEAD"):
            return self._app(scope, receive, send)
        return self._with_body(scope, receive, send)

    def _is_over(self, declared: bytes) -> bool:
        digits = declared.lstrip(b"0")
        # Python does not convert a number of thousands of digits.
        return len(digits) > len(str(self._max_bytes)) or int(digits or b"0") > self._max_bytes

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._read(receive)
        except TimeoutError:
            answer = refused(408, ErrorCode.BODY_TIMEOUT, self._too_slow(), headers={"Connection": "close"})
            await answer(scope, receive, send)
            return
        if body is None:
            return
        await others_turn(body)
        refusal = self._too_long() if len(body) > self._max_bytes else _refused_content(body)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await others_turn(body)
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body  # whoever reads it lets go of it; a stream goes on for as long as its run

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replayed, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, or as much of it as shows that it is too long. None: the client has gone away.

        Raises `TimeoutError` for one that does not arrive.
        """
        body = bytearray()
        async with asyncio.timeout(self._timeout_s * TIMES_SLOWER):
            while True:
                async with asyncio.timeout(self._timeout_s):
                    message: Any = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                if not message.get("more_body") or len(body) > self._max_bytes:
                    return bytes(body)

    def _too_long(self) -> Response:
        said = (
            f"The request's body is longer than {self._max_bytes} bytes, which is what HOLDFAST_MAX_BODY_BYTES allows"
        )
        return refused(413, ErrorCode.BODY_TOO_LARGE, said)

    def _too_slow(self) -> str:
        return f"The request's body did not arrive within {self._timeout_s:g} seconds (HOLDFAST_REQUEST_TIMEOUT)"


def _refused_content(body: bytes) -> Response | None:
    flaw = flaw_of_document(body)
    if flaw is None:
        return None
    return input_refusal([{"type": "value_error", "loc": ("body", *flaw.place), "msg": flaw.text}])


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
