"""What every request passes before it is routed."""

import asyncio
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RETRY_AFTER_S

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
                answer = JSONResponse({"detail": SAID}, 503, {"Retry-After": str(RETRY_AFTER_S)})
                await answer(scope, receive, send)
            raise


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class BrowserGuard:
    """Refuses what a web page of somebody else could send to a server that asks for no key.

    Such a server trusts whoever reaches it, and the browser of whoever runs it does: a page can have its own name lead
    to 127.0.0.1 (DNS rebinding), or send a form there. Both are seen by a name in `Host` or `Origin` that is not ours.
    `names` are those that are allowed beside loopback's.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str]) -> None:
        self._app = app
        self._names = LOOPBACK_NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        foreign = self._foreign(scope["headers"]) if scope["type"] == "http" else None
        if foreign is None:
            await self._app(scope, receive, send)
            return
        await JSONResponse({"detail": _not_ours(*foreign)}, 403)(scope, receive, send)

    def _foreign(self, headers: list[tuple[bytes, bytes]]) -> tuple[str, str] | None:
        """The first header that names a host that is not ours, and what it says."""
        for name, value in headers:
            said = value.decode("latin-1")
            if (name == b"host" and not self._is_ours(f"//{said}")) or (name == b"origin" and not self._is_ours(said)):
                return name.decode().title(), said
        return None

    def _is_ours(self, address: str) -> bool:
        try:
            name = urlsplit(address).hostname
        except ValueError:
            return False
        # Browsers take every name under `localhost` for this machine, and nobody can rebind one.
        return name is not None and (name in self._names or name.endswith(".localhost"))


def _not_ours(header: str, said: str) -> str:
    return (
        f"FORBIDDEN: {header} is {said[:200]!r}, and without API keys this server answers requests to this machine's "
        "own names only. Allow the name in HOLDFAST_ALLOWED_HOSTS, or set HOLDFAST_API_KEYS"
    )


_AGENT = r"agents/[^/]+/"
_NOT_OURS = re.compile(
    "/v1/(?:"
    # whole nouns
    r"(?:archives|chat|client-side-access-tokens|embeddings|environments|files|folders|groups|identities|jobs"
    r"|mcp-servers|passages|providers|sandbox-config|sources|tags|telemetry|templates|voice-beta)(?:/.*)?"
    # parts of nouns that are ours
    rf"|{_AGENT}(?:archival-memory|archives|export|files|folders|groups|identities|schedule|sources|variables)(?:/.*)?"
    rf"|{_AGENT}tools/[^/]+/run|{_AGENT}core-memory(?:/variables)?"
    r"|agents/(?:import|search)"
    r"|blocks/[^/]+/identities(?:/.*)?"
    r"|messages/(?:batches(?:/.*)?|search)"
    r"|tools/(?:add-base-tools|composio.*|generate-tool|mcp.*|run|search)"
    r")"
)


class LettaPaths:
    """Lets `/v1/agents/` and `/v1/agents` be one path, without a redirect: that would lose a POST's body.

    A path of Letta that Holdfast does not have gets a 501 that says so, instead of a 404 that looks like a wrong id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/") or "/"
        if _NOT_OURS.fullmatch(path):
            await JSONResponse({"detail": _refusal(scope["method"], path)}, 501)(scope, receive, send)
            return
        await self._app({**scope, "path": path}, receive, send)


def _refusal(method: str, path: str) -> str:
    return (
        f"NOT_IMPLEMENTED: {method} {path} is part of Letta's API that Holdfast does not have. "
        "Holdfast runs agents; docs/api.md lists what it serves."
    )
