"""Server-sent events. Only this module knows how a frame looks on the wire.

It sends bodies itself. Everything that is ready leaves in one send, each send waits for the client's socket, and a
client that goes away is noticed at once. A reader costs its socket and one batch of entries.

A comment is one line without the empty line that ends an event. After an event with an id, some clients (`letta-client`
among them) take every empty line for another event, without data, and fail on it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.letta.frames import Frame, FrameOptions, Frames
from api.letta.run_requests import StreamRequest
from api.runs.reader import RunReader
from shared.clock import Clock
from shared.domain.errors import InvalidRequest
from shared.domain.ids import MAX_SEQ, Seq
from shared.domain.runs import Run

HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "content-type": "text/event-stream; charset=utf-8",
}
KEEP_ALIVE = b": keep-alive\n"
COME_BACK = b": this server is ending, the run goes on: resume after the last id\nretry: 200\n"
"""The end of a stream whose run goes on. A browser comes back after so many ms, with `Last-Event-ID`."""

_encoder = msgspec.json.Encoder()


def event_bytes(frame: Frame) -> bytes:
    """One frame with its number as the event's id, so that a browser resumes by itself."""
    data = b"[DONE]" if frame.body is None else _encoder.encode(frame.body)
    kind = b"event: error\n" if frame.is_error else b""
    return b"id: %d\n%bdata: %b\n\n" % (frame.seq, kind, data)


class EventStream(Response):
    """A response that sends batches of frames until they end, the client goes away or the server is `ending`.

    `batches` yields the frames that are ready; an empty batch becomes a comment, which keeps proxies from hanging up.
    """

    def __init__(self, batches: Callable[[], AsyncGenerator[Iterable[Frame]]], ending: asyncio.Event) -> None:
        super().__init__(headers=HEADERS)
        self._batches = batches
        self._ending = ending
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(send), name="send events")
            leaving = group.create_task(_wait_for_disconnect(receive), name="watch for disconnect")
            ending = group.create_task(self._wait_for_the_end(), name="watch for the server's end")
            await asyncio.wait([sending, leaving, ending], return_when=asyncio.FIRST_COMPLETED)
            # A cancelled send has passed its bytes on already: no frame is cut.
            is_cut = ending.done() and not sending.done() and not leaving.done()
            for task in (sending, leaving, ending):
                task.cancel()
        if is_cut:
            await send({"type": "http.response.body", "body": COME_BACK, "more_body": False})

    async def _send(self, send: Send) -> None:
        async for frames in self._batches():
            body = b"".join(map(event_bytes, frames)) or KEEP_ALIVE
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_for_the_end(self) -> None:
        await self._ending.wait()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, kw_only=True)
class StreamService:
    """Makes streams."""

    reader: RunReader
    clock: Clock
    keepalive_s: float
    ending: asyncio.Event
    """Set when this process ends: its streams end too, and their clients resume at another process."""

    def stream(self, run: Run, after: Seq, options: FrameOptions) -> EventStream:
        """The response that shows a run from a cursor on."""
        return EventStream(lambda: self._batches(run, after, options), self.ending)

    def resume(
        self, run: Run, request: StreamRequest, last_event_id: str | None, *, status_events: bool
    ) -> EventStream:
        """The response to a request to resume. Raises `InvalidRequest` when `Last-Event-ID` is no number."""
        wanted = run.options.include_return_message_types
        options = FrameOptions(
            pings=request.include_pings,
            status_events=status_events or request.include_status_events,
            message_types=None if wanted is None else frozenset(wanted),
        )
        return self.stream(run, _cursor(request.starting_after, last_event_id), options)

    async def _batches(self, run: Run, after: Seq, options: FrameOptions) -> AsyncGenerator[list[Frame]]:
        frames = Frames(run.id, options)
        last = after
        has_ended = False
        async for entries in self.reader.follow(run, after, quiet_s=self.keepalive_s):
            if not entries:
                yield [frames.ping(last, self.clock.now())] if options.pings else []
                continue
            last = entries[-1][0]
            shown = [frame for seq, entry in entries if (frame := frames.of(seq, entry)) is not None]
            has_ended = any(frame.body is None for frame in shown)
            if shown:
                yield shown
        if not has_ended:
            # The cursor was at the end already: the client still needs the mark that the stream is over.
            yield [Frame(last, None)]


def _cursor(starting_after: int | None, last_event_id: str | None) -> Seq:
    if starting_after is not None:
        return Seq(starting_after)
    if last_event_id is None or not last_event_id.strip():
        return Seq(0)
    digits = last_event_id.strip()
    if not digits.isdecimal() or len(digits) > len(str(MAX_SEQ)) or int(digits) > MAX_SEQ:
        raise InvalidRequest(f"Last-Event-ID is {last_event_id[:50]!r}: it must be the number of the last frame seen")
    return Seq(int(digits))
