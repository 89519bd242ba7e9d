"""What a request gets that is still being worked on when the server's time to end is over."""

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RETRY_AFTER_S

SAID = "SERVICE_UNAVAILABLE: this server is ending; send the request again"


class Ending:
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
