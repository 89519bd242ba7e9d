"""What a connection keeps for each answer: as little as possible, because ten thousand waiting readers have one."""

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.event_stream import CONNECTION, KEEP_ALIVE_BYTES, RAW_SEND, OpenStream
from shared.concurrency import LeanEvent

Item = TypeVar("Item")


class FewItems(list[Item]):
    """A queue of a handful, in place of a `deque`, which has room for 64 at once."""

    __slots__ = ()

    def appendleft(self, item: Item) -> None:
        """As of a `deque`."""
        self.insert(0, item)

    def popleft(self) -> Item:
        """As of a `deque`."""
        return self.pop(0)


class Flow:
    """In place of uvicorn's `FlowControl`, with an event that costs next to nothing."""

    __slots__ = ("_is_writable", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._is_writable = LeanEvent(is_set=True)
        self.read_paused = False
        self.write_paused = False

    async def drain(self) -> None:
        """Waits until the client has read enough of what was sent."""
        await self._is_writable.wait()

    def pause_reading(self) -> None:
        """Leaves what the client sends in the kernel."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Ends `pause_reading`."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Makes senders wait."""
        self.write_paused = True
        self._is_writable.clear()

    def resume_writing(self) -> None:
        """Ends `pause_writing`."""
        self.write_paused = False
        self._is_writable.set()


class AnswerConnection:
    """See `Connection`. `cycle` is uvicorn's, of one request."""

    __slots__ = ("_cycle", "_on_left", "_protocol", "_rest")

    def __init__(self, protocol: Any, cycle: Any) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._on_left: Callable[[], None] | None = None
        self._rest: OpenStream | None = None

    @property
    def is_left(self) -> bool:
        """See `Connection`."""
        return bool(self._cycle.disconnected or self._cycle.response_complete)

    def watch(self, on_left: Callable[[], None] | None) -> None:
        """See `Connection`."""
        self._on_left = on_left

    def leaves(self) -> None:
        """The client has left."""
        if self._on_left is not None:
            self._on_left()

    def hand_over(self, rest: OpenStream) -> None:
        """See `Connection`."""
        self._rest = rest

    def break_off(self) -> None:
        """See `Connection`."""
        self._protocol.break_off_answer(self._cycle)

    def rest(self) -> OpenStream | None:
        """The rest of the answer, if there is one. Then the request itself is forgotten."""
        rest, self._rest = self._rest, None
        if rest is not None:
            self._forget_request()
        return rest

    def _forget_request(self) -> None:
        scope, protocol = self._cycle.scope, self._protocol
        state = {key: scope["state"][key] for key in STATE_OF_STREAMS if key in scope["state"]}
        kept = {key: scope[key] for key in ("type", "method", "http_version")}
        scope.clear()
        scope |= {**kept, "state": state}
        if protocol.cycle is self._cycle:
            protocol.forget_request()


CLOSE_DELIMITED = "close_delimited"
"""Key in a request's state: its `CloseDelimited`, if its client does not support chunks."""

STATE_OF_STREAMS = (CONNECTION, KEEP_ALIVE_BYTES, CLOSE_DELIMITED)
"""What the connection needs of a request's state while its stream is open."""


class CloseDelimited:
    """An answer to a client without support for chunks: without a length it ends with its connection (RFC 9112, 6.3).

    uvicorn's `cycle` would choose chunks, so this sets the length that it expects to that of each piece."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self.is_sending = False
        """An answer without a length has begun."""

    def before(self, send: Send) -> Send:
        """A `send` for the application, in place of the given one."""

        async def unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.is_sending = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                self._cycle.chunked_encoding = False if self.is_sending else None
            elif self.is_sending:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        return unframed


class WholeAnswers:
    """The application, and what it leaves to its server: the rest of each stream, and answers to clients without
    chunks. It must be the outermost layer that sends answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: CloseDelimited | None = scope["state"].get(CLOSE_DELIMITED)
        connection: AnswerConnection = scope["state"][CONNECTION]
        raw_send = send if answer is None else answer.before(send)
        scope["state"][RAW_SEND] = raw_send
        await self._app(scope, receive, raw_send)
        rest = connection.rest()
        if rest is not None:
            await rest()
