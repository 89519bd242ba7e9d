"""Lists of messages that clients page through, of a thread, a run, a step, an agent or a project; and a search."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping

from shared.domain.ids import AgentId, ConversationId, MessageId, ProjectId, RunId, StepId, ThreadId
from shared.domain.messages import Message
from shared.domain.searches import MOST_WORDS, TAG_OF_ROLE, Role, has_words, plain_parts
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.history.messages import is_listed, is_of, message_of
from shared.sql.paging import contains
from shared.sql.run_tables import steps
from shared.sql.tables import (
    SAID_BY_USERS,
    SHOWN_MESSAGES,
    agents,
    conversations,
    from_json,
    made_of,
    messages,
    shown_messages,
    step_of,
)

Order = Literal["asc", "desc"]

LEAST_AGAIN = 1000
"""Rows of a second read."""

MOST_AT_ONCE = 20_000
"""The most rows of one read, of which a filter may drop most. The database sorts all rows for each read, so a long list
takes few reads."""

LONGEST_PAGE = 32_000_000
"""Characters of the messages on one page, and of one read. A message alone may be longer."""

MOST_AT_FIRST = 200
"""The most rows of the first read, whose lengths are still unknown."""

GROWTH = 4
"""The factor by which each read is longer than the one before."""


class MessageFilter(msgspec.Struct, frozen=True):
    """Which of a project's messages a list shows. All given conditions must hold; an agent means all of its
    histories."""

    project_id: ProjectId
    thread_id: ThreadId | None = None
    run_id: RunId | None = None
    step_id: StepId | None = None
    agent_id: AgentId | None = None
    is_default: bool = False
    """Only the agents' default histories, no conversations."""

    @property
    def is_of_one_thread(self) -> bool:
        """Whether all the messages are of one history."""
        return self.thread_id is not None or self.run_id is not None or self.step_id is not None


_NEWEST = (
    sa.select(messages.c.id, messages.c.run_id, messages.c.turn, messages.c.position, messages.c.body)
    .where(messages.c.thread_id == sa.bindparam("of_thread"), is_listed())
    .where(is_of(sa.bindparam("of_project", type_=sa.Text)))
    .order_by(messages.c.turn.desc(), messages.c.position.desc())
    .limit(sa.bindparam("among"))
    .subquery()
)
_NEWEST_SAID = (
    sa.select(_NEWEST.c.id, _NEWEST.c.run_id, _NEWEST.c.body)
    .where(_NEWEST.c.body.startswith(SAID_BY_USERS, autoescape=True))
    .order_by(_NEWEST.c.turn, _NEWEST.c.position)
)


class _Named(msgspec.Struct, frozen=True):
    """The part of a user's message that names it."""

    otid: str | None = None


def _name_of(row: RowMapping) -> tuple[str, RunId | None]:
    return from_json(row["body"], _Named).otid or row["id"], row["run_id"]


