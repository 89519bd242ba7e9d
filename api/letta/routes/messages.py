"""Messages of agents: sending and listing them, resetting the context, cancelling runs. Also the messages of all agents
of a project: listing them, reading one by its id, and searching for words."""

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse

from api.agent_answers import AgentAnswers, types_for
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    CallerDep,
    CancelServiceDep,
    ClockDep,
    IdMakerDep,
    InputLimitsDep,
    MessageAnswersDep,
    MessageStoreDep,
    MessageTypes,
    NewestMessages,
    OfferedModelsDep,
    ProjectDep,
    SubmissionHeadersDep,
    served,
)
from api.direct_route import DirectRoute, LateRoute
from api.letta.conversations import AnswerService, SendOptions, run_or_refusal
from api.letta.message_input import CaptureRequest, MessagesRequest, captured_messages
from api.letta.messages import MessageSearch, wire_found, wire_messages
from api.letta.runs import CancelRequestIn, GenerateRequest, question_of, wire_generated
from api.runs.command import DEFAULT, AgentThread, AgentThreads, keys_of
from api.runs.single_runs import GenerationService, text_of_answer
from shared.domain.errors import NotFound, Unavailable
from shared.domain.ids import UUID4_PATTERN, MessageId, RunId, ThreadId
from shared.domain.runs import GENERATE
from shared.runs.started_runs import SleeptimeRuns
from shared.sql.definitions.due_turns import GroupTurnStore
from shared.sql.history.message_lists import MessageFilter, MessageLists

AgentAnswersDep = Annotated[AgentAnswers, served(AgentAnswers)]
AgentThreadsDep = Annotated[AgentThreads, served(AgentThreads)]
AnswerServiceDep = Annotated[AnswerService, served(AnswerService)]
GenerationServiceDep = Annotated[GenerationService, served(GenerationService)]
GroupTurnStoreDep = Annotated[GroupTurnStore, served(GroupTurnStore)]
MessageListsDep = Annotated[MessageLists, served(MessageLists)]
SleeptimeRunsDep = Annotated[SleeptimeRuns, served(SleeptimeRuns)]

router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["messages"], route_class=DirectRoute)
project_router = APIRouter(prefix="/v1/messages", tags=["messages"], route_class=LateRoute)

MessageIdPath = Annotated[MessageId, Path(pattern=f"^message-{UUID4_PATTERN}$")]


