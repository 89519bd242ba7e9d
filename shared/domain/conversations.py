"""Conversations, as stored: further histories of an agent beside its default one."""

from datetime import datetime
from typing import Any

import msgspec

from shared.domain.ids import AgentId, ConversationId, ProjectId


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One more history of an agent; its id is the id of its thread."""

    id: ConversationId
    project_id: ProjectId
    agent_id: AgentId
    summary: str | None = None
    description: str | None = None
    model: str | None = None
    """Handle that replaces the agent's model here."""
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None
    hidden: bool = False
    archived_at: datetime | None = None
    last_message_at: datetime | None = None
    created_at: datetime
    updated_at: datetime
