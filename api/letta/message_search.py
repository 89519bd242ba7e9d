"""The search for words in messages, on Letta's wire."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.letta.envelope import in_utc, wire_time
from api.letta.messages import wire_messages
from shared.domain.ids import UUID4_PATTERN, AgentId, ConversationId
from shared.domain.messages import Message
from shared.domain.searches import LONGEST_QUERY

SAID = frozenset({"user_message", "assistant_message"})
"""The messages that are searched."""


class MessageSearch(BaseModel):
    """What to look for, and where. Every mode looks for the words: Holdfast keeps no vectors of messages."""

    model_config = ConfigDict(extra="ignore")

    query: Annotated[str, Field(max_length=LONGEST_QUERY)]
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    agent_id: Annotated[AgentId | None, Field(pattern=f"^agent-{UUID4_PATTERN}$")] = None
    conversation_id: ConversationId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    start_date: Annotated[datetime, AfterValidator(in_utc)] | None = None
    end_date: Annotated[datetime, AfterValidator(in_utc)] | None = None


def wire_found(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The messages that were found, each with where it was said."""
    return [
        {
            "message_type": shown["message_type"],
            "content": shown["content"],
            "message_id": message.id,
            "agent_id": message.agent_id,
            "conversation_id": message.conversation_id,
            "created_at": wire_time(message.created_at),
        }
        for message in messages
        for shown in wire_messages([message], SAID)
    ]
