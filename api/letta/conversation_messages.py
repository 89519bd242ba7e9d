"""What a client sends into a conversation: as to an agent, but for the default of streaming and how runs are found."""

from typing import Annotated

from pydantic import Field

from api.letta.message_input import MessagesRequest, StreamRequest
from shared.domain.ids import UUID4_PATTERN, AgentId

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
