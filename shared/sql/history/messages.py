"""The messages of histories. Runs write them inside their transactions, workers read them for the model, and
`MessageLists` lists them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.concurrency import beside
from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, ConversationId, MessageId, ProjectId, RunId, ThreadId
from shared.domain.messages import AssistantMessage, ImportedMessage, Message, MessageBody, NewMessage
from shared.domain.runs import Compaction, Run
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.thread_queue import next_turn, oldest_in_progress, thread_lock
from shared.sql.run_tables import injected_messages, runs
from shared.sql.tables import SHOWN_MESSAGES, agents, from_json, made_of, messages, to_json


def message_of(row: Mapping[Any, Any]) -> Message:
    """The message of a row of `messages`."""
    return Message(
        id=row["id"],
        agent_id=row["agent_id"],
        thread_id=row["thread_id"],
        conversation_id=row["conversation_id"],
        run_id=row["run_id"],
        step_id=row["step_id"],
        created_at=row["created_at"],
        turn=row["turn"],
        position=row["position"],
        body=msgspec.json.decode(row["body"], type=MessageBody),
    )


FIRST_TURN = 0
"""The turn before the first run's."""

SYSTEM_POSITION = 1
"""The position of a history's system message, in the turn before the first run's."""


_IN_TURN = (messages.c.thread_id == sa.bindparam("of_thread"), messages.c.turn == sa.bindparam("of_turn"))
_LAST = sa.select(sa.func.max(messages.c.position)).where(*_IN_TURN).scalar_subquery()
_PLACES = sa.select(messages.c.id, messages.c.position)
_LAST_AND_KNOWN = sa.union_all(
    _PLACES.where(*_IN_TURN, messages.c.position == _LAST),
    _PLACES.where(messages.c.id.in_(sa.bindparam("of_ids", expanding=True))),
)  # No write reads a whole turn, which may have thousands of messages.


async def insert_messages(connection: Connection, run: Run, new: Sequence[NewMessage]) -> None:
    """Appends messages to the run's turn, deferred. Messages that the turn already has stay unchanged."""
    if not new or run.turn is None:
        return
    given = {"of_thread": run.thread_id, "of_turn": run.turn, "of_ids": [message.id for message in new]}
    known = {row.id: row.position for row in await connection.execute(_LAST_AND_KNOWN, given)}
    fresh = [message for message in new if message.id not in known]
    insert_of_run(connection, run, fresh, after=max(known.values(), default=0))


def insert_of_run(connection: Connection, run: Run, new: Sequence[NewMessage], *, after: int) -> list[dict[str, Any]]:
    """`insert_into_thread` for the turn of a run."""
    return insert_into_thread(
        connection,
        new,
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        turn=run.turn or FIRST_TURN,
        after=after,
    )


def insert_into_thread(
    connection: Connection,
    new: Sequence[NewMessage],
    *,
    agent_id: AgentId,
    thread_id: ThreadId,
    conversation_id: ConversationId | None,
    run_id: RunId | None,
    turn: int,
    after: int,
) -> list[dict[str, Any]]:
    """Appends messages to a turn of a thread, deferred. Returns their rows. `after` is the last used position of the
    turn."""
    if not new:
        return []
    thread = {"agent_id": agent_id, "thread_id": thread_id, "conversation_id": conversation_id, "run_id": run_id}
    rows = [
        thread | {"turn": turn, "position": position, "in_context": True} | _values(message)
        for position, message in enumerate(new, start=after + 1)
    ]
    connection.defer(_INSERT_MESSAGES, *rows)
    return rows


_INSERT_MESSAGES = sa.insert(messages)


def _values(message: NewMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "step_id": message.step_id,
        "sibling_id": message.body.sibling_id if isinstance(message.body, AssistantMessage) else None,
        "body": to_json(message.body),
        "created_at": message.created_at,
    }