@router.post("/messages", response_model=None)
async def send_messages(
    agent_id: AgentIdPath,
    request: MessagesRequest,
    editor: AgentEditorDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages. Answers when the run has ended, or with a stream if `streaming` is set. With `background` the
    client may disconnect, and resume the stream later."""
    thread = AgentThread(await editor.without_links(project_id, agent_id))
    return await answer_service.send(thread, request, SendOptions(headers))


@router.post("/messages/stream", response_model=None)
async def stream_messages(
    agent_id: AgentIdPath,
    request: MessagesRequest,
    editor: AgentEditorDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages and streams the answer."""
    streamed = request.model_copy(update={"streaming": True})
    return await send_messages(agent_id, streamed, editor, answer_service, project_id, headers)


@router.post("/messages/async", response_model=None)
async def send_messages_async(
    agent_id: AgentIdPath,
    request: MessagesRequest,
    editor: AgentEditorDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages and answers at once with the run. The client polls it, streams it, or gets a callback."""
    thread = AgentThread(await editor.without_links(project_id, agent_id))
    sending = SendOptions(headers, run_type="send_message_async", background=True)
    return await answer_service.send_later(thread, request, sending)


@router.post("/messages/capture")
async def capture_messages(
    agent_id: AgentIdPath,
    request: CaptureRequest,
    input_limits: InputLimitsDep,
    ids: IdMakerDep,
    clock: ClockDep,
    group_turns: GroupTurnStoreDep,
    sleeptime: SleeptimeRunsDep,
    caller: CallerDep,
) -> dict[str, Any]:
    """Stores a turn that a program had with a model without Holdfast, as the newest of the agent's default history. It
    makes no run of the agent, and the agent's next run sees it. The answer names the runs of sleep-time agents that the
    turn starts."""
    limits = input_limits
    limits.refuse_long_messages([message.texts() for message in request.users_messages()], "request_messages")
    limits.refuse_long_messages([request.answer()], "response_dict.content")
    now, project_id = clock.now(), caller.project_id
    captured = captured_messages(request, ids, now)
    await group_turns.capture(project_id, agent_id, captured, submitted_by=caller.key_id, now=now)
    started: list[RunId] = []
    if captured:
        with suppress(Unavailable):  # the turn is stored, so a worker starts the runs later
            started = await sleeptime.of_turn(project_id, agent_id, captured[-1].id)
    return {"success": True, "messages_created": len(captured), "run_ids": started}


@router.post("/generate", response_model=None)
async def generate(
    agent_id: AgentIdPath,
    request: GenerateRequest,
    editor: AgentEditorDep,
    clock: ClockDep,
    offered: OfferedModelsDep,
    generation: GenerationServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Asks the agent's model, or another model, a question without the agent's instructions, memory, tools and history.
    Answers when the model has answered. No history stores the question or the answer. The run goes on when the client
    disconnects."""
    agent = await editor.without_links(project_id, agent_id)
    keys = keys_of(headers, GENERATE, clock.now(), body=request.model_dump_json)
    question = question_of(request, offered)
    submitted, ended, text = await generation.ask(agent, question, headers, keys)
    run = run_or_refusal(submitted, ended)
    if isinstance(run, Response):
        return run
    _, _, model = (run.options.override_model or agent.model).partition("/")
    return JSONResponse(wire_generated(run, text_of_answer(run, text), model))


@router.get("/messages")
async def list_messages(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    message_answers: MessageAnswersDep,
    threads: AgentThreadsDep,
    project_id: ProjectDep,
    page: NewestMessages,
    types: MessageTypes,
    conversation_id: str | None = None,
) -> list[dict[str, Any]]:
    """The agent's messages, oldest first: of all its histories, or of one.

    `desc` (the default) selects the newest messages that fit.
    """
    if conversation_id is None:
        await editor.get(project_id, agent_id)
        return await message_answers.page(MessageFilter(project_id, agent_id=agent_id), page, types)
    thread = await threads.find(project_id, conversation_id, agent_id)
    if thread.agent.id != agent_id:
        raise NotFound(f"Conversation with ID {conversation_id} not found for agent {agent_id}")
    return await message_answers.page(MessageFilter(project_id, thread_id=thread.id), page, types)


@router.post("/messages/cancel")
async def cancel_messages(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    cancels: CancelServiceDep,
    project_id: ProjectDep,
    request: CancelRequestIn | None = None,
) -> dict[str, str]:
    """Cancels the named runs of the agent, or all its runs that are active or wait for approval. Answers with the
    outcome for each."""
    await editor.get(project_id, agent_id)
    request = request or CancelRequestIn()
    return await cancels.cancel_runs(project_id, agent_id, request.cancel(), run_ids=request.run_ids or ())


@router.patch("/reset-messages")
async def reset_messages(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    message_store: MessageStoreDep,
    agent_answers: AgentAnswersDep,
    cancels: CancelServiceDep,
    caller: CallerDep,
) -> dict[str, Any]:
    """Empties the agent's context, except for its system message. First cancels its runs that wait for approval."""
    agent = await editor.get(caller.project_id, agent_id)
    await cancels.cancel_before_reset(caller.project_id, agent.id)
    await message_store.reset(caller.project_id, ThreadId(agent.id))
    return await agent_answers.one(agent, caller=caller)


@project_router.get("")
async def list_messages_of_project(
    message_answers: MessageAnswersDep,
    project_id: ProjectDep,
    page: NewestMessages,
    types: MessageTypes,
    conversation_id: str | None = None,
) -> list[dict[str, Any]]:
    """The messages of all histories, of one conversation, or of all default histories; oldest first.

    `desc` (the default) selects the newest messages that fit.
    """
    thread_id = ThreadId(conversation_id) if conversation_id and conversation_id != DEFAULT else None
    of = MessageFilter(project_id, thread_id=thread_id, is_default=conversation_id == DEFAULT)
    return await message_answers.page(of, page, types)


@project_router.post("/search")
async def search_messages(
    request: MessageSearch, message_lists: MessageListsDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """Messages of users and agents that contain all these words, newest first."""
    found = await message_lists.search(
        project_id,
        request.query.split(),
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        limit=request.limit,
        start=request.start_date,
        end=request.end_date,
    )
    return wire_found(found)


@project_router.get("/{message_id}")
async def retrieve_message(
    message_id: MessageIdPath, message_store: MessageStoreDep, caller: CallerDep
) -> list[dict[str, Any]]:
    """The parts of one message, each of which is a message on the wire."""
    found = wire_messages(await message_store.find(caller.project_id, [message_id]), types_for(caller, None))
    # The calls and the approval requests of one stored answer may have different ids.
    parts = [part for part in found if part["id"] == message_id]
    if not parts:
        raise NotFound(f"Message with id {message_id} not found.")
    return parts
