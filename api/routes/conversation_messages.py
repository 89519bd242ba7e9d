"""Messages of conversations: send and list them, resume their streams, cancel their runs."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from api.agent_answers import message_answers
from api.dependencies import (
    HundredNewestFirst,
    LastEventIdDep,
    MessageTypes,
    OptionalAgentIdQuery,
    ProjectDep,
    ServicesDep,
    SubmissionHeadersDep,
    ThreadName,
)
from api.direct_route import LateRoute
from api.letta.conversations import ConversationMessagesRequest, ConversationStreamRequest, SendOptions
from api.letta.runs import CancelRequestIn
from api.runs.command import AgentThread
from api.services import Services
from shared.domain.errors import InvalidRequest, NotFound
from shared.domain.ids import ProjectId, RunId, is_id
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run
from shared.sql.history.message_lists import MessageFilter
from shared.sql.paging import Page
from shared.sql.runs.listing import RunFilter

router = APIRouter(prefix="/v1/conversations/{conversation_id}", tags=["conversations"], route_class=LateRoute)

FAR_ENOUGH = 20
"""Newest runs among which the one is looked for whose stream can be resumed; the others are compactions."""


@router.post("/messages", response_model=None)
async def send_messages(
    conversation_id: ThreadName,
    request: ConversationMessagesRequest,
    services: ServicesDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages and streams the answer. While a run is active, a second request is refused, or handled as its
    `if_busy` says.

    The same otids give the same run's stream again.
    """
    thread = await services.threads.find(project_id, conversation_id, request.agent_id)
    # An agent's default history that is addressed as a conversation refuses a second run as well.
    return await services.sending.send(thread, request, SendOptions(headers, if_busy="reject"))


@router.get("/messages")
async def list_messages(
    conversation_id: ThreadName,
    services: ServicesDep,
    project_id: ProjectDep,
    page: HundredNewestFirst,
    types: MessageTypes,
    agent_id: OptionalAgentIdQuery = None,
) -> list[dict[str, Any]]:
    """The history, newest first unless `order` is `asc`. An agent's default history is listed as the agent lists it:
    oldest first, and `desc` takes the newest that fit."""
    thread = await services.threads.find(project_id, conversation_id, agent_id)
    of = MessageFilter(project_id, thread_id=thread.id)
    return await message_answers(services, of, page, types, turned=thread.conversation is not None)


@router.post("/stream", response_model=None)
async def resume_stream(
    conversation_id: ThreadName,
    services: ServicesDep,
    project_id: ProjectDep,
    request: ConversationStreamRequest | None = None,
    last_event_id: LastEventIdDep = None,
    status_events: Annotated[bool, Header(alias="X-Holdfast-Status-Events")] = False,
) -> Response:
    """The stream of the conversation's newest run, or of the named one, from any frame on."""
    request = request or ConversationStreamRequest()
    thread = await services.threads.find(project_id, conversation_id, request.agent_id)
    run = await _run_to_resume(services, project_id, thread, request)
    return services.sending.resume(run, request, last_event_id, status_events=status_events)


@router.post("/cancel")
async def cancel_runs(
    conversation_id: ThreadName,
    services: ServicesDep,
    project_id: ProjectDep,
    agent_id: OptionalAgentIdQuery = None,
    request: CancelRequestIn | None = None,
) -> dict[str, str]:
    """Cancels the conversation's runs that are active or wait for approval. The answer says what became of each."""
    thread = await services.threads.find(project_id, conversation_id, agent_id)
    request = request or CancelRequestIn()
    return await services.cancels.cancel_runs(
        project_id, thread.agent.id, request.cancel(), run_ids=request.run_ids or (), thread_id=thread.id
    )


async def _run_to_resume(
    services: Services, project_id: ProjectId, thread: AgentThread, request: ConversationStreamRequest
) -> Run:
    if request.run_id is not None:
        if not is_id(request.run_id, "run"):
            raise InvalidRequest(
                f"Invalid run ID format: {request.run_id}. Expected format: 'run-<uuid4>'", field="run_id"
            )
        run = await services.runs.get(project_id, RunId(request.run_id))
        if run.thread_id != thread.id:
            raise NotFound(f"Run {run.id} is not one of this conversation")
        return run
    if request.otid is not None:
        return await services.listing.of_otid(project_id, thread.id, request.otid)
    active = [RunStatus.CREATED, RunStatus.RUNNING, RunStatus.AWAITING_APPROVAL]
    for statuses in (active, None):
        wanted = RunFilter(thread_id=thread.id, statuses=statuses)
        found = await services.listing.page(project_id, wanted, Page(limit=FAR_ENOUGH))
        speaking = [run for run in found if run.answers_messages]
        if speaking:
            return speaking[0]
    raise InvalidRequest("No active runs found for this conversation: there is no stream before its first message.")
