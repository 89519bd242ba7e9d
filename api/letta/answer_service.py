"""How senders of messages are answered on Letta's wire: with a stream, with the whole answer, or with the run."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from api.errors import model_error_answer, refused
from api.event_stream import EventStream
from api.input_limits import InputLimits
from api.letta.frames import FrameOptions, FrameStream
from api.letta.message_input import MessagesRequest, decisions_in, parts_in, user_bodies
from api.letta.messages import parts_of
from api.letta.refusals import NO_MESSAGES, STREAM_DEFAULTS, without_stream
from api.letta.run_requests import StreamRequest
from api.letta.runs import wire_answer, wire_run
from api.long_answers import CHARACTERS_OF_A_VALUE, json_answer
from api.runs.command import BusyPolicy, Command, SubmissionHeaders, keys_of
from api.runs.reader import RunWaiter, elsewhere
from api.runs.streaming import StreamService, cursor_of
from api.runs.submission import SubmissionService
from api.runs.threads import AgentThread
from shared.concurrency import Clock, beside
from shared.domain.errors import ErrorCode, PendingApproval
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run, RunError, RunOptions
from shared.sql.history.messages import MessageStore


class SendOptions(NamedTuple):
    """How messages are sent, beside what their request says."""

    headers: SubmissionHeaders
    if_busy: BusyPolicy | None = None
    """Where neither the headers nor the request say it. None: a conversation refuses, an agent's own history queues."""
    run_type: str = "send_message"
    background: bool | None = None
    """None: as the request says."""


@dataclass(frozen=True, kw_only=True)
class AnswerService:
    """Submits messages and answers their senders."""

    submissions: SubmissionService
    streaming: StreamService
    waiter: RunWaiter
    messages: MessageStore
    input_limits: InputLimits
    clock: Clock

    async def send(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Response:
        """Submits, and answers as the request asks: a stream, or the whole answer when the run has ended.

        The run goes on when the client leaves.
        """
        flaw = _flaw(request)
        if flaw is not None:
            return flaw
        run = await self.submissions.submit(self.command(thread, request, sending))
        if request.streaming:
            options = frame_options(request, status_events=run.options.status_events)
            return self.streaming.stream(run, Seq(0), FrameStream(run.id, options))
        ended = run_or_refusal(run, await self.waiter.ended(run))
        return ended if isinstance(ended, Response) else await self._whole_answer(ended)

    async def send_later(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Response:
        """Submits and answers with the run."""
        if not request.given_messages():
            return _invalid(NO_MESSAGES, "messages")
        command = self.command(thread, request, sending)
        return await json_answer(wire_run(await self.submissions.submit_or_fail(command, _refused_run)))

    def resume(
        self, run: Run, request: StreamRequest, last_event_id: str | None, *, status_events: bool
    ) -> EventStream:
        """The response to a request to resume. Raises `InvalidRequest` when `Last-Event-ID` is no number."""
        wanted = run.options.shown_types
        options = FrameOptions(
            pings=request.include_pings,
            status_events=status_events or request.include_status_events,
            message_types=None if wanted is None else frozenset(wanted),
            times=request.include_event_times,
            compaction_messages=run.options.compaction_messages,
        )
        after = cursor_of(request.starting_after, last_event_id)
        return self.streaming.stream(run, after, FrameStream(run.id, options))

    def command(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Command:
        """What the request wants. Raises `InvalidRequest`."""
        given, headers = request.given_messages(), sending.headers
        self.input_limits.refuse_long_messages([message.texts() for message in given])
        background = request.background if sending.background is None else sending.background
        return Command(
            agent=thread.agent,
            conversation_id=thread.conversation_id,
            messages=user_bodies(given),
            decisions=decisions_in(given),
            options=_run_options(thread, request, sending, background=background),
            if_busy=headers.if_busy
            or request.if_busy
            or sending.if_busy
            or ("reject" if thread.conversation_id else "enqueue"),
            keys=keys_of(
                headers,
                f"{sending.run_type} {background}",
                self.clock.now(),
                body=request.model_dump_json,
                parts=parts_in(given),
            ),
            priority=headers.priority,
            callback_url=request.callback_url,
        )

    async def _whole_answer(self, run: Run) -> Response:
        said = await self.messages.list_of_run(run)
        return await json_answer(await beside(partial(wire_answer, run, said), CHARACTERS_OF_A_VALUE * parts_of(said)))


def run_or_refusal(submitted: Run, ended: Run | None) -> Run | Response:
    """The run as it ended, or the answer where it has no result: this process ends before the run (`ended` is None), or
    the run has failed."""
    if ended is None:
        return elsewhere(submitted)
    if ended.status is RunStatus.FAILED and ended.error is not None:
        return model_error_answer(ended.error.error_type, ended.error.detail, ended.error.message)
    return ended


def frame_options(request: MessagesRequest, *, status_events: bool) -> FrameOptions:
    """What the sender of this request wants to see of the stream."""
    wanted = request.include_return_message_types
    return FrameOptions(
        pings=request.include_pings,
        status_events=status_events,
        message_types=None if wanted is None else frozenset(wanted),
        compaction_messages=request.include_compaction_messages,
    )


def _run_options(
    thread: AgentThread, request: MessagesRequest, sending: SendOptions, *, background: bool
) -> RunOptions:
    headers = sending.headers
    return RunOptions(
        streamed=bool(request.streaming),
        stream_tokens=request.stream_tokens,
        status_events=headers.status_events or request.include_status_events,
        background=background,
        max_steps=request.max_steps,
        run_type=sending.run_type,
        client_tools=request.tools_of_client(),
        client_skills=request.skills_of_client(),
        override_model=request.override_model or thread.model,
        override_system=request.override_system,
        speech_as_text=request.use_assistant_message,
        compaction_messages=request.include_compaction_messages,
        model_options=thread.model_options,
        submitted_by=headers.key_id,
        shown_types=request.include_return_message_types,
        echoed={
            "use_assistant_message": request.use_assistant_message,
            "assistant_message_tool_name": request.assistant_message_tool_name,
            "assistant_message_tool_kwarg": request.assistant_message_tool_kwarg,
        },
    )


def _refused_run(error: PendingApproval) -> RunError:
    return RunError(ErrorCode.PENDING_APPROVAL, f"CONFLICT: {error.message}", error.message, error.waiting)


def _flaw(request: MessagesRequest) -> Response | None:
    """What is wrong with the request as a whole."""
    if not request.given_messages():
        return _invalid(NO_MESSAGES, "messages")
    if request.streaming:
        return None
    given: dict[str, Any] = {option: getattr(request, option) for option in STREAM_DEFAULTS}
    wrong = next((name for name, value in given.items() if value != STREAM_DEFAULTS[name]), None)
    return None if wrong is None else _invalid(without_stream(wrong), wrong)


def _invalid(said: str, field: str) -> Response:
    return refused(422, ErrorCode.INVALID_ARGUMENT, said, field=field)
