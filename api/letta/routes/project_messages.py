"""Routes of the messages of all agents of a project: list them, read one by its id, and search for words."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.agent_answers import MessageAnswers, types_for
from api.dependencies import CallerDep, HundredNewestFirst, MessageTypes, ProjectDep, served
from api.direct_route import LateRoute
from api.letta.messages import MessageSearch, wire_found, wire_messages
from api.runs.command import DEFAULT
from shared.domain.errors import NotFound
from shared.domain.ids import UUID4_PATTERN, MessageId, ThreadId
from shared.sql.history.message_lists import MessageFilter, MessageLists
from shared.sql.history.messages import MessageStore

MessageAnswersDep = Annotated[MessageAnswers, served(MessageAnswers)]
MessageListsDep = Annotated[MessageLists, served(MessageLists)]
MessageStoreDep = Annotated[MessageStore, served(MessageStore)]

router = APIRouter(prefix="/v1/messages", tags=["messages"], route_class=LateRoute)

MessageIdPath = Annotated[MessageId, Path(pattern=f"^message-{UUID4_PATTERN}$")]


@router.get("")
async def list_messages(
    message_answers: MessageAnswersDep,
    project_id: ProjectDep,
    page: HundredNewestFirst,
    types: MessageTypes,
    conversation_id: str | None = None,
) -> list[dict[str, Any]]:
    """The messages of all histories, of one conversation, or of all default histories; oldest first.

    `desc` (the default) takes the newest ones of them.
    """
    thread_id = ThreadId(conversation_id) if conversation_id and conversation_id != DEFAULT else None
    of = MessageFilter(project_id, thread_id=thread_id, is_default=conversation_id == DEFAULT)
    return await message_answers.page(of, page, types)


@router.post("/search")
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


@router.get("/{message_id}")
async def retrieve_message(
    message_id: MessageIdPath, message_store: MessageStoreDep, caller: CallerDep
) -> list[dict[str, Any]]:
    """The parts of one message, which are messages of their own on the wire."""
    found = wire_messages(await message_store.find(caller.project_id, [message_id]), types_for(caller, None))
    # The calls and the approval requests of one stored answer may have different ids.
    parts = [part for part in found if part["id"] == message_id]
    if not parts:
        raise NotFound(f"Message with id {message_id} not found.")
    return parts
