"""An application without its server, for tests whose client calls it directly."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.event_stream import CONNECTION, OpenStream
from api.request_log import ASKED_METHOD


class WithoutServer:
    """Does for the application what its server does: it sends the rest of each stream, and answers HEAD as GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _Connection(send, is_for_head=scope["method"] == "HEAD")
        state = {**scope.get("state", {}), CONNECTION: connection}
        if connection.is_for_head:
            scope, state[ASKED_METHOD] = {**scope, "method": "GET"}, "HEAD"
        await self._app({**scope, "state": state}, receive, connection.send)
        if connection.rest is not None:
            await connection.rest()


class _Connection:
    """A connection whose client stays."""

    def __init__(self, send: Send, *, is_for_head: bool) -> None:
        self._send = send
        self.is_for_head = is_for_head
        self.rest: OpenStream | None = None
        self.is_left = False

    async def send(self, message: Message) -> None:
        if self.is_for_head and message["type"] == "http.response.body":
            return
        await self._send(message)
        if self.is_for_head:
            message = {"type": "http.response.body", "body": b"", "more_body": False}
            await self._send(message)
        self.is_left = message["type"] == "http.response.body" and not message.get("more_body", False)

    def watch(self, on_left: Callable[[], None] | None) -> None:
        del on_left

    def hand_over(self, rest: OpenStream) -> None:
        self.rest = rest

    def break_off(self) -> None:
        raise ConnectionError("the server breaks the answer off")
