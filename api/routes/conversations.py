"""Conversations: further histories of an agent."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from api.dependencies import (
    AgentIdQuery,
    ConversationIdPath,
    NewestFirst,
    OptionalAgentIdQuery,
    ProjectDep,
    ServicesDep,
)
from api.direct_route import LateRoute
from api.letta.conversations import ConversationCreate, ConversationUpdate, new_conversation, wire_conversation
from api.model_choice import with_served_model
from api.services import Services
from shared.domain.conversations import Conversation
from shared.sql.definitions.conversations import ArchiveStatus, ConversationFilter, ConversationOrder

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=LateRoute)


@router.post("")
async def create_conversation(
    agent_id: AgentIdQuery,
    response: Response,
    services: ServicesDep,
    project_id: ProjectDep,
    body: Annotated[ConversationCreate | None, Body()] = None,
) -> dict[str, Any]:
    """Begins a conversation with an agent."""
    asked = with_served_model(body or ConversationCreate(), services.models, response)
    conversation = new_conversation(asked, agent_id, project_id, services.ids, services.clock.now())
    created = await services.conversations.create(conversation, system_message_id=services.ids.message())
    return await _answer(services, created)


@router.get("")
async def list_conversations(
    services: ServicesDep,
    project_id: ProjectDep,
    page: NewestFirst,
    agent_id: OptionalAgentIdQuery = None,
    summary_search: str | None = None,
    archive_status: ArchiveStatus = "unarchived",
    order_by: ConversationOrder = "created_at",
) -> list[dict[str, Any]]:
    """The conversations of an agent, or of all."""
    wanted = ConversationFilter(agent_id, summary_search, archive_status)
    found = await services.conversations.list(project_id, wanted, page, order_by)
    return [wire_conversation(details) for details in await services.conversations.details(found)]


@router.get("/{conversation_id}")
async def retrieve_conversation(
    conversation_id: ConversationIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One conversation."""
    return await _answer(services, await services.conversations.get(project_id, conversation_id))


@router.patch("/{conversation_id}")
async def update_conversation(
    conversation_id: ConversationIdPath,
    body: ConversationUpdate,
    response: Response,
    services: ServicesDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Changes a conversation."""
    asked, now = with_served_model(body, services.models, response), services.clock.now()

    def change(conversation: Conversation) -> Conversation:
        return asked.apply(conversation, now)

    return await _answer(services, await services.conversations.update(project_id, conversation_id, change, now))


@router.delete("/{conversation_id}")
async def delete_conversation(
    conversation_id: ConversationIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, str]:
    """Deletes a conversation with its runs and messages."""
    await services.conversations.delete(project_id, conversation_id)
    return {"message": f"Conversation id={conversation_id} successfully deleted"}


async def _answer(services: Services, conversation: Conversation) -> dict[str, Any]:
    [details] = await services.conversations.details([conversation])
    return wire_conversation(details)
