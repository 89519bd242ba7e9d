"""Conversations, as stored: further histories of an agent beside its default one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, IdMaker, MessageId, ProjectId
from shared.domain.messages import AssistantMessage, Message, NewMessage, SystemMessage
from shared.domain.settling import open_calls


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One more history of an agent; its id is the id of its thread."""

    id: ConversationId
    project_id: ProjectId
    agent_id: AgentId
    name: str | None = None
    """The client's own name for it, which no other conversation of the agent has."""
    summary: str | None = None
    description: str | None = None
    model: str | None = None
    """Handle that replaces the agent's model here."""
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None
    metadata: dict[str, str] = {}
    """Of clients that keep pairs with it."""
    waiting: list[NewMessage] = []
    """Messages of a client that enter no context before the calls among them have their results."""
    hidden: bool = False
    archived_at: datetime | None = None
    last_message_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


def copies_of(history: Sequence[Message], ids: IdMaker, up_to: MessageId | None = None) -> dict[int, list[NewMessage]]:
    """Copies of the messages in a context, by turn, with new ids; with `up_to`, no further than that message.

    An answer whose calls have no results yet is left out, with all that follows it: no run would bring results to the
    copy. The system message is left out because a conversation renders it anew for every call. Raises `NotFound` when
    `up_to` is not in the context.
    """
    copies: dict[int, list[NewMessage]] = {}
    for message in _whole(_until(history, up_to)):
        if not isinstance(message.body, SystemMessage):
            copies.setdefault(message.turn, []).append(copy_of(message, ids))
    return copies


def _until(history: Sequence[Message], last: MessageId | None) -> Sequence[Message]:
    if last is None:
        return history
    for place, message in enumerate(history):
        if last in (message.id, getattr(message.body, "sibling_id", None)):
            return history[: place + 1]
    raise NotFound(f"Message {last} not found: it is not in the context that is to be forked")


def _whole(history: Sequence[Message]) -> Sequence[Message]:
    """The history up to its last answer, if that waits for results."""
    if open_calls(history) is None:
        return history
    asking = max(place for place, message in enumerate(history) if isinstance(message.body, AssistantMessage))
    return history[:asking]


def copy_of(message: Message, ids: IdMaker) -> NewMessage:
    """A copy of the message with new ids, of no step."""
    body = message.body
    if isinstance(body, AssistantMessage) and body.sibling_id is not None:
        body = replace(body, sibling_id=ids.message())
    return NewMessage(id=ids.message(), created_at=message.created_at, body=body)
