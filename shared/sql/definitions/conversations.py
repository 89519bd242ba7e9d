"""Conversations: further histories of an agent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.conversations import Conversation
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, MessageId, ProjectId, ThreadId
from shared.domain.messages import NewMessage
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import begin_history, system_message
from shared.sql.definitions.agents import LastRunOrder, blocks_of_agents, last_run_keys, load_agent
from shared.sql.engine import Database
from shared.sql.history.messages import FIRST_TURN, SYSTEM_POSITION, append_turn, ids_in_context, insert_into_thread
from shared.sql.history.thread_queue import thread_lock
from shared.sql.paging import Page, contains, field_of_document, remember_place, rows_of_page
from shared.sql.run_tables import runs
from shared.sql.runs.listing import delete_histories
from shared.sql.tables import conversations, document_of, from_json, messages, to_json

ArchiveStatus = Literal["unarchived", "archived", "all"]
ConversationOrder = Literal["created_at"] | LastRunOrder


class ConversationFilter(msgspec.Struct, frozen=True):
    """Which conversations of a project a list shows."""

    agent_id: AgentId | None = None
    summary_search: str | None = None
    archive_status: ArchiveStatus = "unarchived"


class ConversationDetails(msgspec.Struct, frozen=True):
    """A conversation with data of its runs: the ids of the messages in its context, and the last request."""

    conversation: Conversation
    message_ids: list[MessageId]
    last_request_at: datetime | None = None


class ConversationStore:
    """Reads and writes conversations. Their messages are written by runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        conversation: Conversation,
        *,
        system_message_id: MessageId,
        copies: Mapping[int, Sequence[NewMessage]] | None = None,
    ) -> Conversation:
        """Stores a conversation with its system message; `copies` are the messages that follow it, by turn.

        The system message is rendered from the agent and its blocks as they are now. It stays so until a client renders
        it again, so readers of the conversation see how it began. Runs send the model the current text.

        Raises `NotFound` when the project does not have its agent.
        """
        async with self._database.write() as connection:
            agent = await load_agent(connection, conversation.project_id, conversation.agent_id)
            blocks = (await blocks_of_agents(connection, [agent.id]))[agent.id]
            await connection.execute(sa.insert(conversations).values(_values(conversation)))
            begin_history(connection, agent, blocks, system_message_id, conversation=conversation)
            for turn, copied in (copies or {}).items():
                insert_into_thread(
                    connection,
                    copied,
                    agent_id=conversation.agent_id,
                    thread_id=ThreadId(conversation.id),
                    conversation_id=conversation.id,
                    run_id=None,
                    turn=turn,
                    after=SYSTEM_POSITION if turn == FIRST_TURN else 0,
                )
        return conversation

    async def render_again(self, project_id: ProjectId, conversation_id: ConversationId) -> None:
        """Renders the system message again from the agent and its blocks as they are now. Raises `NotFound`."""
        async with self._database.write() as connection:
            conversation = await _load(connection, project_id, conversation_id, lock=True)
            agent = await load_agent(connection, project_id, conversation.agent_id)
            blocks = (await blocks_of_agents(connection, [agent.id]))[agent.id]
            place = sa.and_(
                messages.c.thread_id == conversation_id,
                messages.c.turn == FIRST_TURN,
                messages.c.position == SYSTEM_POSITION,
            )
            text = to_json(system_message(agent, blocks, conversation_id))
            await connection.execute(sa.update(messages).where(place).values(body=text))

    async def get(self, project_id: ProjectId, conversation_id: ConversationId) -> Conversation:
        """One conversation of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _load(connection, project_id, conversation_id)

    async def list(
        self,
        project_id: ProjectId,
        wanted: ConversationFilter,
        page: Page,
        order_by: ConversationOrder = "created_at",
    ) -> list[Conversation]:
        """A page of the project's conversations, the hidden ones left out. Those without a run come last where runs
        order them."""
        conditions: list[sa.ColumnElement[bool]] = [self._field("hidden").as_boolean().is_not(True)]
        if wanted.archive_status != "all":
            archived_at = self._field("archived_at").as_string()
            conditions.append(
                archived_at.is_not(None) if wanted.archive_status == "archived" else archived_at.is_(None)
            )
        if wanted.agent_id is not None:
            conditions.append(conversations.c.agent_id == wanted.agent_id)
        if wanted.summary_search:
            conditions.append(contains(self._field("summary").as_string(), wanted.summary_search))
        async with self._database.read() as connection:
            keys: list[sa.ColumnElement[Any]] = [conversations.c.number]
            if order_by != "created_at":
                keys = last_run_keys(connection, order_by, runs.c.thread_id, conversations, ascending=page.ascending)
            rows = await rows_of_page(connection, conversations, project_id, page, *conditions, keys=keys)
            return [_conversation_of(row) for row in rows]

    async def details(self, some: Sequence[Conversation]) -> Sequence[ConversationDetails]:
        """Returns the conversations with the data of their runs, in one query for each kind of data."""
        wanted = [conversation.id for conversation in some]
        async with self._database.read() as connection:
            ids = await ids_in_context(connection, wanted)
            last = await _last_requests(connection, wanted)
        return [
            ConversationDetails(conversation, ids.get(conversation.id, []), last.get(conversation.id))
            for conversation in some
        ]

    async def update(
        self,
        project_id: ProjectId,
        conversation_id: ConversationId,
        change: Callable[[Conversation], Conversation],
        now: datetime,
    ) -> Conversation:
        """Changes the stored conversation in one transaction. `change` must be quick and pure. Raises `NotFound`."""
        async with self._database.write() as connection:
            before = await _load(connection, project_id, conversation_id, lock=True)
            conversation = replace(change(before), updated_at=now)
            await connection.execute(
                sa.update(conversations).where(conversations.c.id == conversation_id).values(_values(conversation))
            )
            return conversation

    async def extend(
        self,
        project_id: ProjectId,
        conversation_id: ConversationId,
        change: Callable[[Conversation], tuple[Conversation, Sequence[NewMessage]]],
        now: datetime,
    ) -> Conversation:
        """Changes the stored conversation, and stores the resulting messages, in one transaction: they are the newest
        turn, which belongs to no run. The active run does not see them; the next one does. `change` must be quick and
        pure. Raises `NotFound`."""
        thread_id = ThreadId(conversation_id)
        async with self._database.write(None, thread_lock(thread_id)) as connection:
            before = await _load(connection, project_id, conversation_id, lock=True)
            changed, new = change(before)
            conversation = replace(changed, updated_at=now)
            await connection.execute(
                sa.update(conversations).where(conversations.c.id == conversation_id).values(_values(conversation))
            )
            if new:
                await append_turn(connection, new, conversation.agent_id, thread_id, conversation_id)
            return conversation

    async def delete(self, project_id: ProjectId, conversation_id: ConversationId) -> None:
        """Deletes a conversation with its runs and messages. Raises `NotFound`."""
        async with self._database.write() as connection:
            await _load(connection, project_id, conversation_id, lock=True)
            await delete_histories(connection, "thread_id", conversation_id)
            await remember_place(connection, conversations, conversation_id)
            await connection.execute(sa.delete(conversations).where(conversations.c.id == conversation_id))
            await record(connection, project_id, "conversation.deleted", conversation_id)

    def _field(self, name: str) -> Any:
        return field_of_document(conversations, name)


async def _last_requests(connection: Connection, ids: Sequence[ConversationId]) -> dict[str, datetime]:
    found = await connection.execute(
        sa.select(runs.c.thread_id, sa.func.max(runs.c.created_at, type_=runs.c.created_at.type).label("at"))
        .where(runs.c.thread_id.in_(ids))
        .group_by(runs.c.thread_id)
    )
    return {row.thread_id: row.at for row in found}


async def _load(
    connection: Connection, project_id: ProjectId, conversation_id: ConversationId, *, lock: bool = False
) -> Conversation:
    query = sa.select(conversations).where(
        conversations.c.id == conversation_id, conversations.c.project_id == project_id
    )
    found = await connection.execute(query.with_for_update() if lock else query)
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Conversation with ID {conversation_id} not found")
    return _conversation_of(row)


def _conversation_of(row: RowMapping) -> Conversation:
    return from_json(row["document"], Conversation)


def _values(conversation: Conversation) -> dict[str, object]:
    return {
        "id": conversation.id,
        "project_id": conversation.project_id,
        "agent_id": conversation.agent_id,
        "document": document_of(conversation),
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }
