"""Server-sent events. The only file that knows how a frame looks on the wire.

A raw body sender: everything that is ready leaves in one send, the client's pace is the pace (a send waits for the
socket), and a client that goes away is noticed at once. What a reader costs is its socket and one batch of entries.

A comment is one line without the empty line that ends an event: after an event with an id, some clients (`letta-client`
among them) take every empty line for another event, without data, and stumble over it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.letta.frames import Frame

HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "content-type": "text/event-stream; charset=utf-8",
}
KEEP_ALIVE = b": keep-alive\n"
COME_BACK = b": this server is ending, the run goes on: resume after the last id\nretry: 200\n"
"""The end of a stream that is not the end of its run. A browser comes back after so many ms, with `Last-Event-ID`."""

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
            # A cancelled send has handed its bytes over already: no frame is torn.
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
