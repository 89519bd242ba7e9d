"""The context of a history: compact it, copy it into a new conversation, show the instructions."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict

from api.access.callers import Caller
from api.dependencies import AgentIdPath, CallerDep, OptionalAgentIdQuery, ProjectDep, ServicesDep, ThreadName
from api.direct_route import LateRoute
from api.event_stream import json_answer
from api.letta.context import SETTINGS, CompactRequest, wire_compaction
from api.letta.conversations import ConversationCreate, NamedAgent, new_conversation, run_or_refusal, wire_conversation
from api.runs.command import AgentThread
from api.services import Services
from shared.concurrency import beside
from shared.domain.agents import characters_of_memory, render_system
from shared.domain.conversations import copies_of
from shared.domain.errors import InvalidRequest
from shared.domain.ids import UUID4_PATTERN, MessageId

router = APIRouter(prefix="/v1", tags=["conversations"], route_class=LateRoute)

CHARACTERS_OF_A_COPY = 500
"""As many characters become JSON in the time that a message is copied."""

OptionalMessageIdQuery = Annotated[MessageId | None, Query(pattern=f"^message-{UUID4_PATTERN}$")]


class RecompileRequest(BaseModel):
    """The body of a recompilation; all of it may be left out."""

    model_config = ConfigDict(extra="ignore")

    agent_id: NamedAgent = None


@router.post("/agents/{agent_id}/summarize", response_model=None)
async def compact_agent(
    agent_id: AgentIdPath, services: ServicesDep, caller: CallerDep, request: CompactRequest | None = None
) -> Response:
    """Replaces the agent's messages by a summary. Waits for the active run, if there is one."""
    thread = AgentThread(await services.agents.get(caller.project_id, agent_id))
    return await _compacted(services, thread, request or CompactRequest(), caller, refuse_if_busy=False)


@router.post("/conversations/{conversation_id}/compact", response_model=None)
async def compact_conversation(
    conversation_id: ThreadName, services: ServicesDep, caller: CallerDep, request: CompactRequest | None = None
) -> Response:
    """Replaces the conversation's messages by a summary. Refused while one of its runs is active."""
    request = request or CompactRequest()
    thread = await services.threads.find(caller.project_id, conversation_id, request.agent_id)
    if thread.conversation is not None and await services.messages.is_empty(caller.project_id, thread.id):
        raise InvalidRequest("this conversation has no messages to compact: send one first")
    return await _compacted(services, thread, request, caller, refuse_if_busy=True)


async def _compacted(
    services: Services, thread: AgentThread, request: CompactRequest, caller: Caller, *, refuse_if_busy: bool
) -> Response:
    options = request.settings(thread.agent.extra.get(SETTINGS)).options()
    submitted, ended = await services.compacting.compact(thread, options, caller.key_id, refuse_if_busy=refuse_if_busy)
    run = run_or_refusal(submitted, ended)
    if isinstance(run, Response):
        return run
    summary = await services.compacting.summary(run)
    if summary is None or summary.stats is None:
        return await json_answer(wire_compaction("", 1, 1))  # the history had nothing but the instructions
    stats = summary.stats
    return await json_answer(wire_compaction(summary.text, stats.messages_before, stats.messages_after))


@router.post("/conversations/{conversation_id}/fork")
async def fork_conversation(
    conversation_id: ThreadName,
    services: ServicesDep,
    project_id: ProjectDep,
    agent_id: OptionalAgentIdQuery = None,
    message_id: OptionalMessageIdQuery = None,
    hidden: bool = False,
) -> dict[str, Any]:
    """Begins a conversation with copies of the messages in another one's context; up to `message_id`, if that is
    given."""
    thread = await services.threads.find(project_id, conversation_id, agent_id)
    history = await services.messages.context(project_id, thread.id)
    now = services.clock.now()
    begun = new_conversation(ConversationCreate(hidden=hidden), thread.agent.id, project_id, services.ids, now)
    if thread.conversation is not None:
        begun = replace(
            thread.conversation,
            id=begun.id,
            hidden=hidden,
            archived_at=None,
            last_message_at=None,
            created_at=now,
            updated_at=now,
        )
    copy = partial(copies_of, history, services.ids, message_id)
    copies = await beside(copy, CHARACTERS_OF_A_COPY * len(history))
    await services.conversations.create(begun, system_message_id=services.ids.message(), copies=copies)
    [details] = await services.conversations.details([begun])
    return wire_conversation(details)


@router.post("/conversations/{conversation_id}/recompile")
async def recompile_conversation(
    conversation_id: ThreadName,
    services: ServicesDep,
    project_id: ProjectDep,
    request: RecompileRequest | None = None,
    dry_run: bool = False,
) -> str:
    """The instructions as the model gets them. They become the history's system message, unless it is a dry run.

    Every call gives them to the model anew, whatever the system message says.
    """
    named = None if request is None else request.agent_id
    thread = await services.threads.find(project_id, conversation_id, named)
    if thread.conversation_id is not None and not dry_run:
        await services.conversations.render_again(project_id, thread.conversation_id)
    blocks = await services.blocks.for_agent(project_id, thread.agent.id)
    show = partial(render_system, thread.agent, blocks, thread.conversation_id)
    return await beside(show, characters_of_memory(blocks))
