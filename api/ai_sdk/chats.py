"""Chats of the AI SDK: a page's request becomes a run, and the run's answer becomes the page's stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, Response

from api.ai_sdk.answer_chunks import FOLD, FOLD_VERSION, AnswerChunks, Chunk, Sdk, Seen, answer_id_of
from api.ai_sdk.chat_request import UiChatRequest
from api.ai_sdk.ui_messages import asked_about, never_answered, ui_inputs, ui_messages
from api.errors import Refusal, Refused
from api.event_stream import StreamBroken
from api.pages.decisions import PAGE_ERROR, UI_MESSAGE_STREAM, PageRefusal
from api.pages.submission import PageService, PageSubmission
from api.pages.threads import PageThread, PageThreads
from api.runs.command import SubmissionHeaders
from api.runs.thread_projection import LegInput, Present, Thread, ThreadCursor
from api.runs.thread_streams import ThreadStreams
from shared.domain.approvals import Approval
from shared.domain.errors import ErrorCode
from shared.domain.events import FIRST_SEQ, Ended, RunCreated, decode
from shared.domain.ids import AgentId, ProjectId, Seq, ThreadId
from shared.domain.lifecycle import STREAM_ENDED, RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import Message
from shared.domain.runs import Run
from shared.domain.threads import Leg
from shared.sql.history.message_lists import MessageFilter, MessageLists
from shared.sql.runs.approvals import ApprovalStore
from shared.sql.runs.listing import RunListing
from shared.sql.runs.turns import TurnStore

DIALECT = "ai_sdk"

MOST_MESSAGES = 1000
"""The most stored messages of a chat that are listed: the newest ones."""

NO_REGENERATION = (
    "This server cannot answer a message again: the history has the first answer. Send the message once more as a new "
    "one."
)


@dataclass(frozen=True, kw_only=True)
class UiChats:
    """Answers the requests of `useChat`."""

    threads: PageThreads
    pages: PageService
    streams: ThreadStreams
    turns: TurnStore
    listing: RunListing
    approvals: ApprovalStore
    history: MessageLists

    async def answer(
        self,
        project_id: ProjectId,
        agent_id: AgentId,
        request: UiChatRequest,
        headers: SubmissionHeaders,
        *,
        sdk: Sdk,
        only: ThreadId | None,
    ) -> Response:
        """Submits the new messages or decisions of a chat, and streams the answer. Raises `Refused` for a request that
        this server cannot fulfil, and the errors of `PageService.submit`."""
        if request.trigger == "regenerate-message":
            raise Refused(501, ErrorCode.NOT_IMPLEMENTED, NO_REGENERATION, field="trigger")
        said, answers = request.said(), request.answers()
        thread = await self.threads.find(project_id, agent_id, request.id, only=only)
        submission = PageSubmission(
            thread=thread,
            dialect=DIALECT,
            said=said,
            said_at=request.said_at(),
            answers=await self.pages.open_among(thread, answers) if said else answers,
            headers=headers,
            client_tools=request.tools(),
            if_busy=request.if_busy,
            echoed={FOLD: FOLD_VERSION},
        )
        try:
            run = (await self.pages.submit(submission)).run
        except PageRefusal as refusal:
            return PlainTextResponse(refusal.message, refusal.status_code, {PAGE_ERROR: refusal.reason})
        return await self._streamed(run, sdk, request=request)

    async def resumed(self, thread: PageThread, *, sdk: Sdk, after: ThreadCursor | None) -> Response:
        """Streams the answer at work from its beginning, or after a cursor the rest of the turn in which it lies.
        Answers 204 if there is nothing to stream."""
        if thread.streamed is None:
            return Response(status_code=204)
        if after is not None:
            return await self._rest(thread.streamed, after, sdk)
        active = await self._active(thread.streamed)
        # The running run is before the queued runs, which are in their order.
        at_work = sorted(active, key=lambda run: run.status is not RunStatus.RUNNING)
        return await self._streamed(at_work[0], sdk) if at_work else Response(status_code=204)

    async def shown(self, thread: PageThread, *, sdk: Sdk) -> dict[str, Any]:
        """The chat in its page's form: its UI messages without the answer at work, and whether an answer is at work."""
        if thread.streamed is None:
            return {"id": thread.name, "messages": [], "is_running": False}
        # The runs are read first: the messages show a run that ends in between.
        active = await self._active(thread.streamed)
        stored = await self._stored(thread.streamed)
        asked = await self._asked_about(thread.streamed, stored)
        at_work = {run.turn for run in active if run.turn is not None}
        failed = await self._failed(thread.streamed, stored)
        messages = ui_messages(stored, asked, sdk, thread.conversation_id, at_work, failed)
        newest = max(failed, default=0)
        if newest > (stored[-1].turn if stored else 0):
            given = await self.turns.input_of(failed[newest])
            messages += never_answered(given, failed[newest], sdk, thread.conversation_id)
        known = {message["id"] for message in messages}
        for run in active:
            given = await self.turns.input_of(run) if run.turn is None else []
            # A run may have left the queue since.
            messages += [one for one in ui_inputs(given) if one["id"] not in known]
        return {"id": thread.name, "messages": messages, "is_running": bool(active)}

    async def _active(self, thread: Thread) -> list[Run]:
        """The thread's runs that are active or queued, oldest first, without those that wait for answers."""
        active = await self.listing.active_of_agent(thread.project_id, thread.agent_id, thread.id)
        return [run for run in active if run.answers_messages and run.status is not RunStatus.AWAITING_APPROVAL]

    async def _stored(self, thread: Thread) -> Sequence[Message]:
        of_thread = MessageFilter(thread.project_id, thread_id=thread.id)
        return await self.history.newest_turns(of_thread, limit=MOST_MESSAGES)

    async def _failed(self, thread: Thread, stored: Sequence[Message]) -> dict[int, Run]:
        """The runs that have failed, by turn."""
        begins = stored[0].turn if stored else 0
        found = await self.turns.failed_from(thread.project_id, thread.id, begins)
        return {run.turn: run for run in found if run.turn is not None and run.answers_messages}

    async def _asked_about(self, thread: Thread, stored: Sequence[Message]) -> list[Approval]:
        calls = asked_about(stored)
        asked = await self.approvals.of_calls(thread.project_id, calls) if calls else []
        return [one for one in asked if one.thread_id == thread.id]

    async def _streamed(self, run: Run, sdk: Sdk, *, request: UiChatRequest | None = None) -> Response:
        """The stream of the answer to which a run belongs. If the page's request has the answer up to this run, the
        stream has only the rest."""
        thread = Thread(run.project_id, run.agent_id, run.thread_id)
        if run.turn is None:
            return _as_chat(self.streams.stream_leg(thread, run, AnswerStream(run, sdk=sdk)))
        legs = await self.turns.first_from(thread.project_id, thread.id, run.turn)
        number = next((leg.number for leg in legs if leg.run.id == run.id), run.options.leg)
        first = await self._first_of_answer(legs, number) or Leg(run.turn, number, run)
        seen = None if request is None else request.seen(answer_id_of(first.run.id))
        return self._turn(thread, first, sdk, leg=first.number if seen is None else number, seen=seen)

    async def _rest(self, thread: Thread, after: ThreadCursor, sdk: Sdk) -> Response:
        legs = await self.turns.first_from(thread.project_id, thread.id, after.turn)
        is_there = bool(legs) and legs[0].turn == after.turn
        first = await self._first_of_answer(legs, after.leg) if is_there else None
        if first is None:
            return Response(status_code=204)
        last = legs[-1]
        if last.run.status in STREAM_ENDED and after >= (last.turn, last.number, last.run.last_seq):
            return Response(status_code=204)
        return self._turn(thread, first, sdk, leg=first.number, after=after)

    async def _first_of_answer(self, legs: Sequence[Leg], number: int) -> Leg | None:
        """The leg that begins the answer to which this leg belongs. A continuation begins another message only if it
        came with new messages."""
        for leg in reversed([leg for leg in legs if leg.number <= number]):
            if leg.run.continues is None or leg is legs[0] or await self.turns.input_of(leg.run):
                return leg
        return None

    def _turn(
        self,
        thread: Thread,
        first: Leg,
        sdk: Sdk,
        *,
        leg: int,
        seen: Seen | None = None,
        after: ThreadCursor | None = None,
    ) -> Response:
        view = AnswerStream(first.run, sdk=sdk, leg=leg, seen=seen, after=after)
        begins = ThreadCursor(first.turn, leg)
        return _as_chat(self.streams.stream_turn(thread, first.turn, after or begins, view))


