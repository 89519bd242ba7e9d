"""How the senders of messages are answered: with a stream, with the whole answer, or with the run.

Only this module knows how a frame of Letta's looks on the wire.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakValueDictionary

import msgspec
from starlette.responses import Response

from api.caller_quotas import CallerQuotas
from api.errors import model_error_answer, refused
from api.event_stream import EventStream
from api.letta.frames import Frame, FrameOptions, Frames
from api.letta.message_input import MessagesRequest
from api.letta.messages import parts_of
from api.letta.refusals import NO_MESSAGES, STREAM_DEFAULTS, without_stream
from api.letta.run_requests import StreamRequest
from api.letta.runs import wire_answer, wire_run
from api.long_answers import CHARACTERS_OF_A_VALUE, json_answer
from api.runs.reader import RunReader, Sent
from api.runs.submission import Submission, SubmissionService
from api.runs.waiting import RunWaiter, elsewhere
from shared.concurrency import Clock, beside
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.ids import MAX_SEQ, RunId, Seq
from shared.domain.lifecycle import STREAM_ENDED, RunStatus
from shared.domain.log_writer import Entries
from shared.domain.runs import Run
from shared.sql.history.messages import MessageStore

COME_BACK = b": this server is ending, the run goes on: resume after the last id\nretry: 200\n"
"""The end of a stream whose run goes on. A browser comes back after so many ms, with `Last-Event-ID`."""

CONTINUED_BY = "X-Holdfast-Continued-By"
"""The header of a decided run's stream that names the run that goes on."""

FRAMES_AT_ONCE = 64
"""Frames that are made and sent together, in a millisecond or two."""

CATCHING_UP = 4
"""Readers that are behind and get frames made for them in one turn of the event loop."""

_encoder = msgspec.json.Encoder()


def event_bytes(frame: Frame) -> bytes:
    """One frame with its number as the event's id, so that a browser resumes by itself."""
    data = b"[DONE]" if frame.body is None else _encoder.encode(frame.body)
    kind = b"event: error\n" if frame.is_error else b""
    return b"id: %d\n%bdata: %b\n\n" % (frame.seq, kind, data)


class RunView:
    """A run as all of its readers with the same wishes see it. What is live comes to them at the same moment: its bytes
    are made for the first of them, and the others send the same."""

    def __init__(self, run_id: RunId, options: FrameOptions) -> None:
        self.frames = Frames(run_id, options)
        self.readers = 0
        self._entries: Entries = []
        self._shown = b"", False

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """Some entries as bytes, and whether their last one is the stream's end."""
        if self.readers < 2 or len(entries) >= FRAMES_AT_ONCE:
            # Nobody else wants them; or a page of who is behind, for which there is no room.
            return _shown(self.frames, entries)
        if entries != self._entries:
            self._entries, self._shown = entries, _shown(self.frames, entries)
        return self._shown


@dataclass(frozen=True, kw_only=True)
class StreamService:
    """Makes streams."""

    reader: RunReader
    clock: Clock
    keepalive_s: float
    quotas: CallerQuotas
    ending: asyncio.Event
    """Set when this process ends: its streams end too, and their clients resume at another process."""
    catching_up: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CATCHING_UP))
    """Readers of long logs take turns, so that hundreds of them keep nobody else from the event loop."""
    views: WeakValueDictionary[tuple[RunId, FrameOptions], RunView] = field(
        default_factory=WeakValueDictionary[tuple[RunId, FrameOptions], RunView]
    )
    """Of runs that are being read."""

    def stream(self, run: Run, after: Seq, options: FrameOptions) -> EventStream:
        """The response that shows a run from a cursor on."""
        return EventStream(
            lambda: self.batches(run, after, options),
            self.ending,
            cut=COME_BACK,
            entrance=lambda scope: self.quotas.reading_of(run.project_id, scope),
        )

    def resume(
        self, run: Run, request: StreamRequest, last_event_id: str | None, *, status_events: bool
    ) -> EventStream:
        """The response to a request to resume. Its head says which run goes on where this one was parked.

        Raises `InvalidRequest` when `Last-Event-ID` is no number.
        """
        wanted = run.options.include_return_message_types
        options = FrameOptions(
            pings=request.include_pings,
            status_events=status_events or request.include_status_events,
            message_types=None if wanted is None else frozenset(wanted),
            times=request.include_event_times,
            compaction_messages=run.options.compaction_messages,
        )
        stream = self.stream(run, _cursor(request.starting_after, last_event_id), options)
        if run.continued_by is not None:
            # Beside the stream, whose bytes are the same before and after the decision.
            stream.headers[CONTINUED_BY] = run.continued_by
        return stream

    def is_over(self, run: Run, last_event_id: str) -> bool:
        """Whether the run's stream has ended and its reader has seen the end. Raises `InvalidRequest` as `resume`."""
        return run.status in STREAM_ENDED and _cursor(None, last_event_id) >= run.last_seq

    async def batches(self, run: Run, after: Seq, options: FrameOptions) -> AsyncGenerator[bytes]:
        """The stream's bytes, as they are ready. Nothing: a silence of which this reader wants no ping."""
        view = self.views.setdefault((run.id, options), RunView(run.id, options))
        view.readers += 1
        try:
            async for body in self._bodies(run, after, view):
                yield body
        finally:
            view.readers -= 1

    async def _bodies(self, run: Run, after: Seq, view: RunView) -> AsyncGenerator[bytes]:
        last = after
        has_ended = False
        now = asyncio.get_running_loop().time
        sent = Sent(now())
        async for entries in self.reader.follow(run, after, quiet_s=self.keepalive_s, sent=sent):
            if not entries:
                # Also where all that came was of types that this reader does not want: proxies count bytes.
                yield self._ping(view, last)
                sent.at = now()
                continue
            last = entries[-1][0]
            for start in range(0, len(entries), FRAMES_AT_ONCE):
                # What waits for a client is the bytes of a few frames, and their entries.
                body, has_ended = await self._body(view, entries[start : start + FRAMES_AT_ONCE])
                if body:
                    yield body
                    sent.at = now()
        if not has_ended:
            # The cursor was at the end already: the client still needs the mark that the stream is over.
            yield event_bytes(Frame(last, None))

    def _ping(self, view: RunView, last: Seq) -> bytes:
        return event_bytes(view.frames.ping(last, self.clock.now())) if view.frames.options.pings else b""

    async def _body(self, view: RunView, entries: Entries) -> tuple[bytes, bool]:
        """Some entries as the client sees them, and whether their last one is the stream's end."""
        if len(entries) < FRAMES_AT_ONCE:
            return view.of(entries)
        async with self.catching_up:
            await asyncio.sleep(0)
            return view.of(entries)


