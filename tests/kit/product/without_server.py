"""An application without its server, for tests whose client calls it directly."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.event_stream import CONNECTION, RAW_SEND, OpenStream


class WithoutServer:
    """Does for the application what its server does: it sends the rest of each stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _Connection(send)
        state = {**scope.get("state", {}), CONNECTION: connection, RAW_SEND: connection.send}
        await self._app({**scope, "state": state}, receive, connection.send)
        if connection.rest is not None:
            await connection.rest()


class _Connection:
    """A connection whose client stays."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.rest: OpenStream | None = None
        self.is_left = False

    async def send(self, message: Message) -> None:
        self.is_left = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    def watch(self, on_left: Callable[[], None] | None) -> None:
        del on_left

    def hand_over(self, rest: OpenStream) -> None:
        self.rest = rest

    def break_off(self) -> None:
        raise ConnectionError("the server breaks the answer off")
