"""Conversations on Letta's wire, and the three forms of answers to senders of messages: a stream, the whole answer, or
the run."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, Field
from starlette.responses import Response

from api.errors import model_error_answer, refused
from api.event_stream import CHARACTERS_OF_A_VALUE, EventStream, json_answer
from api.input_limits import Description, InputLimits, Settings
from api.letta.frames import FrameOptions, FrameStream
from api.letta.message_input import MessagesRequest, decisions_in, parts_in, user_bodies
from api.letta.messages import AwareMoment, parts_of, types_for_strangers, wire_time
from api.letta.model_settings import Handle, ModelSettingsFields
from api.letta.refusals import NO_MESSAGES, STREAM_DEFAULTS, without_stream
from api.letta.runs import StreamRequest, wire_answer, wire_run
from api.runs.command import AgentThread, BusyPolicy, Command, SubmissionHeaders, keys_of
from api.runs.reader import RunWaiter, elsewhere
from api.runs.streaming import StreamService, cursor_of
from api.runs.submission import SubmissionService
from shared.concurrency import Clock, beside
from shared.domain.agents import Agent
from shared.domain.errors import ErrorCode, PendingApproval, Unavailable
from shared.domain.groups import ENABLED
from shared.domain.ids import UUID4_PATTERN, AgentId, IdMaker, ProjectId, RunId, Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run, RunError, RunOptions
from shared.domain.threads import Conversation
from shared.sql.definitions.conversations import ConversationDetails
from shared.sql.history.messages import MessageStore


def _known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    ModelSettingsFields.model_validate(settings)
    return settings


class ConversationFields(BaseModel):
    """A client's fields of a conversation."""

    summary: Description | None = None
    description: Description | None = None
    model: Handle | None = None
    model_settings: Annotated[Settings, AfterValidator(_known_settings)] | None = None
    context_window_limit: int | None = Field(default=None, ge=1)

    def handle(self) -> str | None:
        """The model that the request names."""
        return self.model


class ConversationCreate(ConversationFields):
    """A conversation to create."""

    hidden: bool = False


class ConversationUpdate(ConversationFields):
    """The changes to a conversation. An omitted or null field stays; where null is a value, it ends an override."""

    archived: bool | None = None
    last_message_at: AwareMoment | None = None

    def apply(self, conversation: Conversation, now: datetime) -> Conversation:
        """The conversation after the change."""
        said = {name: getattr(self, name) for name in self.model_fields_set if name != "archived"}
        overrides = ("model", "model_settings", "context_window_limit")
        given = {name: value for name, value in said.items() if value is not None or name in overrides}
        if self.archived is not None:
            given["archived_at"] = (conversation.archived_at or now) if self.archived else None
        return replace(conversation, **given)


def new_conversation(
    body: ConversationCreate, agent_id: AgentId, project_id: ProjectId, ids: IdMaker, now: datetime
) -> Conversation:
    """The conversation that the request describes."""
    return Conversation(
        id=ids.conversation(),
        project_id=project_id,
        agent_id=agent_id,
        summary=body.summary,
        description=body.description,
        model=body.model,
        model_settings=body.model_settings,
        context_window_limit=body.context_window_limit,
        hidden=body.hidden,
        created_at=now,
        updated_at=now,
    )


def wire_conversation(found: ConversationDetails) -> dict[str, Any]:
    """The wire's conversation."""
    conversation = found.conversation
    known = [moment for moment in (conversation.last_message_at, found.last_request_at) if moment is not None]
    return {
        "created_by_id": None,
        "last_updated_by_id": None,
        "created_at": wire_time(conversation.created_at),
        "updated_at": wire_time(conversation.updated_at),
        "id": conversation.id,
        "agent_id": conversation.agent_id,
        "name": conversation.name,
        "summary": conversation.summary,
        "description": conversation.description,
        "in_context_message_ids": found.message_ids,
        "isolated_block_ids": [],
        "model": conversation.model,
        "model_settings": conversation.model_settings,
        "context_window_limit": conversation.context_window_limit,
        "last_message_at": wire_time(max(known, default=None)),
        "archived": conversation.archived_at is not None,
        "archived_at": wire_time(conversation.archived_at),
    }


NamedAgent = Annotated[AgentId | None, Field(pattern=f"^agent-{UUID4_PATTERN}$")]
"""The agent whose default history `default` means."""


class ConversationMessagesRequest(MessagesRequest):
    """Messages for a conversation. The answer is a stream unless the request turns that off."""

    streaming: bool | None = True
    agent_id: NamedAgent = None


class ConversationStreamRequest(StreamRequest):
    """The run whose stream to resume: the named one, the one of a message's otid, or the conversation's newest."""

    agent_id: NamedAgent = None
    run_id: str | None = None
    otid: str | None = None