async def import_history(connection: Connection, agent_id: AgentId, history: Sequence[ImportedMessage]) -> None:
    """Fills the default history of an agent that has its system message and nothing else. Messages outside the context
    count as compacted."""
    if not history:
        return
    last = {FIRST_TURN: SYSTEM_POSITION}
    thread = {"agent_id": agent_id, "thread_id": agent_id, "conversation_id": None, "run_id": None}
    rows: list[dict[str, Any]] = []
    for placed in history:
        last[placed.turn] = last.get(placed.turn, 0) + 1
        place = {"turn": placed.turn, "position": last[placed.turn], "in_context": placed.in_context}
        left = {"left_because": None if placed.in_context else "compacted"}
        rows.append(thread | place | left | _values(placed.message))
    await connection.execute(sa.insert(messages), rows)


IS_SYSTEM = sa.and_(messages.c.turn == FIRST_TURN, messages.c.position == SYSTEM_POSITION)
"""Whether a message is the system message of its history."""


async def clear_context(connection: Connection, thread_id: ThreadId) -> None:
    """Removes everything but the system message from a thread's context."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.thread_id == thread_id, messages.c.in_context, ~IS_SYSTEM)
        .values(in_context=False, left_because="reset")
    )


def is_of(project_id: ProjectId | sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the message belongs to one of the project's agents."""
    return sa.exists().where(agents.c.id == messages.c.agent_id, agents.c.project_id == project_id)


_CONTEXT = (
    sa.select(messages)
    .where(messages.c.thread_id == sa.bindparam("of_thread"), messages.c.in_context)
    .where(is_of(sa.bindparam("of_project", type_=sa.Text)))
    .order_by(messages.c.turn, messages.c.position)
)


def has_undelivered() -> sa.ColumnElement[bool]:
    """Whether a message waits for its delivery to the run that the parameter `run_id` names."""
    of_run = injected_messages.c.run_id == sa.bindparam("run_id", type_=sa.Text)
    return sa.exists().where(of_run, injected_messages.c.delivered_at.is_(None))


_CONTEXT_OF_RUN = _CONTEXT.where(messages.c.turn <= sa.bindparam("of_turn")).add_columns(
    has_undelivered().label("has_input")
)


class ContextOfRun(NamedTuple):
    """The messages that a run has to answer."""

    messages: Sequence[Message]
    """The messages in the context of its thread, in order, without the turns after its own."""
    has_input: bool
    """Whether messages wait for their delivery to the run. Not checked if there are no messages."""


