"""A run's stream for one client: follows the log and shows it in frames."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from api.letta.frames import Frame, FrameOptions, Frames
from api.letta.message_input import StreamRequest
from api.run_reader import RunReader
from api.sse import EventStream
from shared.clock import Clock
from shared.domain.errors import InvalidRequest
from shared.domain.ids import Seq
from shared.domain.runs import Run


@dataclass(frozen=True, kw_only=True)
class RunStreaming:
    """Makes streams."""

    reader: RunReader
    clock: Clock
    keepalive_s: float
    ending: asyncio.Event
    """Set when this process is told to end: its streams end too, and go on at another one."""

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
            # The cursor was at the end already: the client still waits for the word that there is nothing more.
            yield [Frame(last, None)]


def _cursor(starting_after: int | None, last_event_id: str | None) -> Seq:
    if starting_after is not None:
        return Seq(starting_after)
    if last_event_id is None or not last_event_id.strip():
        return Seq(0)
    if not last_event_id.strip().isdecimal():
        raise InvalidRequest(f"Last-Event-ID is {last_event_id!r}: it must be the number of the last frame seen")
    return Seq(int(last_event_id))