class SendOptions(NamedTuple):
    """Options of sending messages, beyond the request's own fields."""

    headers: SubmissionHeaders
    if_busy: BusyPolicy | None = None
    """The policy if neither the headers nor the request set one. None: a conversation refuses, an agent's own history
    queues."""
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
    runs_of_turn: Callable[[ProjectId, AgentId, RunId], Awaitable[list[RunId]]]
    """Returns the runs of sleep-time agents that an agent's run has started at its end."""
    input_limits: InputLimits
    clock: Clock

    async def send(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Response:
        """Submits a run. Answers with a stream, or with the whole answer when the run has ended, as the request asks.

        The run goes on when the client disconnects.
        """
        flaw = _flaw(request)
        if flaw is not None:
            return flaw
        run = await self.submissions.submit(self.command(thread, request, sending))
        if request.streaming:
            options = frame_options(request, status_events=run.options.status_events)
            return self.streaming.stream(run, Seq(0), FrameStream(run.id, options))
        ended = run_or_refusal(run, await self.waiter.ended(run))
        return ended if isinstance(ended, Response) else await self._whole_answer(thread.agent, ended)

    async def send_later(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Response:
        """Submits a run, and answers with it."""
        if not request.given_messages():
            return _invalid(NO_MESSAGES, "messages")
        command = self.command(thread, request, sending)
        return await json_answer(wire_run(await self.submissions.submit_or_fail(command, _refused_run)))

    def resume(
        self, run: Run, request: StreamRequest, last_event_id: str | None, *, status_events: bool
    ) -> EventStream:
        """The stream for a request to resume. Raises `InvalidRequest` if `Last-Event-ID` is not a number."""
        wanted = run.options.shown_types
        options = FrameOptions(
            pings=request.include_pings is not False,
            status_events=status_events or request.include_status_events,
            message_types=None if wanted is None else frozenset(wanted),
            times=request.include_event_times,
            compaction_messages=run.options.compaction_messages,
        )
        after = cursor_of(request.starting_after, last_event_id)
        return self.streaming.stream(run, after, FrameStream(run.id, options))

    def command(self, thread: AgentThread, request: MessagesRequest, sending: SendOptions) -> Command:
        """The command for the request. Raises `InvalidRequest`."""
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

    async def _whole_answer(self, agent: Agent, run: Run) -> Response:
        said = await self.messages.list_of_run(run)
        started: list[RunId] = []
        if agent.extra.get(ENABLED):
            with suppress(Unavailable):  # then a worker starts them; the answer does not wait for that
                started = await self.runs_of_turn(run.project_id, agent.id, run.id)
        shown = partial(wire_answer, run, said, started=started)
        return await json_answer(await beside(shown, CHARACTERS_OF_A_VALUE * parts_of(said)))


def run_or_refusal(submitted: Run, ended: Run | None) -> Run | Response:
    """The run after its end, or the answer if there is no result: this process ends before the run (`ended` is None),
    or the run failed."""
    if ended is None:
        return elsewhere(submitted)
    if ended.status is RunStatus.FAILED and ended.error is not None:
        return model_error_answer(ended.error.error_type, ended.error.detail, ended.error.message)
    return ended


def frame_options(request: MessagesRequest, *, status_events: bool) -> FrameOptions:
    """The frames that the sender of this request wants in the stream."""
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
    headers, asked = sending.headers, request.include_return_message_types
    types: list[str] | None = None if asked is None else [*asked]
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
        override_system=request.override_system or None,
        speech_as_text=request.use_assistant_message,
        compaction_messages=request.include_compaction_messages,
        model_options=thread.model_options,
        submitted_by=headers.key_id,
        shown_types=types_for_strangers(types) if headers.of_single_agents else types,
        echoed={
            "use_assistant_message": request.use_assistant_message,
            "assistant_message_tool_name": request.assistant_message_tool_name,
            "assistant_message_tool_kwarg": request.assistant_message_tool_kwarg,
        },
    )


def _refused_run(error: PendingApproval) -> RunError:
    return RunError(ErrorCode.PENDING_APPROVAL, f"CONFLICT: {error.message}", error.message, error.waiting)


def _flaw(request: MessagesRequest) -> Response | None:
    """The refusal of a request whose fields contradict each other."""
    if not request.given_messages():
        return _invalid(NO_MESSAGES, "messages")
    if request.streaming:
        return None
    given: dict[str, Any] = {option: getattr(request, option) for option in STREAM_DEFAULTS}
    wrong = next((name for name, value in given.items() if value != STREAM_DEFAULTS[name]), None)
    return None if wrong is None else _invalid(without_stream(wrong), wrong)


def _invalid(said: str, field: str) -> Response:
    return refused(422, ErrorCode.INVALID_ARGUMENT, said, field=field)
