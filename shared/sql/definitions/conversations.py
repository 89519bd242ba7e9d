"""Conversations: further histories of an agent."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping

from shared.domain.agents import Agent
from shared.domain.errors import NotFound
from shared.domain.ids import AgentId, ConversationId, MessageId, ProjectId, ThreadId
from shared.domain.messages import NewMessage
from shared.domain.threads import Conversation
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.definitions.agent_changes import begin_history, system_message
from shared.sql.definitions.agents import (
    AGENT_ROW,
    LastRunOrder,
    agent_row,
    blocks_of_agents,
    last_run_keys,
    load_agent,
    unlinked_agent,
)
from shared.sql.engine import Store
from shared.sql.history.messages import (
    FIRST_TURN,
    IS_SYSTEM,
    SYSTEM_POSITION,
    append_turn,
    ids_in_context,
    insert_into_thread,
)
from shared.sql.history.thread_queue import thread_lock
from shared.sql.paging import Page, contains, field_of_document, remember_place, rows_of_page
from shared.sql.run_tables import runs
from shared.sql.runs.listing import delete_histories
from shared.sql.runs.run_store import Opened, Opens
from shared.sql.tables import agents, columns_of, conversations, document_of, from_json, messages, to_json

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


class ConversationStore(Store):
    """Reads and writes conversations. Their messages are written by runs."""

    async def create(
        self,
        conversation: Conversation,
        *,
        system_message_id: MessageId,
        copies: Mapping[int, Sequence[NewMessage]] | None = None,
    ) -> Conversation:
        """Stores a conversation with its system message; `copies` are the messages that follow it, by turn.

        The system message is rendered from the agent and its blocks as they are now. It stays unchanged until a client
        renders it again, so readers of the conversation see its first text. Runs send the model the current text.

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

    async def named(self, project_id: ProjectId, agent_id: AgentId, name: str) -> tuple[Agent, Conversation | None]:
        """Returns an agent of this project as `AgentStore.without_links` does, and its conversation with this name.
        Raises `NotFound` for an unknown agent."""
        return await self._with_agent(_AGENT_AND_NAMED, project_id, agent_id, name)

    async def of_agent(
        self, project_id: ProjectId, agent_id: AgentId, conversation_id: ConversationId
    ) -> tuple[Agent, Conversation]:
        """Returns an agent of this project as `AgentStore.without_links` does, and a conversation of it. Raises
        `NotFound`, for an unknown agent first."""
        agent, found = await self._with_agent(_AGENT_AND_CONVERSATION, project_id, agent_id, conversation_id)
        if found is None:
            raise _not_found(conversation_id)
        return agent, found

    async def ensure(self, conversation: Conversation, *, system_message_id: MessageId) -> Conversation:
        """Stores a conversation with a name unless the agent has one of this name, as `create`. Returns the
        conversation as stored. Raises `NotFound` when the project does not have its agent."""
        async with self._database.write() as connection:
            row = await agent_row(connection, AGENT_ROW, conversation.project_id, conversation.agent_id)
            opened = await _open(conversation, unlinked_agent(row), system_message_id, connection)
            if opened.write_history is None:
                return await _load(connection, conversation.project_id, opened.conversation_id)
            opened.write_history()
            return conversation

    async def render_again(self, project_id: ProjectId, conversation_id: ConversationId) -> None:
        """Renders the system message again from the agent and its blocks as they are now. Raises `NotFound`."""
        async with self._database.write() as connection:
            conversation = await _load(connection, project_id, conversation_id, lock=True)
            agent = await load_agent(connection, project_id, conversation.agent_id)
            blocks = (await blocks_of_agents(connection, [agent.id]))[agent.id]
            text = to_json(system_message(agent, blocks, conversation_id))
            is_it = (messages.c.thread_id == conversation_id, IS_SYSTEM)
            await connection.execute(sa.update(messages).where(*is_it).values(body=text))

    async def get(self, project_id: ProjectId, conversation_id: ConversationId) -> Conversation:
        """One conversation of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await _load(connection, project_id, conversation_id)

    async def list(
        self, project_id: ProjectId, wanted: ConversationFilter, page: Page, order_by: ConversationOrder = "created_at"
    ) -> list[Conversation]:
        """A page of the project's conversations without the hidden ones. If runs order the list, those without a run
        come last."""
        conditions: list[sa.ColumnElement[bool]] = [self._field("hidden").as_boolean().is_not(True)]
        # Not IS NULL: Postgres would expect one in two hundred, and sort them all instead of reading in order.
        archived_at = sa.func.coalesce(self._field("archived_at").as_string(), "")
        if wanted.archive_status != "all":
            conditions.append(archived_at > "0" if wanted.archive_status == "archived" else archived_at < "0")
        c = conversations.c
        owner = (c.agent_id, wanted.agent_id) if wanted.agent_id else (c.project_id, project_id)
        if wanted.summary_search:
            conditions.append(contains(self._field("summary").as_string(), wanted.summary_search))
        async with self._database.read() as connection:
            keys: list[sa.ColumnElement[Any]] = [conversations.c.number]
            if order_by != "created_at":
                keys = last_run_keys(connection, order_by, runs.c.thread_id, conversations, ascending=page.ascending)
            rows = await rows_of_page(connection, conversations, project_id, page, *conditions, keys=keys, owner=owner)
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

    async def _with_agent(
        self, query: sa.Executable, project_id: ProjectId, agent_id: AgentId, named: str
    ) -> tuple[Agent, Conversation | None]:
        async with self._database.read() as connection:
            row = await agent_row(connection, query, project_id, agent_id, named=named)
        document = row["of_conversation"]
        found = None if document is None else replace(from_json(document, Conversation), name=row["name_of_it"])
        return unlinked_agent(row), found

    def _field(self, name: str) -> Any:
        return field_of_document(conversations, name)


def opening(conversation: Conversation, agent: Agent, system_message_id: MessageId) -> Opens:
    """Returns a function that stores a named conversation together with its first run. `agent` is its agent, as read
    just before; the system message is rendered as `ConversationStore.create` does."""
    return partial(_open, conversation, agent, system_message_id)


async def _open(new: Conversation, agent: Agent, system_message_id: MessageId, connection: Connection) -> Opened:
    # If several processes store the conversation at once, one does, and the others wait here for its end.
    stored = await connection.execute(_unless_named(connection.insert), _values(new))
    if not stored.rowcount:
        given = {"of_agent": new.agent_id, "named": new.name, "of_project": new.project_id}
        known = (await connection.execute(_NAMED, given)).scalar_one_or_none()
        if known is None:
            raise NotFound(f"Conversation {new.name!r} not found")  # it was deleted meanwhile
        return Opened(known, None)
    blocks = (await blocks_of_agents(connection, [agent.id]))[agent.id]
    return Opened(new.id, partial(begin_history, connection, agent, blocks, system_message_id, conversation=new))


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
        raise _not_found(conversation_id)
    return _conversation_of(row)


def _not_found(conversation_id: ConversationId) -> NotFound:
    return NotFound(f"Conversation with ID {conversation_id} not found")


_NAMED = sa.select(conversations.c.id).where(
    conversations.c.agent_id == sa.bindparam("of_agent"),
    conversations.c.name == sa.bindparam("named"),
    conversations.c.project_id == sa.bindparam("of_project"),
)


@cache
def _unless_named(insert: Callable[[sa.Table], Any]) -> sa.Executable:
    return insert(conversations).on_conflict_do_nothing(
        index_elements=[conversations.c.agent_id, conversations.c.name], index_where=sa.text("name IS NOT NULL")
    )


def _with_conversation(column: sa.Column[Any]) -> sa.Select[*tuple[Any, ...]]:
    of_agent = (conversations.c.agent_id == agents.c.id, conversations.c.project_id == agents.c.project_id)
    found = sa.outerjoin(agents, conversations, sa.and_(*of_agent, column == sa.bindparam("named")))
    return AGENT_ROW.select_from(found).add_columns(
        conversations.c.document.label("of_conversation"), conversations.c.name.label("name_of_it")
    )


# A page names its agent and its conversation, so one query reads both.
_AGENT_AND_NAMED = _with_conversation(conversations.c.name)
_AGENT_AND_CONVERSATION = _with_conversation(conversations.c.id)


def _conversation_of(row: RowMapping) -> Conversation:
    # An older release that changes the conversation removes the name from the document, but not from the column.
    return replace(from_json(row["document"], Conversation), name=row["name"])


def _values(conversation: Conversation) -> dict[str, object]:
    columns = columns_of(conversation, "id", "project_id", "agent_id", "name", "created_at", "updated_at")
    return {**columns, "document": document_of(conversation)}
