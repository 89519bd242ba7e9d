"""The bodies of requests, before anything is made of them: the key first, then counted bytes, then checked JSON.

Nobody without a key makes this process read, parse or keep anything, and nobody with a key makes it keep more than the
limit, however the body is sent. What is left to the routes is a body that can be parsed, stored and shown again.
"""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import ApiKeys
from api.letta.refusals import body_refusal
from shared.json_limits import flaw_of_document

TIMES_SLOWER = 10
"""A whole body may take so many times as long as the silence that is allowed inside it."""


class RequestBodies:
    """Checks key and body of every request to a path under `/v1` before its route sees it.

    `max_bytes` is the longest body; `timeout_s` is how long a client may be silent inside one.
    """

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._keys = keys
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/") or scope["path"] == "/v1/health":
            # Nothing there reads a body or asks for a key.
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refusal = self._refused_unread(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
        else:
            await self._with_body(scope, receive, send)

    def _refused_unread(self, headers: dict[bytes, bytes]) -> Response | None:
        """The answer to a request of which no byte of the body has to be seen."""
        try:
            self._keys.project_of(headers.get(b"authorization", b"").decode("latin-1") or None)
        except HTTPException as error:
            return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        declared = headers.get(b"content-length", b"0")
        return self._too_long() if declared.isdigit() and self._is_over(declared) else None

    def _is_over(self, declared: bytes) -> bool:
        digits = declared.lstrip(b"0")
        # Python does not convert a number of thousands of digits.
        return len(digits) > len(str(self._max_bytes)) or int(digits or b"0") > self._max_bytes

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._read(receive)
        except TimeoutError:
            answer = JSONResponse({"detail": self._too_slow()}, 408, {"Connection": "close"})
            await answer(scope, receive, send)
            return
        if body is None:
            return
        refusal = self._too_long() if len(body) > self._max_bytes else _refused_content(body)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

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
        return JSONResponse({"detail": said}, 413)

    def _too_slow(self) -> str:
        return f"The request's body did not arrive within {self._timeout_s:g} seconds (HOLDFAST_REQUEST_TIMEOUT)"


def _refused_content(body: bytes) -> Response | None:
    flaw = flaw_of_document(body)
    return None if flaw is None else JSONResponse(body_refusal(flaw.place, flaw.text), 422)
