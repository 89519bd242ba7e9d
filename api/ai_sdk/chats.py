"""Chats of the AI SDK: a page's request becomes a run, and the run's answer becomes the page's stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse, Response

from api.ai_sdk.answer_chunks import FOLD, NEWEST_FOLD, Sdk, Seen, answer_id_of
from api.ai_sdk.answer_stream import AnswerStream
from api.ai_sdk.chat_request import UiChatRequest
from api.ai_sdk.ui_messages import asked_about, never_answered, ui_inputs, ui_messages
from api.errors import Refusal, Refused
from api.pages.decisions import PAGE_ERROR, UI_MESSAGE_STREAM, PageAnswer, PageRefusal
from api.pages.submission import PageService, PageSubmission
from api.pages.threads import PageThread, PageThreads
from api.runs.command import SubmissionHeaders
from api.runs.thread_projection import Thread, ThreadCursor
from api.runs.thread_streams import ThreadStreams
from shared.domain.approvals import Approval
from shared.domain.errors import ErrorCode
from shared.domain.ids import AgentId, ProjectId, ThreadId
from shared.domain.lifecycle import STREAM_ENDED, RunStatus
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
            answers=await self._open(thread, answers) if said else answers,
            headers=headers,
            client_tools=request.tools(),
            if_busy=request.if_busy,
            echoed={FOLD: NEWEST_FOLD},
        )
        try:
            run = (await self.pages.submit(submission)).run
        except PageRefusal as refusal:
            return PlainTextResponse(refusal.message, refusal.status_code, {PAGE_ERROR: refusal.reason})
        return await self._streamed(run, sdk, request=request)

    async def _open(self, thread: PageThread, answers: Sequence[PageAnswer]) -> list[PageAnswer]:
        """The answers to calls that still wait. A page repeats older answers with its user's next message if the run
        that they continued has failed."""
        if thread.id is None or not answers:
            return []
        waiting = await self.approvals.waiting_on_thread(thread.agent.project_id, thread.id)
        names = {name for one in waiting for name in (one.id, one.tool_call_id)}
        return [answer for answer in answers if answer.call in names]

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