class MessageStore(Store):
    """Reads the messages of contexts and runs, and empties contexts."""

    async def context(self, project_id: ProjectId, thread_id: ThreadId) -> list[Message]:
        """The messages in the context of one of the project's threads, in order."""
        async with self._database.read() as connection:
            found = await connection.execute(_CONTEXT, {"of_thread": thread_id, "of_project": project_id})
            return await made_of(found.mappings().all(), message_of, "body")

    async def context_of_run(self, run: Run) -> ContextOfRun:
        """Returns the messages that the run has to answer."""
        of_thread = {"of_thread": run.thread_id, "of_project": run.project_id}
        async with self._database.read() as connection:
            found = await connection.execute(_CONTEXT_OF_RUN, of_thread | {"of_turn": run.turn or 0, "run_id": run.id})
            rows = found.mappings().all()
        history = await made_of(rows, message_of, "body")
        return ContextOfRun(history, rows[0]["has_input"] if rows else True)

    async def is_empty(self, project_id: ProjectId, thread_id: ThreadId) -> bool:
        """Whether the context of one of the project's threads has only its system message, and no run of the thread is
        in progress."""
        async with self._database.read() as connection:
            known = await connection.execute(
                sa.select(messages.c.id)
                .where(messages.c.thread_id == thread_id, messages.c.in_context, ~IS_SYSTEM, is_of(project_id))
                .limit(1)
            )
            if known.one_or_none() is not None:
                return False
            active = await oldest_in_progress(connection, thread_id, runs.c.project_id == project_id)
            return active is None

    async def list_of_run(self, run: Run) -> list[Message]:
        """Returns a run's messages in order, without those that were rolled back."""
        return await self._listed(run.project_id, SHOWN_MESSAGES.where(messages.c.run_id == run.id))

    async def list_of_thread(self, project_id: ProjectId, thread_id: ThreadId) -> list[Message]:
        """Returns the messages of one of the project's threads in order, also those that have left the context, without
        those that were rolled back."""
        return await self._listed(project_id, sa.select(messages).where(messages.c.thread_id == thread_id))

    async def before(self, run: Run, most: int) -> list[Message]:
        """Returns the newest messages of a run's thread from before the run's own, oldest first, also those that have
        left the context, without the instructions and rolled back messages. A run that never had a turn gets all."""
        of_thread = (messages.c.thread_id == run.thread_id, is_listed(), ~IS_SYSTEM, is_of(run.project_id))
        query = sa.select(messages).where(*of_thread)
        if run.turn is not None:
            first = sa.select(sa.func.min(messages.c.position)).where(
                messages.c.thread_id == run.thread_id, messages.c.turn == run.turn, messages.c.run_id == run.id
            )
            is_earlier = sa.and_(messages.c.turn == run.turn, messages.c.position < first.scalar_subquery())
            query = query.where(sa.or_(messages.c.turn < run.turn, is_earlier))
        newest = query.order_by(messages.c.turn.desc(), messages.c.position.desc()).limit(most)
        async with self._database.read() as connection:
            found = await connection.execute(newest)
            return (await made_of(found.mappings().all(), message_of, "body"))[::-1]

    async def list_of_turn(self, run: Run) -> list[Message]:
        """Returns the messages of a run's turn in order, also those that have left the context, without those that were
        rolled back."""
        is_there = (messages.c.thread_id == run.thread_id, messages.c.turn == (run.turn or 0))
        return await self._listed(run.project_id, sa.select(messages).where(*is_there))

    async def _listed(self, project_id: ProjectId, query: sa.Select[*tuple[Any, ...]]) -> list[Message]:
        """Returns the project's messages of the query in order, without those that were rolled back."""
        ordered = query.where(is_listed(), is_of(project_id)).order_by(messages.c.turn, messages.c.position)
        async with self._database.read() as connection:
            found = await connection.execute(ordered)
            return await made_of(found.mappings().all(), message_of, "body")

    async def find(self, project_id: ProjectId, message_ids: Collection[MessageId]) -> list[Message]:
        """Returns the messages of this project with one of these ids; a message may have two ids."""
        is_wanted = sa.or_(messages.c.id.in_(message_ids), messages.c.sibling_id.in_(message_ids))
        async with self._database.read() as connection:
            found = await connection.execute(SHOWN_MESSAGES.where(is_wanted, is_listed(), is_of(project_id)))
            return await made_of(found.mappings().all(), message_of, "body")

    async def take_out(self, project_id: ProjectId, thread_id: ThreadId, message_id: MessageId) -> None:
        """Removes one message from the context of one of the project's threads. The caller has checked that the message
        has no call and no result of a call."""
        is_it = (messages.c.thread_id == thread_id, messages.c.id == message_id)
        async with self._database.write(None, thread_lock(thread_id)) as connection:
            gone = sa.update(messages).where(*is_it, is_of(project_id)).values(in_context=False, left_because="reset")
            await connection.execute(gone)

    async def reset(self, project_id: ProjectId, thread_id: ThreadId) -> None:
        """Empties the context of one of the project's threads, except for its system message.

        Raises `NotFound`, and `Conflict` while a run of the thread has not ended: the run's results would lack the
        calls that they answer.
        """
        async with self._database.write(None, thread_lock(thread_id)) as connection:
            ours = sa.select(messages.c.id).where(messages.c.thread_id == thread_id, is_of(project_id))
            if (await connection.execute(ours.limit(1))).one_or_none() is None:
                raise NotFound(f"No history with ID {thread_id} found")
            active = await oldest_in_progress(connection, thread_id)
            if active is not None:
                detail = f"run {active.run_id} has not ended: wait for it or cancel it"
                raise Conflict(f"{detail} before the messages are reset")
            await clear_context(connection, thread_id)
            await record(connection, project_id, "messages.reset", thread_id)


