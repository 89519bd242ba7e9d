"""Runs, streams and stops of conversations for AG-UI's clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from api.ag_ui.leg_fold import Client, Event, LegFold
from api.ag_ui.messages import wire_messages
from api.ag_ui.run_input import RunAgentInput
from api.errors import Refused
from api.event_stream import HEADERS, StreamBroken
from api.pages.decisions import PageRefusal
from api.pages.submission import PageService, PageSubmission
from api.pages.threads import PageThread, PageThreads
from api.runs.command import SubmissionHeaders
from api.runs.thread_projection import LegInput, Present, Thread, ThreadCursor
from api.runs.thread_streams import ThreadStreams
from shared.domain.agents import Agent
from shared.domain.approvals import Approval
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.events import FIRST_SEQ, decode
from shared.domain.ids import AgentId, ProjectId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries
from shared.domain.threads import Leg
from shared.process.importing import VERSION

DIALECT = "ag_ui"


@dataclass(frozen=True)
class Asker:
    """The caller's project, and the only conversation that the caller may see. None: all conversations."""

    project_id: ProjectId
    only: ThreadId | None = None


@dataclass(frozen=True, kw_only=True)
class AgUiService:
    """Answers AG-UI's clients."""

    threads: PageThreads
    pages: PageService
    streams: ThreadStreams

    async def run(self, asker: Asker, agent_id: AgentId, body: RunAgentInput, headers: SubmissionHeaders) -> Response:
        """Submits messages, or answers to waiting calls, and streams the run. The run goes on when its client
        disconnects. Answers that do not fit the waiting calls get a stream with an error."""
        thread = await self.threads.find(asker.project_id, agent_id, body.thread_id, only=asker.only)
        try:
            submitted = await self.pages.submit(await self._submission(thread, body, headers))
        except PageRefusal as refusal:
            return _stream({"type": "RUN_ERROR", "message": refusal.message, "code": refusal.reason})
        run = submitted.run
        # The client may have a part of a run that is not new: its stream begins with all messages before the run.
        client = Client(body.thread_id, body.is_current, body.messages or () if submitted.is_new else None)
        return self.streams.stream_leg(Thread(run.project_id, run.agent_id, run.thread_id), run, ThreadFrames(client))

    async def connect(
        self, asker: Asker, agent_id: AgentId, client: Client, after: ThreadCursor | None, *, follow: bool
    ) -> Response:
        """Streams the conversation after a cursor; without a cursor, from its newest run on, with all messages before
        the run first. Without `follow` the stream ends when no run of the conversation is active or queued."""
        found = await self.threads.find(asker.project_id, agent_id, client.thread_name, only=asker.only)
        thread = found.streamed
        if thread is None:
            return _stream()
        start = after or await self.streams.newest_turn(thread)
        if start is None and not follow and not await self.streams.is_at_work(thread):
            return _stream()
        return self.streams.stream(thread, start or ThreadCursor(), ThreadFrames(client, after), follow=follow)

    async def stop(self, asker: Asker, agent_id: AgentId, thread_name: str, run: str | None) -> dict[str, Any]:
        """Cancels the conversation's run, or the run with this name. Returns a receipt."""
        thread = await self.threads.find(asker.project_id, agent_id, thread_name, only=asker.only)
        stopped = await self.pages.stop(thread, run)
        return {
            "stopped": True,
            "threadId": thread_name,
            "runId": stopped.options.named or stopped.id,
            "run_id": stopped.id,
            "status": stopped.status,
        }

    async def _submission(self, thread: PageThread, body: RunAgentInput, headers: SubmissionHeaders) -> PageSubmission:
        try:
            said, answers, if_busy = body.said(), body.answers(), body.if_busy()
        except InvalidRequest as error:
            raise Refused(422, ErrorCode.INVALID_ARGUMENT, f"INVALID_ARGUMENT: {error}", field=error.field) from error
        if said and not body.resume:
            # The others answer calls of earlier runs, for example if the run that they continued ended without output.
            answers = await self.pages.open_among(thread, answers)
        return PageSubmission(
            thread=thread,
            dialect=DIALECT,
            said=said,
            said_at=body.said_at(),
            answers=answers,
            headers=headers,
            client_tools=body.client_tools(),
            added_system=body.instructions(),
            run_name=body.run_id,
            if_busy=if_busy,
        )


def runtime_info(agents: Iterable[Agent]) -> dict[str, Any]:
    """The answer to CopilotKit's first request to a runtime: the version and the agents."""
    shown = {one.id: {"name": one.name, "description": one.description or ""} for one in agents}
    return {"version": VERSION, "agents": shown, "mode": "sse", "audioFileTranscriptionEnabled": False}


def _stream(*events: dict[str, Any]) -> Response:
    """A complete stream of these events."""
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events)
    return Response(body, headers=HEADERS)


# A conversation as AG-UI's frames: each leg is a run of the stream, and one stream may have several runs.
#
# The cursors of a stream are the numbers of its logs. An entry may become several frames, of which only the last has
# the cursor, so no cursor lies between two frames of one entry.


DELETED = {"message": "The run was deleted.", "code": "run_deleted"}

_APPENDED = (
    *("TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT"),
    *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_RESULT"),
)
"""Events whose content a client appends twice if it gets them twice."""

_encoder = msgspec.json.Encoder()


class LegFrames:
    """Renders one leg for one reader."""

    shared_as = None

    def __init__(self, leg: Leg, fold: LegFold, beginning: Sequence[Event], seen: int) -> None:
        """`beginning` has the events before the leg's log. The reader has the entries up to the number `seen` and does
        not get them again, but before further entries it gets the beginning and the open parts again."""
        self.place = leg.turn, leg.number
        self.fold = fold
        self._beginning, self._seen = beginning, seen
        # A run that ended before it began has no place in the conversation.
        self._has_place = leg.run.turn is not None
        self._goes_on = self._may_have_more = seen > 0
        self._last = 0

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries. The end of a leg does not end the stream."""
        sent = [self._sent(seq, self._taken(seq, entry)) for seq, entry in entries]
        if self.fold.is_contradicted:
            raise StreamBroken
        return b"".join(sent), False

    def began(self) -> bytes:
        """The frames of the leg's beginning."""
        return self._sent(FIRST_SEQ, self._beginning)

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """The frames of the leg's end."""
        events = self.fold.ended(seq, at, leg.run, asked)
        return self._sent(seq, events) if seq > self._seen else b""

    def resolved(self, leg: Leg, seq: Seq) -> bytes:
        """Renders a run without content, which ends the waiting of a client whose run was cancelled while it waited."""
        events = [self.fold.started(), self.fold.cancelled()]
        return self._frames(seq, events) if leg.run.continued_by is None and seq > self._seen else b""

    def lost_ending(self) -> bytes:
        """The end of a leg whose log has no end."""
        events = self.fold.lost_ending()
        before = self._gone_on() if events and self._goes_on else b""
        return before + b"".join(map(_frame, events))

    def _taken(self, seq: Seq, entry: bytes) -> Sequence[Event]:
        if not self._may_have_more or seq <= self._seen:
            return self.fold.take(seq, decode(entry))
        # A connection may break between two frames of one entry. Then the client already has a part of the first entry
        # after its cursor, and would append that part again.
        until_now = self.fold.snapshots(may_be_doubled=True)
        events = self.fold.take(seq, decode(entry))
        self._may_have_more = not events
        return [*until_now, *events] if any(one["type"] in _APPENDED for one in events[:-1]) else events

    def _sent(self, seq: Seq, events: Sequence[Event]) -> bytes:
        before = b""
        if self._goes_on and seq > self._seen:
            before = self._gone_on()
        self._last = seq
        if seq > self._seen:
            return before + self._frames(seq, events)
        # The reader gets this at once, so that it shows the run at work before new events arrive.
        return self._gone_on() if seq == self._seen else b""

    def _gone_on(self) -> bytes:
        self._goes_on = False
        # If the reader's cursor is not in the log, the reader has seen entries that were lost.
        lost = self._last != self._seen
        events = [*self._beginning, *(self.fold.snapshots() if lost else []), *self.fold.opened_again()]
        return b"".join(map(_frame, events))

    def _frames(self, seq: Seq, events: Sequence[Event]) -> bytes:
        frames = list(map(_frame, events))
        if frames and self._has_place:
            frames[-1] = ThreadCursor(*self.place, seq).line + frames[-1]
        return b"".join(frames)


class ThreadFrames:
    """Renders a conversation for one reader, from a cursor on or from the beginning of a leg on."""

    def __init__(self, client: Client, after: ThreadCursor | None = None) -> None:
        """Without a cursor, the first leg begins with the messages before it, unless the client has sent messages."""
        self._client, self._after = client, after or ThreadCursor()
        self._shows_history = after is None and client.sent is None
        self._view: LegFrames | None = None
        self._waits = False
        """The reader may have read that the newest leg waits for a person or the client."""

    @property
    def wants_input(self) -> bool:
        """Whether the client may lack the messages of the next leg's input, because it has sent no messages."""
        return self._client.sent is None

    @property
    def wants_history(self) -> bool:
        """Whether the next leg needs the messages before it, in case a snapshot becomes necessary."""
        return self._client.sent is None

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        """The beginning of the cursor's leg."""
        return after._replace(number=0)

    def of_log(self, leg: Leg) -> LegFrames:
        """The renderer of a leg's log."""
        if self._view is None or self._view.place != (leg.turn, leg.number):
            raise ValueError(f"run {leg.run.id} has not begun for this reader")
        return self._view

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        """RUN_STARTED, and the messages that the client may lack."""
        client = self._client
        given = wire_messages(beginning.given, takes_parts=client.is_current)
        before = client.sent
        if before is None:
            before = wire_messages([*beginning.before, *beginning.given], takes_parts=client.is_current)
        fold = LegFold(leg.run, client, before, joins=self._shows_history)
        if self._shows_history:
            events = [fold.started(), fold.snapshot()]
        else:
            events = [fold.started(given if client.sent is None else ())]
        self._view, self._shows_history, self._waits = LegFrames(leg, fold, events, self._seen(leg)), False, False
        return self._view.began()

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """RUN_FINISHED or RUN_ERROR. It names only calls that still wait, because a client would offer decided calls
        again."""
        self._waits = leg.run.status is RunStatus.AWAITING_APPROVAL or seq <= self._seen(leg)
        return self.of_log(leg).ended(leg, seq, at, asked)

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """Nothing if a run follows, because the client takes that run for the answer."""
        del asked
        return self.of_log(leg).resolved(leg, seq) if self._waits else b""

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """Nothing: clients have no such mark."""
        del cursor, present
        return b""

    def over(self) -> bytes:
        """Nothing after the end of a run, because clients refuse `[DONE]`. A deleted run ends with an error, because
        clients take any other end for success."""
        if self._view is not None:
            return self._view.lost_ending()
        is_sender = self._client.sent is not None
        return _frame({"type": "RUN_ERROR", **DELETED}) if is_sender else b""

    def _seen(self, leg: Leg) -> int:
        return self._after.number if (leg.turn, leg.number) == self._after[:2] else 0


def _frame(event: Event) -> bytes:
    return b"data: %b\n\n" % _encoder.encode(event)
