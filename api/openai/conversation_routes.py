"""Conversations and models on OpenAI's wire. Letta's wire has the same conversations, under ids `conv-…`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.dependencies import AgentsOfKeyDep, OfferedModelsDep, ProjectDep, ShowsInstructionsDep, served
from api.direct_route import LateRoute
from api.openai.conversation_service import ConversationService
from api.openai.response_items import ItemsPage, wire_items, without_instructions
from api.openai.response_object import conversation_id_of, wire_conversation_id
from api.openai.responses_request import Metadata
from shared.domain.errors import InvalidRequest, NotFound, UnknownModel
from shared.domain.ids import AgentId, ConversationId, ProjectId, is_id
from shared.domain.models import split_handle
from shared.domain.threads import Conversation
from shared.network.server_models import ServerModels
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentFilter
from shared.sql.paging import Page

ConversationServiceDep = Annotated[ConversationService, served(ConversationService)]
ServerModelsDep = Annotated[ServerModels, served(ServerModels)]

AgentStoreDep = Annotated[AgentEditor, served(AgentEditor)]

router = APIRouter(prefix="/openai/v1", tags=["responses"], route_class=LateRoute)

MOST_AT_ONCE = 20
"""Items that one request may add, OpenAI's limit."""


class OpenAIConversationCreate(BaseModel):
    """A conversation to create, and its items. `metadata.agent_id` names its agent."""

    model_config = ConfigDict(extra="ignore")

    items: Annotated[list[dict[str, Any]], Field(max_length=MOST_AT_ONCE)] | None = None
    metadata: Metadata | None = None


class OpenAIConversationUpdate(BaseModel):
    """The new metadata of a conversation."""

    model_config = ConfigDict(extra="ignore")

    metadata: Metadata | None


class AddedItems(BaseModel):
    """Items for a conversation."""

    model_config = ConfigDict(extra="ignore")

    items: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_AT_ONCE)]


@router.post("/conversations")
async def create_openai_conversation(
    conversations: ConversationServiceDep, project_id: ProjectDep, request: OpenAIConversationCreate | None = None
) -> dict[str, Any]:
    """Creates a conversation, with items if the request has any. It belongs to the agent that `metadata.agent_id`
    names, or else to the project's hidden agent, which has no memory and no tools."""
    asked = request or OpenAIConversationCreate()
    return _shown(await conversations.create(project_id, asked.items or [], asked.metadata or {}))


@router.get("/conversations/{conversation_id}")
async def retrieve_openai_conversation(
    conversation_id: str, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One conversation."""
    return _shown(await conversations.get(project_id, _id_of(conversation_id)))


@router.post("/conversations/{conversation_id}")
async def update_openai_conversation(
    conversation_id: str,
    request: OpenAIConversationUpdate,
    conversations: ConversationServiceDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """Changes the metadata of a conversation."""
    return _shown(await conversations.describe(project_id, _id_of(conversation_id), request.metadata or {}))


@router.delete("/conversations/{conversation_id}")
async def delete_openai_conversation(
    conversation_id: str, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Deletes a conversation with its responses."""
    await conversations.delete(project_id, _id_of(conversation_id))
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/conversations/{conversation_id}/items")
async def list_conversation_items(
    conversation_id: str,
    conversations: ConversationServiceDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """The items in the conversation's context, newest first unless `order` says otherwise. After a compaction the
    summary replaces the earlier items."""
    items = await conversations.items(project_id, _id_of(conversation_id))
    shown = items if shows_instructions else without_instructions(items)
    return wire_items(shown, ItemsPage(limit, order == "asc", after or None))


@router.post("/conversations/{conversation_id}/items")
async def create_conversation_items(
    conversation_id: str, request: AddedItems, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Adds items after the conversation's last one. The next response includes them."""
    added = await conversations.add(project_id, _id_of(conversation_id), request.items)
    return wire_items(added, ItemsPage(len(added), True, None))


@router.get("/conversations/{conversation_id}/items/{item_id}")
async def retrieve_conversation_item(
    conversation_id: str,
    item_id: str,
    conversations: ConversationServiceDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
) -> dict[str, Any]:
    """One item."""
    return await _item(conversations, project_id, conversation_id, item_id, shows_instructions)


@router.delete("/conversations/{conversation_id}/items/{item_id}")
async def delete_conversation_item(
    conversation_id: str,
    item_id: str,
    conversations: ConversationServiceDep,
    project_id: ProjectDep,
    shows_instructions: ShowsInstructionsDep,
) -> dict[str, Any]:
    """Removes a message from the conversation's context. The next response does not include it."""
    if not shows_instructions:
        await _item(conversations, project_id, conversation_id, item_id, shows_instructions)
    return _shown(await conversations.take_out(project_id, _id_of(conversation_id), item_id))


async def _item(
    conversations: ConversationService,
    project_id: ProjectId,
    conversation_id: str,
    item_id: str,
    shows_instructions: bool,
) -> dict[str, Any]:
    """One of the items that the caller may see. Raises `NotFound`."""
    items = await conversations.items(project_id, _id_of(conversation_id))
    shown = items if shows_instructions else without_instructions(items)
    found = next((item for item in shown if item["id"] == item_id), None)
    if found is None:
        raise NotFound(f"Item with id '{item_id[:100]}' not found in the conversation.")
    return found


def _id_of(named: str) -> ConversationId:
    found = conversation_id_of(named)
    if found is None:
        raise NotFound(f"Conversation with id '{named[:100]}' not found.")
    return ConversationId(found)


def _shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": wire_conversation_id(conversation.id),
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }


@router.get("/models")
async def list_openai_models(
    offered: OfferedModelsDep,
    server_models: ServerModelsDep,
    agents: AgentStoreDep,
    project_id: ProjectDep,
    of_key: AgentsOfKeyDep,
) -> dict[str, Any]:
    """The models that a request may name without an agent, the default first. A key that is bound to agents sees those
    agents instead, because it can name nothing else."""
    if of_key:
        found = await agents.list(project_id, AgentFilter(ids=of_key), Page(limit=len(of_key)))
        return {"object": "list", "data": [_model(agent.id, OWNER) for agent in found]}
    listed = offered.listed(await server_models.found())
    return {"object": "list", "data": [_model(one.handle, one.provider) for one in listed]}


@router.get("/models/{model:path}")
async def retrieve_openai_model(
    model: str, service: ConversationServiceDep, agents: AgentStoreDep, project_id: ProjectDep, of_key: AgentsOfKeyDep
) -> dict[str, Any]:
    """One model, or an agent by its id. A provider may have more models than it lists."""
    if of_key or is_id(model, "agent"):
        found = await agents.list(project_id, AgentFilter(ids=[AgentId(model)]), Page(limit=1))
        if not found:
            raise UnknownModel(model)
        return _model(model, OWNER)
    try:
        provider, _ = split_handle(service.threads.handle(model))
    except InvalidRequest as error:
        raise UnknownModel(model, error.message) from error
    return _model(model, provider)


OWNER = "holdfast"
"""The `owned_by` of an agent in the list of models."""


def _model(handle: str, owner: str) -> dict[str, Any]:
    return {"id": handle, "object": "model", "created": 0, "owned_by": owner}
