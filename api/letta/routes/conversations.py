"""Routes of conversations, which are further histories of an agent: messages, streams, cancels, and the context that a
model gets."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Response
from msgspec.structs import replace
from pydantic import BaseModel

from api.access.callers import Caller
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    AgentIdQuery,
    CallerDep,
    CancelServiceDep,
    ClockDep,
    ConversationIdPath,
    IdMakerDep,
    LastEventIdDep,
    MessageAnswersDep,
    MessageStoreDep,
    MessageTypes,
    NewestFirst,
    NewestMessages,
    OfferedModelsDep,
    OptionalAgentIdQuery,
    ProjectDep,
    RunStoreDep,
    ShowsInstructionsDep,
    StreamProjectDep,
    SubmissionHeadersDep,
    ThreadName,
    served,
)
from api.direct_route import LateRoute
from api.event_stream import json_answer
from api.letta.context import SETTINGS, CompactRequest, wire_compaction
from api.letta.conversation_events import ConversationFrames
from api.letta.conversations import (
    AnswerService,
    ConversationCreate,
    ConversationMessagesRequest,
    ConversationStreamRequest,
    ConversationUpdate,
    NamedAgent,
    SendOptions,
    new_conversation,
    run_or_refusal,
    wire_conversation,
)
from api.letta.routes.models import with_served_model
from api.letta.runs import CancelRequestIn
from api.runs.command import AgentThread, AgentThreads
from api.runs.single_runs import CompactionService
from api.runs.thread_projection import Thread, thread_cursor_of
from api.runs.thread_streams import ThreadStreams
from shared.concurrency import beside
from shared.domain.agents import characters_of_memory, render_system
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import UUID4_PATTERN, MessageId, ProjectId, RunId, ThreadId, is_id
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.domain.threads import Conversation, copies_of
from shared.sql.definitions.blocks import BlockStore
from shared.sql.definitions.conversations import ArchiveStatus, ConversationFilter, ConversationOrder, ConversationStore
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page
from shared.sql.runs.listing import RunFilter, RunListing
from shared.sql.runs.run_store import RunStore

AgentThreadsDep = Annotated[AgentThreads, served(AgentThreads)]
AnswerServiceDep = Annotated[AnswerService, served(AnswerService)]
BlockStoreDep = Annotated[BlockStore, served(BlockStore)]
CompactionServiceDep = Annotated[CompactionService, served(CompactionService)]
ConversationStoreDep = Annotated[ConversationStore, served(ConversationStore)]
RunListingDep = Annotated[RunListing, served(RunListing)]
ThreadStreamsDep = Annotated[ThreadStreams, served(ThreadStreams)]

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=LateRoute)


@router.post("")
async def create_conversation(
    agent_id: AgentIdQuery,
    response: Response,
    offered: OfferedModelsDep,
    ids: IdMakerDep,
    clock: ClockDep,
    conversation_store: ConversationStoreDep,
    project_id: ProjectDep,
    body: Annotated[ConversationCreate | None, Body()] = None,
) -> dict[str, Any]:
    """Begins a conversation with an agent."""
    asked = with_served_model(body or ConversationCreate(), offered, response)
    conversation = new_conversation(asked, agent_id, project_id, ids, clock.now())
    created = await conversation_store.create(conversation, system_message_id=ids.message())
    return await _answer(conversation_store, created)


@router.get("")
async def list_conversations(
    conversation_store: ConversationStoreDep,
    project_id: ProjectDep,
    page: NewestFirst,
    agent_id: OptionalAgentIdQuery = None,
    summary_search: str | None = None,
    archive_status: ArchiveStatus = "unarchived",
    order_by: ConversationOrder = "created_at",
) -> list[dict[str, Any]]:
    """The conversations of one agent, or of all agents."""
    wanted = ConversationFilter(agent_id, summary_search, archive_status)
    found = await conversation_store.list(project_id, wanted, page, order_by)
    return [wire_conversation(details) for details in await conversation_store.details(found)]


@router.get("/{conversation_id}")
async def retrieve_conversation(
    conversation_id: ConversationIdPath, conversation_store: ConversationStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One conversation."""
    return await _answer(conversation_store, await conversation_store.get(project_id, conversation_id))


