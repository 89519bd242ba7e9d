"""Conversations on Letta's wire."""

from datetime import datetime
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from api.bounded_fields import Description, Settings
from api.letta.message_input import MessagesRequest
from api.letta.messages import in_utc, wire_time
from api.letta.model_settings import Handle, ModelSettingsFields
from api.letta.run_requests import StreamRequest
from shared.domain.conversations import Conversation
from shared.domain.ids import UUID4_PATTERN, AgentId, IdMaker, ProjectId
from shared.sql.definitions.conversations import ConversationDetails


def _known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    ModelSettingsFields.model_validate(settings)
    return settings


class ConversationFields(BaseModel):
    """What a client says about a conversation."""

    model_config = ConfigDict(extra="ignore")

    summary: Description | None = None
    description: Description | None = None
    model: Handle | None = None
    model_settings: Annotated[Settings, AfterValidator(_known_settings)] | None = None
    context_window_limit: int | None = Field(default=None, ge=1)

    def handle(self) -> str | None:
        """The model that is asked for."""
        return self.model


class ConversationCreate(ConversationFields):
    """A conversation to begin."""

    hidden: bool = False


class ConversationUpdate(ConversationFields):
    """What to change of a conversation. A field that is left out stays; one that is null is emptied."""

    archived: bool | None = None
    last_message_at: Annotated[AwareDatetime, AfterValidator(in_utc)] | None = None

    def apply(self, conversation: Conversation, now: datetime) -> Conversation:
        """The conversation after the change."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "archived"}
        if self.archived is not None:
            given["archived_at"] = (conversation.archived_at or now) if self.archived else None
        return replace(conversation, **given)


def new_conversation(
    body: ConversationCreate, agent_id: AgentId, project_id: ProjectId, ids: IdMaker, now: datetime
) -> Conversation:
    """The conversation that the request asks for."""
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
"""The agent whose default history is meant, where the conversation is called `default`."""


class ConversationMessagesRequest(MessagesRequest):
    """Messages for a conversation. They are answered with a stream unless that is turned off."""

    streaming: bool | None = True
    agent_id: NamedAgent = None


class ConversationStreamRequest(StreamRequest):
    """Which run's stream to resume: the one named, the one of a message's otid, or the conversation's newest."""

    agent_id: NamedAgent = None
    run_id: str | None = None
    otid: str | None = None