def _as_chat(response: Response) -> Response:
    response.headers[UI_MESSAGE_STREAM] = "v1"
    return response


def ai_sdk_error(refusal: Refusal) -> tuple[int, str]:
    """The status and the body of a refusal: one sentence, because pages show the body unchanged."""
    return refusal.status, refusal.message


# An answer as a reader's stream: the frames of its chunks, and the place of each in the thread.


DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class AnswerStream:
    """One reader's view of an answer, from the run that begins it to the last run that continues it. It keeps the
    reader's state, so it sees the answer from its beginning and is silent up to the reader's cursor."""

    wants_input = wants_history = False

    def __init__(
        self, first: Run, *, sdk: Sdk, leg: int = 0, after: ThreadCursor | None = None, seen: Seen | None = None
    ) -> None:
        """`first` is the run that begins the answer. `leg` is the place, in its turn, of the first run to show: that
        run, or, if the page has the parts in `seen`, the run that continues them. Raises `ValueError` for a run of a
        newer release."""
        self._chunks = chunks_of(first, sdk, seen)
        self._first_leg = leg
        self._after = after or ThreadCursor()
        self._views: dict[tuple[int, int], _LegView] = {}

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        """The place before the first run to show."""
        return ThreadCursor(after.turn, self._first_leg, 0)

    def of_log(self, leg: Leg) -> "_LegView":
        """The view of one run's log."""
        return self._views.setdefault((leg.turn, leg.number), _LegView(self, leg))

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        """`start`, or the new metadata of a continued message."""
        del beginning
        chunks = [*self._chunks.begin(leg.run), *self._chunks.take(FIRST_SEQ, RunCreated(0))]
        return self.frames(chunks, ThreadCursor(leg.turn, leg.number, FIRST_SEQ))

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """The end of the run's parts, and the approvals for which the run asks."""
        chunks = [*self._chunks.take(seq, Ended(at)), *self._chunks.asked(asked)]
        return self.frames(chunks, ThreadCursor(leg.turn, leg.number, seq))

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """Nothing: the run that follows the decisions shows them."""
        del leg, seq, asked
        return b""

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """Nothing: the protocol has no such mark."""
        del cursor, present
        return b""

    def over(self) -> bytes:
        """The end of the answer, and the mark of the stream's end. They have no cursors, because they depend on whether
        a run follows."""
        return b"".join(map(_frame, self._chunks.finish())) + DONE

    def of(self, leg: Leg, entries: Entries) -> bytes:
        """The frames of some entries of a run's log. Raises `StreamBroken`."""
        shown: list[bytes] = []
        for seq, entry in entries:
            chunks = self._chunks.take(seq, decode(entry))
            shown.append(self.frames(chunks, ThreadCursor(leg.turn, leg.number, seq)))
        if self._chunks.is_contradicted:
            raise StreamBroken
        return b"".join(shown)

    def frames(self, chunks: Sequence[Chunk], place: ThreadCursor) -> bytes:
        """The frames of one entry. Only the last frame has the entry's place as its id, so no cursor lies between them.
        Empty for a place that the reader has seen."""
        if not chunks or place <= self._after:
            return b""
        *others, last = map(_frame, chunks)
        # A run that ended before it began has no place in its thread.
        marked = place.line + last if place.turn else last
        return b"".join(others) + marked if others else marked


class _LegView:
    """The view of one run's log."""

    shared_as = None

    def __init__(self, stream: AnswerStream, leg: Leg) -> None:
        self._stream, self._leg = stream, leg

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries. The end of a run does not end the stream."""
        return self._stream.of(self._leg, entries), False


def chunks_of(first: Run, sdk: Sdk, seen: Seen | None = None) -> AnswerChunks:
    """The fold of the answer that begins with this run, in the run's version. Raises `ValueError` for a newer release's
    version."""
    version = first.options.echoed.get(FOLD, FOLD_VERSION)
    if version != FOLD_VERSION:
        raise ValueError(f"run {first.id} was submitted under version {version} of the fold, which this release lacks")
    return AnswerChunks(answer_id_of(first.id), sdk, seen)


def _frame(chunk: Chunk) -> bytes:
    return b"data: %b\n\n" % _encoder.encode(chunk)