async def append_turn(
    connection: Connection,
    new: Sequence[NewMessage],
    agent_id: AgentId,
    thread_id: ThreadId,
    conversation_id: ConversationId | None,
) -> int:
    """Stores a turn without a run after all other turns of a thread. The writes are deferred. Returns the turn's
    number. The caller's transaction has the thread's lock."""
    turn = await next_turn(connection, thread_id)
    insert_into_thread(
        connection,
        new,
        agent_id=agent_id,
        thread_id=thread_id,
        conversation_id=conversation_id,
        run_id=None,
        turn=turn,
        after=0,
    )
    return turn


def is_listed() -> sa.ColumnElement[bool]:
    """Whether lists show the message: a message that was rolled back stays stored, and no list shows it."""
    return sa.or_(messages.c.in_context, messages.c.left_because != "rolled_back")


# The ids of the messages in a context. They are derived from the rows: a separately stored list could disagree with
# them.


_IDS = (
    sa.select(
        messages.c.thread_id,
        messages.c.id,
        messages.c.sibling_id,
        sa.case((messages.c.sibling_id.is_not(None), messages.c.body)),
    )
    .where(messages.c.thread_id.in_(sa.bindparam("thread_ids", expanding=True)), messages.c.in_context)
    .order_by(messages.c.thread_id, messages.c.turn, messages.c.position)
)


async def ids_in_context(connection: Connection, thread_ids: Collection[str]) -> dict[str, list[MessageId]]:
    """Returns the ids per thread, in the order in which clients see the messages; some rows are two messages."""
    found = await connection.execute(_IDS, {"thread_ids": list(thread_ids)})
    rows = found.all()
    return await beside(partial(_by_thread, rows), len(rows) * CHARACTERS_OF_AN_ID)


CHARACTERS_OF_AN_ID = 50
"""The cost of the id of a message, in characters of JSON that take as long to decode."""


def _by_thread(rows: Iterable[Sequence[Any]]) -> dict[str, list[MessageId]]:
    ids: dict[str, list[MessageId]] = {}
    for thread_id, message_id, sibling_id, body in rows:
        assistant = None if body is None else from_json(body, AssistantMessage)
        ids.setdefault(thread_id, []).extend(_shown(message_id, sibling_id, assistant))
    return ids


def ids_of(new: Sequence[NewMessage]) -> list[MessageId]:
    """Returns the same ids for messages that are not stored yet."""
    ids = list[MessageId]()
    for message in new:
        assistant = message.body if isinstance(message.body, AssistantMessage) else None
        ids += _shown(message.id, assistant and assistant.sibling_id, assistant)
    return ids


def _shown(message_id: MessageId, sibling_id: MessageId | None, body: AssistantMessage | None) -> list[MessageId]:
    if sibling_id is None:
        return [message_id]
    begins_with_sibling = body is not None and _begins_with_sibling(body)
    return [sibling_id, message_id] if begins_with_sibling else [message_id, sibling_id]


def _begins_with_sibling(body: AssistantMessage) -> bool:
    """Whether the second id comes first. Clients see calls before approval requests, and the second id belongs to the
    kind that the model named second."""
    return body.sibling_holds == "calls" and not body.text and body.reasoning is None


# One turn of a history, which a run reads and completes at its end. Inside a caller's transaction.


_ONE_ROW = sa.select(sa.literal(1)).subquery("one_row")


def with_turn(*asked: sa.ColumnElement[Any]) -> sa.Select[*tuple[Any, ...]]:
    """Joins a query with the messages of a turn, which the parameters `of_thread` and `of_turn` name."""
    in_turn = (messages.c.thread_id == sa.bindparam("of_thread"), messages.c.turn == sa.bindparam("of_turn"))
    # The query returns a row even if the turn has no message.
    each = sa.outerjoin(_ONE_ROW, messages, sa.and_(*in_turn))
    return sa.select(*asked, messages).select_from(each).order_by(messages.c.position)


