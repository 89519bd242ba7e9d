"""Conversations and models in OpenAI's words. A conversation is one of Letta's too, under the id `conv-…`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.dependencies import ProjectDep, served
from api.direct_route import LateRoute
from api.offered_models import OfferedModels
from api.openai.conversation_service import ConversationService
from api.openai.response_items_list import ItemsPage, wire_items
from api.openai.response_object import conversation_id_of, wire_conversation_id
from api.openai.responses_input import MOST_ITEMS
from api.openai.responses_request import Metadata
from shared.domain.conversations import Conversation
from shared.domain.errors import InvalidRequest, NotFound, UnknownModel
from shared.domain.ids import ConversationId
from shared.domain.models import split_handle
from shared.network.server_models import ServerModels

ConversationServiceDep = Annotated[ConversationService, served(ConversationService)]
OfferedModelsDep = Annotated[OfferedModels, served(OfferedModels)]
ServerModelsDep = Annotated[ServerModels, served(ServerModels)]

router = APIRouter(prefix="/openai/v1", tags=["responses"], route_class=LateRoute)

MOST_AT_ONCE = 20
"""Items that one request adds, as at OpenAI."""


class OpenAIConversationCreate(BaseModel):
    """A conversation to begin, and with what. `metadata.agent_id` names the agent whose it is."""

    model_config = ConfigDict(extra="ignore")

    items: Annotated[list[dict[str, Any]], Field(max_length=MOST_AT_ONCE)] | None = None
    metadata: Metadata | None = None


class OpenAIConversationUpdate(BaseModel):
    """The new pairs of a conversation."""

    model_config = ConfigDict(extra="ignore")

    metadata: Metadata


class AddedItems(BaseModel):
    """Items for a conversation."""

    model_config = ConfigDict(extra="ignore")

    items: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=min(MOST_AT_ONCE, MOST_ITEMS))]


@router.post("/conversations")
async def create_openai_conversation(
    conversations: ConversationServiceDep, project_id: ProjectDep, request: OpenAIConversationCreate | None = None
) -> dict[str, Any]:
    """Begins a conversation, with items if there are any. It is of the agent that `metadata.agent_id` names, else of
    the project's hidden one, which has no memory and no tools."""
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
    """Changes the pairs of a conversation."""
    return _shown(await conversations.describe(project_id, _id_of(conversation_id), request.metadata))


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
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """What is in the conversation's context, newest first unless `order` says otherwise: where it was compacted, the
    summary stands for what was before."""
    items = await conversations.items(project_id, _id_of(conversation_id))
    return wire_items(items, ItemsPage(limit, order == "asc", after))


@router.post("/conversations/{conversation_id}/items")
async def create_conversation_items(
    conversation_id: str, request: AddedItems, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Adds items behind the conversation's last one. The next response sees them."""
    added = await conversations.add(project_id, _id_of(conversation_id), request.items)
    return wire_items(added, ItemsPage(len(added), True, None))


@router.get("/conversations/{conversation_id}/items/{item_id}")
async def retrieve_conversation_item(
    conversation_id: str, item_id: str, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One item."""
    items = await conversations.items(project_id, _id_of(conversation_id))
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise NotFound(f"Item with id '{item_id[:100]}' not found in the conversation.")
    return found


@router.delete("/conversations/{conversation_id}/items/{item_id}")
async def delete_conversation_item(
    conversation_id: str, item_id: str, conversations: ConversationServiceDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Takes a message out of the conversation's context: the next response does not see it."""
    return _shown(await conversations.take_out(project_id, _id_of(conversation_id), item_id))


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
    offered: OfferedModelsDep, server_models: ServerModelsDep, _project_id: ProjectDep
) -> dict[str, Any]:
    """The models that can be named without an agent; the default one first."""
    found = await server_models.found()
    return {"object": "list", "data": [_model(one.handle, one.provider) for one in offered.listed(found)]}


@router.get("/models/{model:path}")
async def retrieve_openai_model(model: str, offered: OfferedModelsDep, _project_id: ProjectDep) -> dict[str, Any]:
    """One model. A provider may have more of them than it lists."""
    try:
        provider, _ = split_handle(offered.served(model) or model)
    except (ValueError, InvalidRequest) as error:
        raise UnknownModel(model) from error
    return _model(model, provider)


def _model(handle: str, owner: str) -> dict[str, Any]:
    return {"id": handle, "object": "model", "created": 0, "owned_by": owner}