@router.patch("/{conversation_id}")
async def update_conversation(
    conversation_id: ConversationIdPath,
    body: ConversationUpdate,
    response: Response,
    offered: OfferedModelsDep,
    clock: ClockDep,
    conversation_store: ConversationStoreDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Changes a conversation."""
    asked, now = with_served_model(body, offered, response), clock.now()

    def change(conversation: Conversation) -> Conversation:
        return asked.apply(conversation, now)

    return await _answer(conversation_store, await conversation_store.update(project_id, conversation_id, change, now))


@router.delete("/{conversation_id}")
async def delete_conversation(
    conversation_id: ConversationIdPath,
    conversation_store: ConversationStoreDep,
    cancels: CancelServiceDep,
    project_id: ProjectDep,
) -> dict[str, str]:
    """Cancels a conversation's active runs, and deletes the conversation with its runs and messages."""
    found = await conversation_store.get(project_id, conversation_id)
    await cancels.cancel_before_deletion(project_id, found.agent_id, ThreadId(found.id))
    await conversation_store.delete(project_id, conversation_id)
    return {"message": f"Conversation id={conversation_id} successfully deleted"}


async def _answer(conversation_store: ConversationStore, conversation: Conversation) -> dict[str, Any]:
    [details] = await conversation_store.details([conversation])
    return wire_conversation(details)


messages_router = APIRouter(prefix="/v1/conversations/{conversation_id}", tags=["conversations"], route_class=LateRoute)

FAR_ENOUGH = 20
"""The route searches this many newest runs for one that answers messages; the others are compactions."""


@messages_router.post("/messages", response_model=None)
async def send_messages(
    conversation_id: ThreadName,
    request: ConversationMessagesRequest,
    threads: AgentThreadsDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages and streams the answer. While a run is active, a second request is refused, or handled according
    to its `if_busy`.

    A request with the otids of an earlier one gets the stream of the earlier run again.
    """
    thread = await threads.find(project_id, conversation_id, request.agent_id)
    # A client may address an agent's default history as a conversation. This, too, refuses a second run.
    return await answer_service.send(thread, request, SendOptions(headers, if_busy="reject"))


@messages_router.get("/messages")
async def list_messages(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    message_answers: MessageAnswersDep,
    project_id: ProjectDep,
    page: NewestMessages,
    types: MessageTypes,
    agent_id: OptionalAgentIdQuery = None,
) -> list[dict[str, Any]]:
    """The history, newest first unless `order` is `asc`. An agent's default history is listed as in the agent's own
    list: oldest first, and `desc` selects the newest messages that fit."""
    thread = await threads.find(project_id, conversation_id, agent_id)
    of = MessageFilter(project_id, thread_id=thread.id)
    return await message_answers.page(of, page, types, turned=thread.conversation is not None)


@messages_router.post("/stream", response_model=None)
async def resume_stream(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    run_store: RunStoreDep,
    run_listing: RunListingDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    request: ConversationStreamRequest | None = None,
    last_event_id: LastEventIdDep = None,
    status_events: Annotated[bool, Header(alias="X-Holdfast-Status-Events")] = False,
) -> Response:
    """The stream of the conversation's newest run, or of the named run, from any frame on."""
    request = request or ConversationStreamRequest()
    thread = await threads.find(project_id, conversation_id, request.agent_id)
    run = await _run_to_resume(run_store, run_listing, project_id, thread, request)
    return answer_service.resume(run, request, last_event_id, status_events=status_events)


@messages_router.get("/events", response_model=None)
async def stream_conversation(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    thread_streams: ThreadStreamsDep,
    project_id: StreamProjectDep,
    shows_instructions: ShowsInstructionsDep,
    agent_id: OptionalAgentIdQuery = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    follow: bool = True,
    notes: bool = False,
    last_event_id: LastEventIdDep = None,
) -> Response:
    """Streams everything that happens in the conversation, over all its runs: the past after the frame with the id
    `after`, and then new events as they occur. `after=now` omits the past. `follow=false` ends the stream when no run
    is running or queued. `notes=true` omits the frames of the runs: the notes show when each has begun and ended. The
    header `Last-Event-ID` works like `after`, and takes precedence over it."""
    found = await threads.find(project_id, conversation_id, agent_id)
    cursor = thread_cursor_of(after, last_event_id)
    thread = Thread(project_id, found.agent.id, found.id)
    shown = ConversationFrames(only_notes=notes, shows_instructions=shows_instructions)
    return thread_streams.stream(thread, cursor, shown, follow=follow)


@messages_router.post("/cancel")
async def cancel_runs(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    cancels: CancelServiceDep,
    project_id: ProjectDep,
    agent_id: OptionalAgentIdQuery = None,
    request: CancelRequestIn | None = None,
) -> dict[str, str]:
    """Cancels the conversation's runs that are active or wait for approval. Answers with the outcome for each."""
    thread = await threads.find(project_id, conversation_id, agent_id)
    request = request or CancelRequestIn()
    return await cancels.cancel_runs(
        project_id, thread.agent.id, request.cancel(), run_ids=request.run_ids or (), thread_id=thread.id
    )


async def _run_to_resume(
    run_store: RunStore,
    run_listing: RunListing,
    project_id: ProjectId,
    thread: AgentThread,
    request: ConversationStreamRequest,
) -> Run:
    if request.run_id is not None:
        if not is_id(request.run_id, "run"):
            raise InvalidRequest(
                f"Invalid run ID format: {request.run_id}. Expected format: 'run-<uuid4>'", field="run_id"
            )
        run = await run_store.get(project_id, RunId(request.run_id))
        if run.thread_id != thread.id:
            raise NotFound(f"Run {run.id} is not one of this conversation")
        return run
    if request.otid is not None:
        return await run_listing.of_otid(project_id, thread.id, request.otid)
    active = [RunStatus.CREATED, RunStatus.RUNNING, RunStatus.AWAITING_APPROVAL]
    for statuses in (active, None):
        wanted = RunFilter(thread_id=thread.id, statuses=statuses)
        found = await run_listing.page(project_id, wanted, Page(limit=FAR_ENOUGH))
        speaking = [run for run in found if run.answers_messages]
        if speaking:
            return speaking[0]
    raise InvalidRequest("No active runs found for this conversation: there is no stream before its first message.")


contexts_router = APIRouter(prefix="/v1", tags=["conversations"], route_class=LateRoute)

CHARACTERS_OF_A_COPY = 500
"""Rendering this many characters as JSON takes as long as copying one message."""

OptionalMessageIdQuery = Annotated[MessageId | None, Query(pattern=f"^message-{UUID4_PATTERN}$")]


class RecompileRequest(BaseModel):
    """The body of a recompilation; all of it may be omitted."""

    agent_id: NamedAgent = None


@contexts_router.post("/agents/{agent_id}/summarize", response_model=None)
async def compact_agent(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    compacting: CompactionServiceDep,
    caller: CallerDep,
    request: CompactRequest | None = None,
) -> Response:
    """Replaces the agent's messages with a summary. Waits for the active run, if there is one."""
    thread = AgentThread(await editor.get(caller.project_id, agent_id))
    return await _compacted(compacting, thread, request or CompactRequest(), caller, refuse_if_busy=False)


@contexts_router.post("/conversations/{conversation_id}/compact", response_model=None)
async def compact_conversation(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    message_store: MessageStoreDep,
    compacting: CompactionServiceDep,
    caller: CallerDep,
    request: CompactRequest | None = None,
) -> Response:
    """Replaces the conversation's messages with a summary. Refused while one of its runs is active."""
    request = request or CompactRequest()
    thread = await threads.find(caller.project_id, conversation_id, request.agent_id)
    if thread.conversation is not None and await message_store.is_empty(caller.project_id, thread.id):
        raise InvalidRequest("this conversation has no messages to compact: send one first")
    return await _compacted(compacting, thread, request, caller, refuse_if_busy=True)


async def _compacted(
    compacting: CompactionService, thread: AgentThread, request: CompactRequest, caller: Caller, *, refuse_if_busy: bool
) -> Response:
    options = request.settings(thread.agent.extra.get(SETTINGS)).options()
    submitted, ended = await compacting.compact(thread, options, caller.key_id, refuse_if_busy=refuse_if_busy)
    run = run_or_refusal(submitted, ended)
    if isinstance(run, Response):
        return run
    summary = await compacting.summary(run)
    if summary is None or summary.stats is None:
        return await json_answer(wire_compaction("", 1, 1))  # the history had only the instructions
    stats = summary.stats
    return await json_answer(wire_compaction(summary.text, stats.messages_before, stats.messages_after))


@contexts_router.post("/conversations/{conversation_id}/fork")
async def fork_conversation(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    message_store: MessageStoreDep,
    clock: ClockDep,
    ids: IdMakerDep,
    conversation_store: ConversationStoreDep,
    project_id: ProjectDep,
    agent_id: OptionalAgentIdQuery = None,
    message_id: OptionalMessageIdQuery = None,
    hidden: bool = False,
) -> dict[str, Any]:
    """Begins a conversation with copies of the messages in another conversation's context, up to `message_id` if it is
    given."""
    thread = await threads.find(project_id, conversation_id, agent_id)
    history = await message_store.context(project_id, thread.id)
    now = clock.now()
    begun = new_conversation(ConversationCreate(hidden=hidden), thread.agent.id, project_id, ids, now)
    if thread.conversation is not None:
        begun = replace(
            thread.conversation,
            id=begun.id,
            name=None,  # pages find the original by it
            hidden=hidden,
            archived_at=None,
            last_message_at=None,
            created_at=now,
            updated_at=now,
        )
    copy = partial(copies_of, history, ids, message_id)
    copies = await beside(copy, CHARACTERS_OF_A_COPY * len(history))
    await conversation_store.create(begun, system_message_id=ids.message(), copies=copies)
    [details] = await conversation_store.details([begun])
    return wire_conversation(details)


@contexts_router.post("/conversations/{conversation_id}/recompile")
async def recompile_conversation(
    conversation_id: ThreadName,
    threads: AgentThreadsDep,
    conversation_store: ConversationStoreDep,
    block_store: BlockStoreDep,
    project_id: ProjectDep,
    request: RecompileRequest | None = None,
    dry_run: bool = False,
) -> str:
    """The instructions as the model gets them. They become the history's system message, except in a dry run.

    Every model call renders the instructions anew, whatever the system message contains.
    """
    named = None if request is None else request.agent_id
    thread = await threads.find(project_id, conversation_id, named)
    if thread.conversation_id is not None and not dry_run:
        await conversation_store.render_again(project_id, thread.conversation_id)
    blocks = await block_store.for_agent(project_id, thread.agent.id)
    show = partial(render_system, thread.agent, blocks, thread.conversation_id)
    return await beside(show, characters_of_memory(blocks))
