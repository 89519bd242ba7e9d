"""What every request passes before it is routed."""

import asyncio
import re

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
