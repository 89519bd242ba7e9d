"""Threads: the conversations of an agent, as stored, and the order of a thread's runs."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, IdMaker, MessageId, ProjectId, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import AssistantMessage, Message, NewMessage, SystemMessage
from shared.domain.runs import Run
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
    """Pairs that clients store with it."""
    waiting: list[NewMessage] = []
    """Messages of a client that enter no context before the calls among them have their results."""
    hidden: bool = False
    archived_at: datetime | None = None
    last_message_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


def copies_of(history: Sequence[Message], ids: IdMaker, up_to: MessageId | None = None) -> dict[int, list[NewMessage]]:
    """Copies of the messages in a context, by turn, with new ids; with `up_to`, no further than that message.

    An answer whose calls have no results yet is left out, with all that follows it: no run would add results to the
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
    """The history before its last answer if that answer waits for results, else the whole history."""
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


# The order of a thread's runs: turns, and the legs of a turn. And runs at a glance.
#
# A turn begins with the run that answers its messages. If that run waits for a decision, the run that continues it is
# the turn's next leg, and so on. No run ever changes its place.


class Leg(NamedTuple):
    """A run of a thread, with its place in the order of the thread's runs."""

    turn: int
    number: int
    """0 for the run that begins the turn, and one more for each continuation."""
    run: Run


def legs_of(found: Sequence[Run]) -> Iterator[Leg]:
    """The legs of one turn, from its runs in the order of their submission.

    A run stores its number, so it keeps the number when an earlier leg is deleted. Runs of older releases store none.
    """
    last = -1
    for run in found:
        last = max(run.options.leg, last + 1)
        yield Leg(run.turn or 0, last, run)


def has_begun(run: Run) -> bool:
    """Whether the run has a log to show. A turn does not prove it: a continuation has one before a worker claims it."""
    return run.started_at is not None or run.status is not RunStatus.CREATED


# Runs for dashboards: many runs, and of each no more than its present activity.


class RunScope(NamedTuple):
    """All runs of a project, or of one of its agents."""

    project_id: ProjectId
    agent_id: AgentId | None = None


class RunGlance(NamedTuple):
    """A run as a dashboard sees it."""

    id: RunId
    number: int
    agent_id: AgentId
    conversation_id: ConversationId | None
    status: RunStatus
    stop_reason: str | None
    waiting: int = 0
    """Its calls that wait for a decision or a result."""