_TURN = with_turn()


async def messages_of_turn(connection: Connection, run: Run) -> list[RowMapping]:
    """The rows of the run's turn, in order."""
    found = await connection.execute(_TURN, {"of_thread": run.thread_id, "of_turn": run.turn})
    return in_turn(found.mappings().all())


def in_turn(rows: Sequence[RowMapping]) -> list[RowMapping]:
    """Returns the messages among the rows of a query of `with_turn`."""
    return [row for row in rows if row["id"] is not None]


def add_to_turn(
    connection: Connection, run: Run, rows: Sequence[RowMapping], new: Sequence[NewMessage]
) -> list[Message]:
    """Appends messages to the run's turn, which has these rows, deferred; messages that it already has stay unchanged.
    Returns all messages of the turn that are in the context, in order."""
    known = {row["id"] for row in rows}
    fresh = [message for message in new if message.id not in known]
    added = insert_of_run(connection, run, fresh, after=rows[-1]["position"] if rows else 0)
    return [message_of(row) for row in [*(row for row in rows if row["in_context"]), *added]]


# Summaries that replace messages, and the rollback of a run's part of a history. Inside a caller's transaction.


IDS_AT_ONCE = 500
"""Ids in one statement: databases limit the parameters of a query."""


def compacted_by(run_id: RunId) -> str:
    """The reason why a message has left the context: a summary of this run replaced it."""
    return f"compacted by {run_id}"


async def has_compacted_its_own(connection: Connection, run_id: RunId) -> bool:
    """Whether a summary of the run replaces steps of the run itself."""
    found = await connection.execute(
        sa.select(messages.c.id)
        .where(messages.c.run_id == run_id, messages.c.turn != FIRST_TURN)
        .where(messages.c.left_because == compacted_by(run_id))
        .limit(1)
    )
    return found.one_or_none() is not None


async def replace_by_summary(connection: Connection, run: Run, compaction: Compaction) -> None:
    """Removes messages from the context and puts a summary before those that stay. A repetition changes nothing."""
    known = await connection.execute(sa.select(messages.c.id).where(messages.c.id == compaction.summary.id))
    if known.one_or_none() is not None:
        return
    for start in range(0, len(compaction.gone), IDS_AT_ONCE):
        some = compaction.gone[start : start + IDS_AT_ONCE]
        await connection.execute(
            sa.update(messages)
            .where(messages.c.thread_id == run.thread_id, messages.c.id.in_(some))
            .values(in_context=False, left_because=compacted_by(run.id))
        )
    # Turn 0 comes before the turns of runs. It has the system message, the messages that an agent was created with, and
    # the summaries.
    last = await connection.execute(
        sa.select(sa.func.coalesce(sa.func.max(messages.c.position), 0)).where(
            messages.c.thread_id == run.thread_id, messages.c.turn == FIRST_TURN
        )
    )
    insert_into_thread(
        connection,
        [compaction.summary],
        agent_id=run.agent_id,
        thread_id=run.thread_id,
        conversation_id=run.conversation_id,
        run_id=run.id,
        turn=FIRST_TURN,
        after=last.scalar_one(),
    )


async def take_out_of_context(connection: Connection, run_id: RunId) -> None:
    """Removes the run's own messages from the context and from every list; the rows stay. Its summaries stay, too: they
    replace messages of other turns."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.run_id == run_id, messages.c.turn != FIRST_TURN)
        .values(in_context=False, left_because="rolled_back")
    )


async def roll_back(connection: Connection, run: Run) -> None:
    """Restores the history to its state before the run: the run's messages and summaries leave the context and every
    list, and the messages that those summaries replaced return."""
    await connection.execute(
        sa.update(messages)
        .where(messages.c.thread_id == run.thread_id, messages.c.left_because == compacted_by(run.id))
        .values(in_context=True, left_because=None)
    )
    await connection.execute(
        sa.update(messages).where(messages.c.run_id == run.id).values(in_context=False, left_because="rolled_back")
    )
