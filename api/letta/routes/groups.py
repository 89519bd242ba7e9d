"""Routes of sleep-time groups: an agent, and the agents that think about its turns in the background. A group's
messages are those of the agent that manages it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from api.access.callers import may_see_instructions
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    CallerDep,
    ClockDep,
    HundredNewestFirst,
    IdMakerDep,
    MessageAnswersDep,
    MessageTypes,
    OldestFirst,
    ProjectDep,
    SubmissionHeadersDep,
    TenNewestMessages,
    served,
)
from api.direct_route import LateRoute
from api.letta.conversations import AnswerService, SendOptions
from api.letta.groups import GroupCreate, GroupUpdate, ManagerType, wire_group
from api.letta.message_input import MessagesRequest
from api.runs.command import AgentThread
from shared.domain.groups import SLEEPTIME
from shared.domain.ids import UUID4_PATTERN, GroupId
from shared.sql.definitions.agent_changes import GroupEditor
from shared.sql.history.message_lists import MessageFilter

AnswerServiceDep = Annotated[AnswerService, served(AnswerService)]
GroupEditorDep = Annotated[GroupEditor, served(GroupEditor)]
GroupIdPath = Annotated[GroupId, Path(pattern=f"^group-{UUID4_PATTERN}$")]

router = APIRouter(prefix="/v1/groups", tags=["groups"], route_class=LateRoute)


@router.get("")
async def list_groups(
    groups: GroupEditorDep,
    project_id: ProjectDep,
    page: OldestFirst,
    manager_type: ManagerType | None = None,
    show_hidden_groups: bool = False,
) -> list[dict[str, Any]]:
    """The project's groups."""
    if manager_type not in (None, SLEEPTIME):
        return []
    return [wire_group(group) for group in await groups.list(project_id, page, show_hidden=show_hidden_groups)]


@router.get("/count")
async def count_groups(groups: GroupEditorDep, project_id: ProjectDep) -> int:
    """The number of the project's groups."""
    return await groups.count(project_id)


@router.post("")
async def create_group(
    body: GroupCreate, groups: GroupEditorDep, clock: ClockDep, ids: IdMakerDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Creates a group of existing agents. The group shares only those blocks that the agents have in common."""
    return wire_group(await groups.create(body.group(project_id, ids, clock.now())))


@router.get("/{group_id}")
async def retrieve_group(group_id: GroupIdPath, groups: GroupEditorDep, project_id: ProjectDep) -> dict[str, Any]:
    """One group."""
    return wire_group(await groups.get(project_id, group_id))


@router.patch("/{group_id}")
async def update_group(
    group_id: GroupIdPath, body: GroupUpdate, groups: GroupEditorDep, clock: ClockDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a group."""
    return wire_group(await groups.update(project_id, group_id, body.apply, clock.now()))


@router.delete("/{group_id}")
async def delete_group(group_id: GroupIdPath, groups: GroupEditorDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a group. Its agents stay."""
    await groups.delete(project_id, group_id)
    return {"message": f"Group id={group_id} successfully deleted"}


@router.get("/{group_id}/messages")
async def list_group_messages(
    group_id: GroupIdPath,
    groups: GroupEditorDep,
    message_answers: MessageAnswersDep,
    project_id: ProjectDep,
    page: TenNewestMessages,
    types: MessageTypes,
) -> list[dict[str, Any]]:
    """The messages of the agent that manages the group, oldest first."""
    group = await groups.get(project_id, group_id)
    return await message_answers.page(MessageFilter(project_id, agent_id=group.manager_agent_id), page, types)


@router.post("/{group_id}/messages", response_model=None)
async def send_group_messages(
    group_id: GroupIdPath,
    request: MessagesRequest,
    groups: GroupEditorDep,
    editor: AgentEditorDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages to the agent that manages the group."""
    group = await groups.get(project_id, group_id)
    thread = AgentThread(await editor.without_links(project_id, group.manager_agent_id))
    return await answer_service.send(thread, request, SendOptions(headers))


@router.post("/{group_id}/messages/stream", response_model=None)
async def stream_group_messages(
    group_id: GroupIdPath,
    request: MessagesRequest,
    groups: GroupEditorDep,
    editor: AgentEditorDep,
    answer_service: AnswerServiceDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
) -> Response:
    """Sends messages to the agent that manages the group, and streams the answer."""
    streamed = request.model_copy(update={"streaming": True})
    return await send_group_messages(group_id, streamed, groups, editor, answer_service, project_id, headers)


agent_router = APIRouter(prefix="/v1/agents/{agent_id}/groups", tags=["agents"], route_class=LateRoute)


@agent_router.get("")
async def list_groups_of_agent(
    agent_id: AgentIdPath,
    groups: GroupEditorDep,
    editor: AgentEditorDep,
    caller: CallerDep,
    page: HundredNewestFirst,
    manager_type: ManagerType | None = None,
) -> list[dict[str, Any]]:
    """The groups of the agent, in which it is the manager or works in the background. A key of single agents sees no
    groups, because they name other agents."""
    await editor.get(caller.project_id, agent_id)
    if manager_type not in (None, SLEEPTIME) or not may_see_instructions(caller):
        return []
    found = await groups.list(caller.project_id, page, agent_id=agent_id, show_hidden=True)
    return [wire_group(group) for group in found]