class MessageLists(Store):
    """Lists and searches messages. Lists leave out messages that were rolled back."""

    async def page(
        self,
        of: MessageFilter,
        *,
        limit: int,
        before: MessageId | None = None,
        after: MessageId | None = None,
        order: Order = "desc",
        is_wanted: Callable[[Message], bool] | None = None,
    ) -> list[Message]:
        """A page, listed oldest first. `desc` takes the newest that fit, `asc` the oldest.

        `after` means newer than, `before` older than, in either order; a cursor that is not in the list is ignored. The
        page has `limit` matching messages, unless there are fewer or they are too long together.
        """
        async with self._database.read() as connection:
            whole, keys = _query(await _narrowed(connection, of))
            query = whole
            for cursor, is_newer in ((after, True), (before, False)):
                place = None if cursor is None else await _place_of(connection, whole, keys, cursor)
                if place is not None:
                    query = query.where(_is_behind(keys, place, is_newer=is_newer))
            query = query.where(is_listed())
            found = await _collect(connection, query, keys, limit, is_wanted, ascending=order == "asc")
        return found if order == "asc" else found[::-1]

    async def newest_turns(self, of: MessageFilter, *, limit: int) -> list[Message]:
        """The newest messages of one history, listed oldest first, as many as fit: whole turns, unless only a part of
        one fits."""
        found = await self.page(of, limit=limit)
        first = await self.page(of, limit=1, order="asc")
        if not found or [found[0].id] == [message.id for message in first]:
            return found
        whole = [message for message in found if message.turn != found[0].turn]
        return whole or found

    async def newest_said(self, project_id: ProjectId, thread_id: ThreadId, among: int) -> dict[str, RunId | None]:
        """Returns the runs of the users' messages among the newest ones of one of the project's threads, by the
        client's id for the message, or else its own id."""
        given = {"of_thread": thread_id, "of_project": project_id, "among": among}
        async with self._database.read() as connection:
            rows = (await connection.execute(_NEWEST_SAID, given)).mappings().all()
            return dict(await made_of(rows, _name_of, "body"))

    async def search(
        self,
        project_id: ProjectId,
        words: Sequence[str],
        *,
        agent_id: AgentId | None = None,
        conversation_id: ConversationId | None = None,
        roles: Collection[Role] = ("user", "assistant"),
        limit: int = 50,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> list[Message]:
        """Returns the project's messages that contain all the words, in any order and in any case; newest first.

        A word may be part of a longer one. Without words: all messages of these roles. Words beyond `MOST_WORDS` are
        left out. `start` and `end` are both inclusive.
        """
        wanted_words, wanted_roles = list(dict.fromkeys(words))[:MOST_WORDS], frozenset(roles)
        listed = [is_listed()]
        if start is not None:
            listed.append(messages.c.created_at >= start)
        if end is not None:
            listed.append(messages.c.created_at <= end)
        if conversation_id is not None:
            listed.append(messages.c.thread_id == conversation_id)
        of = MessageFilter(project_id, agent_id=agent_id)
        # Behind policies, Postgres takes each word for a rare one. The offset has it find the project's messages first;
        # otherwise it compares each message that has a frequent word with each agent.
        among = _of_owner(sa.select(messages), messages, of).where(*listed).offset(sa.literal_column("0")).subquery()
        # Every message that has the words has these parts of them, however it is stored. Python checks the rest: SQLite
        # ignores the case of ASCII letters only, and a quote is stored as two. A word may have many parts, and each is
        # a condition: the first ones narrow the search enough.
        parts = dict.fromkeys(part for word in wanted_words for part in plain_parts(word))
        said = [sa.or_(*(_is_of_role(among.c.body, role) for role in sorted(wanted_roles)))]
        said += [contains(among.c.body, part) for part in list(parts)[:MOST_WORDS]]
        keys = [among.c[name] for name in ("created_at", "thread_id", "turn", "position")]
        query = shown_messages(among).where(*said)
        async with self._database.read() as connection:
            return await _collect(
                connection,
                query,
                keys,
                limit,
                lambda message: has_words(message.body, wanted_words, wanted_roles),
                ascending=False,
            )


Keys = Sequence[sa.ColumnElement[Any]]
Query = sa.Select[*tuple[Any, ...]]


def _query(of: MessageFilter) -> tuple[Query, Keys]:
    """Returns the query for the messages, and the keys that order them.

    Turns of several histories are ordered by when they began. The messages of a turn stay together, so that clock
    differences cannot put an answer before its question.
    """
    query: Query = SHOWN_MESSAGES
    for column, wanted in ((messages.c.thread_id, of.thread_id), (messages.c.run_id, of.run_id)):
        query = query if wanted is None else query.where(column == wanted)
    if of.step_id is not None:
        of_run = messages.c.run_id == sa.select(steps.c.run_id).where(steps.c.id == of.step_id).scalar_subquery()
        is_its_question = sa.and_(of_run, sa.literal(of.step_id) == step_of(messages))
        query = query.where(sa.or_(messages.c.step_id == of.step_id, is_its_question))
    if of.is_default:
        query = query.where(messages.c.conversation_id.is_(None))
    place = [messages.c.turn, messages.c.position]
    if of.is_of_one_thread:
        return _of_owner(query, messages, of), place
    keys = [_FIRST.c.created_at, _FIRST.c.thread_id, _FIRST.c.turn, messages.c.position]
    query = query.join(_FIRST, _BEGINS)
    # SQLite would begin with a joined table of agents, and sort all messages of the project.
    return (query.where(is_of(of.project_id)) if of.agent_id is None else _of_owner(query, _FIRST, of)), keys


_FIRST = messages.alias("first")
_BEGINS = sa.and_(
    *(_FIRST.c[name] == messages.c[name] for name in ("thread_id", "turn")),
    _FIRST.c.position == sa.literal(1, literal_execute=True),  # the text of the partial index
)


async def _narrowed(connection: Connection, of: MessageFilter) -> MessageFilter:
    """Narrows the filter to one thread if the list is of one thread: a page of it costs the same however long the
    history is.

    An index of the turns' first messages orders several histories.
    """
    if of.agent_id is None or of.is_of_one_thread:
        return of
    talks = sa.select(conversations.c.id).where(conversations.c.agent_id == of.agent_id).limit(1)
    has_conversations = (await connection.execute(talks)).one_or_none() is not None
    return of if has_conversations else MessageFilter(of.project_id, thread_id=ThreadId(of.agent_id))


def _of_owner(query: Query, table: sa.FromClause, of: MessageFilter) -> Query:
    if of.agent_id is not None:
        query = query.where(table.c.agent_id == of.agent_id)
    return query.join(agents, agents.c.id == table.c.agent_id).where(agents.c.project_id == of.project_id)


def _is_of_role(body: sa.ColumnElement[str], role: Role) -> sa.ColumnElement[bool]:
    # A body begins with its tag.
    return body.startswith(f'{{"type":"{TAG_OF_ROLE[role]}"', autoescape=True)


async def _place_of(
    connection: Connection, query: Query, keys: Keys, message_id: MessageId
) -> Sequence[sa.ColumnElement[Any]] | None:
    is_it = sa.or_(messages.c.id == message_id, messages.c.sibling_id == message_id)
    row = (await connection.execute(query.with_only_columns(*keys).where(is_it))).one_or_none()
    return None if row is None else _literals(keys, row)


def _literals(keys: Keys, values: Sequence[Any]) -> Sequence[sa.ColumnElement[Any]]:
    return [sa.literal(value, key.type) for key, value in zip(keys, values, strict=True)]


def _is_behind(keys: Keys, place: Sequence[sa.ColumnElement[Any]], *, is_newer: bool) -> sa.ColumnElement[bool]:
    """Compares the first key once more by itself: no index finds a row whose keys are in two tables."""
    row, other = sa.tuple_(*keys), sa.tuple_(*place)
    return sa.and_(keys[0] >= place[0], row > other) if is_newer else sa.and_(keys[0] <= place[0], row < other)


async def _collect(
    connection: Connection,
    query: Query,
    keys: Keys,
    limit: int,
    is_wanted: Callable[[Message], bool] | None,
    *,
    ascending: bool,
) -> list[Message]:
    """Returns the first matching messages in the order of the keys, at most `limit` and as many as fit into a page."""
    ordered = query.order_by(*(key if ascending else key.desc() for key in keys))
    ordered = ordered.add_columns(*(key.label(f"key_{number}") for number, key in enumerate(keys)))
    collected: list[Message] = []
    room, at_once, last = LONGEST_PAGE, min(limit, MOST_AT_FIRST), None

    def looked_at(row: RowMapping) -> Message | None:
        message = message_of(row)
        return message if is_wanted is None or is_wanted(message) else None

    while True:
        rest = ordered
        if last is not None:
            rest = ordered.where(_is_behind(keys, last, is_newer=ascending))
        rows = (await connection.execute(rest.limit(at_once))).mappings().all()
        for row, message in zip(rows, await made_of(rows, looked_at, "body"), strict=True):
            if message is None:
                continue
            room -= len(row["body"])
            if room < 0 and collected:
                return collected
            collected.append(message)
            if len(collected) == limit:
                return collected
        if len(rows) < at_once:
            return collected
        fitting = LONGEST_PAGE * len(rows) // sum(len(row["body"]) for row in rows)
        last = _literals(keys, [rows[-1][f"key_{number}"] for number in range(len(keys))])
        at_once = min(max(at_once * GROWTH, LEAST_AGAIN), MOST_AT_ONCE, max(fitting, 1))