def _shown(frames: Frames, entries: Entries) -> tuple[bytes, bool]:
    shown = [frame for seq, entry in entries if (frame := frames.of(seq, entry)) is not None]
    return b"".join(map(event_bytes, shown)), any(frame.body is None for frame in shown)


def _cursor(starting_after: int | None, last_event_id: str | None) -> Seq:
    digits = (last_event_id or "").strip()
    if not digits:
        return Seq(starting_after or 0)
    # A client that comes back sends what it sent at first, and its header says how far it has come.
    if not digits.isdecimal() or len(digits) > len(str(MAX_SEQ)) or int(digits) > MAX_SEQ:
        raise InvalidRequest(
            f"Last-Event-ID is {digits[:50]!r}: it must be the number of the last frame seen",
            field="header.Last-Event-ID",
        )
    return Seq(int(digits))


@dataclass(frozen=True, kw_only=True)
class AnswerService:
    """Submits messages and answers their senders."""

    submissions: SubmissionService
    streaming: StreamService
    waiter: RunWaiter
    messages: MessageStore

    async def send(self, submission: Submission) -> Response:
        """Submits, and answers as the request asks: a stream, or the whole answer when the run has ended.

        The run goes on when the client leaves.
        """
        request = submission.request
        flaw = _flaw(request)
        if flaw is not None:
            return flaw
        run = await self.submissions.submit(submission)
        if request.streaming:
            return self.streaming.stream(run, Seq(0), frame_options(request, status_events=run.options.status_events))
        ended = await self.waiter.ended(run)
        return elsewhere(run) if ended is None else await self._whole_answer(ended)

    async def send_later(self, submission: Submission) -> Response:
        """Submits and answers with the run."""
        if not submission.request.given_messages():
            return _invalid(NO_MESSAGES, "messages")
        return await json_answer(wire_run(await self.submissions.submit_or_fail(submission)))

    async def _whole_answer(self, run: Run) -> Response:
        if run.status is RunStatus.FAILED and run.error is not None:
            error = run.error
            return model_error_answer(error.error_type, error.detail, error.message)
        said = await self.messages.list_of_run(run)
        return await json_answer(await beside(partial(wire_answer, run, said), CHARACTERS_OF_A_VALUE * parts_of(said)))


def frame_options(request: MessagesRequest, *, status_events: bool) -> FrameOptions:
    """What the sender of this request wants to see of the stream."""
    wanted = request.include_return_message_types
    return FrameOptions(
        pings=request.include_pings,
        status_events=status_events,
        message_types=None if wanted is None else frozenset(wanted),
        compaction_messages=request.include_compaction_messages,
    )


def _flaw(request: MessagesRequest) -> Response | None:
    """What is wrong with the request as a whole."""
    if not request.given_messages():
        return _invalid(NO_MESSAGES, "messages")
    if request.streaming:
        return None
    given = {option: getattr(request, option) for option in STREAM_DEFAULTS}
    wrong = next((name for name, value in given.items() if value != STREAM_DEFAULTS[name]), None)
    return None if wrong is None else _invalid(without_stream(wrong), wrong)


def _invalid(said: str, field: str) -> Response:
    return refused(422, ErrorCode.INVALID_ARGUMENT, said, field=field)
