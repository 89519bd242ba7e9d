"""Archives, and which agents they are attached to."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import RowMapping
from sqlalchemy.dialects import postgresql

from shared.domain.errors import Conflict, NotFound
from shared.domain.ids import AgentId, ArchiveId, PassageId, ProjectId
from shared.domain.models import can_embed
from shared.domain.searches import AUTOMATIC_DESCRIPTION, MOST_WORDS, Archive, NewPassage, Passage, phrases_of, words_of
from shared.sql.access.audit import record
from shared.sql.connection import Connection
from shared.sql.engine import Store
from shared.sql.paging import Page, remember_place, rows_of_page
from shared.sql.tables import (
    agent_archives,
    agents,
    archives,
    columns_of,
    document_of,
    from_json,
    passage_tags,
    passage_vectors,
    passage_words,
    passages,
)

# The word index: the entries of a passage, and the ranking of passages by a query.
#
# Words are split and folded before they get here (`shared/domain/searches.py`), so a database splits at spaces alone,
# and a query has no operators but ours. Any of the query's words finds a passage; the more of them it has and the rarer
# they are, the higher it ranks. A word of three letters and more also finds words that begin with it.


SHORTEST_BEGINNING = 3
"""A query word with at least this many letters also matches longer words that begin with it."""

_ON_SQLITE = sa.table("passage_words", sa.column("rowid", sa.Integer), sa.column("words", sa.Text))
"""Both kinds of this table on SQLite have a row id."""


class WordRank(msgspec.Struct, frozen=True):
    """How a statement ranks passages by words: the index, the condition for a match, and the order, best first."""

    index: sa.FromClause
    number: sa.ColumnElement[int]
    matches: sa.ColumnElement[bool]
    order: sa.ColumnElement[Any]


async def index_words(connection: Connection, texts: Iterable[tuple[int, str]]) -> None:
    """Adds passages to the index, by their numbers."""
    if connection.dialect.name == "sqlite":
        rows = [{"rowid": number, "words": f" {' '.join(words_of(text))} "} for number, text in texts]
        # A plain table has the row id under the name of its key, and accepts either name.
        await connection.execute(sa.insert(_ON_SQLITE), rows)
        return
    words = sa.cast(sa.bindparam("lexemes", type_=sa.Text), postgresql.TSVECTOR)
    insert = sa.insert(passage_words).values(number=sa.bindparam("passage"), words=words)
    await connection.execute(insert, [{"passage": number, "lexemes": _lexemes(text)} for number, text in texts])


async def forget_words(connection: Connection, numbers: sa.ScalarSelect[Any]) -> None:
    """Removes the passages that the query selects from the index."""
    if connection.dialect.name == "sqlite":
        await connection.execute(sa.delete(_ON_SQLITE).where(_ON_SQLITE.c.rowid.in_(numbers)))
    else:
        await connection.execute(sa.delete(passage_words).where(passage_words.c.number.in_(numbers)))


async def word_ranking(connection: Connection, query: str) -> WordRank | None:
    """Returns the ranking by the words of the query; None if the query has no words."""
    phrases = [phrase[:MOST_WORDS] for phrase in phrases_of(query)[:MOST_WORDS]]
    if not phrases:
        return None
    if connection.dialect.name != "sqlite":
        return _on_postgres(phrases)
    return _with_fts5(phrases) if await _has_fts5(connection) else _word_by_word(phrases)


async def _has_fts5(connection: Connection) -> bool:
    made_by = "SELECT sql LIKE '%fts5%' FROM sqlite_master WHERE name = 'passage_words'"
    return bool((await connection.execute(sa.text(made_by))).scalar_one())


def _with_fts5(phrases: Sequence[Sequence[str]]) -> WordRank:
    wanted = " OR ".join(f'"{" ".join(phrase)}"{" *" if _is_beginning(phrase) else ""}' for phrase in phrases)
    table = sa.literal_column("passage_words", sa.Text)
    return WordRank(_ON_SQLITE, _ON_SQLITE.c.rowid, table.op("MATCH")(wanted), sa.func.bm25(table))


def _word_by_word(phrases: Sequence[Sequence[str]]) -> WordRank:
    found = [
        sa.case((_ON_SQLITE.c.words.contains(f" {' '.join(phrase)}{'' if _is_beginning(phrase) else ' '}"), 1), else_=0)
        for phrase in phrases
    ]
    score = reduce(lambda one, other: one + other, found)
    return WordRank(_ON_SQLITE, _ON_SQLITE.c.rowid, score > 0, score.desc())


def _on_postgres(phrases: Sequence[Sequence[str]]) -> WordRank:
    """Postgres' own rank does not know which words are rare, and would prefer a text with all the small words of a
    question. So each phrase is weighted as in BM25: the fewer of the matching passages have it, the more it counts."""
    words = passage_words.c.words
    queries = [_postgres_query(phrase) for phrase in phrases]
    found = [sa.cast(words.op("@@")(query), sa.Integer) for query in map(_as_query, queries)]
    score = reduce(lambda one, other: one + other, [hit * _rarity(hit) for hit in found])
    matches = words.op("@@")(_as_query(" | ".join(queries)))
    return WordRank(passage_words, passage_words.c.number, matches, score.desc())


def _rarity(hit: sa.ColumnElement[int]) -> sa.ColumnElement[float]:
    having = sa.func.sum(hit).over()
    return sa.func.ln(1 + (sa.func.count().over() - having + 0.5) / (having + 0.5))


def _postgres_query(phrase: Sequence[str]) -> str:
    if _is_beginning(phrase):
        return f"'{phrase[0]}':*"
    return "(" + " <-> ".join(f"'{word}'" for word in phrase) + ")"


def _as_query(text: str) -> sa.ColumnElement[Any]:
    return sa.cast(sa.literal(text, sa.Text), postgresql.TSQUERY)


def _is_beginning(phrase: Sequence[str]) -> bool:
    return len(phrase) == 1 and len(phrase[0]) >= SHORTEST_BEGINNING


def _lexemes(text: str) -> str:
    """The text's words as Postgres writes a tsvector. Postgres' own parser would split them again, by the locale."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for place, word in enumerate(words_of(text), start=1):
        places[word].append(str(place))
    return " ".join(f"'{word}':{','.join(where)}" for word, where in places.items())


# Rows of passages and of their tags, words and vectors, inside a caller's transaction.


STORER_EMBEDS_FOR = timedelta(minutes=1)
"""The time for the process that stored a passage to embed it; after that, maintenance embeds it."""


class _Document(msgspec.Struct, frozen=True):
    """Fields that no query filters by, and fields that keep the order in which the client gave them."""

    tags: list[str] = []
    metadata: dict[str, Any] = {}


SHOWN_PASSAGES: sa.Select[*tuple[Any, ...]] = sa.select(
    passages.c.number,
    passages.c.id,
    passages.c.project_id,
    passages.c.archive_id,
    passages.c.text,
    passages.c.document,
    passages.c.created_at,
    passages.c.updated_at,
    archives.c.embedding.label("model"),
    passage_vectors.c.vector,
).select_from(
    passages.join(archives, archives.c.id == passages.c.archive_id).outerjoin(
        passage_vectors, passage_vectors.c.number == passages.c.number
    )
)
"""Selects whole passages, with their numbers."""


def passage_of(row: RowMapping) -> Passage:
    """Converts a row of `SHOWN_PASSAGES` to a passage."""
    document = from_json(row["document"], _Document)
    columns = {name: value for name, value in row.items() if name not in ("number", "document")}
    return Passage(**columns, tags=document.tags, metadata=document.metadata)


async def insert_passages(
    connection: Connection,
    project_id: ProjectId,
    archive: Archive,
    new: Sequence[NewPassage],
    now: datetime,
    *,
    embeds_itself: bool,
) -> list[Passage]:
    """Stores passages in a locked archive and returns them as stored, in the order given.

    A passage whose id is stored already stays unchanged, so a repeated call stores nothing twice. `embeds_itself` says
    that the caller also requests the vectors; otherwise maintenance does so soon. Raises `InvalidRequest` for a text
    that cannot be stored, and `Conflict` for an id that another archive has.
    """
    if not new:
        return []
    embed_at = (now + STORER_EMBEDS_FOR if embeds_itself else now) if can_embed(archive.embedding) else None
    rows = [_values(project_id, archive.id, passage, now, embed_at) for passage in new]
    unless_there = connection.insert(passages).on_conflict_do_nothing(index_elements=[passages.c.id])
    added = await connection.execute(unless_there.returning(passages.c.id, passages.c.number), rows)
    numbers: dict[str, int] = {row.id: row.number for row in added}
    fresh = {passage.id: passage for passage in reversed(new) if passage.id in numbers}
    if fresh:
        await index_words(connection, [(numbers[one.id], one.text) for one in fresh.values()])
    tags = [
        {"passage_number": numbers[one.id], "tag": tag} for one in fresh.values() for tag in dict.fromkeys(one.tags)
    ]
    if tags:
        await connection.execute(sa.insert(passage_tags), tags)
    return await _stored(connection, project_id, archive.id, [passage.id for passage in new])


async def _stored(
    connection: Connection, project_id: ProjectId, archive_id: ArchiveId, ids: Sequence[PassageId]
) -> list[Passage]:
    found = await connection.execute(
        SHOWN_PASSAGES.where(
            passages.c.id.in_(ids), passages.c.project_id == project_id, passages.c.archive_id == archive_id
        )
    )
    stored = {row["id"]: passage_of(row) for row in found.mappings()}
    foreign = next((passage_id for passage_id in ids if passage_id not in stored), None)
    if foreign is not None:
        raise Conflict(f"there is a passage {foreign} in another archive: give another id")
    return [stored[passage_id] for passage_id in ids]


async def delete_passages(connection: Connection, condition: sa.ColumnElement[bool]) -> int:
    """Deletes the passages that meet the condition, with their tags, words and vectors. Returns their number."""
    found = sa.select(passages.c.number).where(condition)
    # Locks them first, in the order in which vectors are stored: otherwise a vector that another transaction stores
    # meanwhile would stay, or the two could deadlock.
    locked = found.order_by(passages.c.number).with_for_update().subquery()
    await connection.execute(sa.select(sa.func.count()).select_from(locked))
    numbers = found.scalar_subquery()
    await forget_words(connection, numbers)
    await connection.execute(sa.delete(passage_tags).where(passage_tags.c.passage_number.in_(numbers)))
    await connection.execute(sa.delete(passage_vectors).where(passage_vectors.c.number.in_(numbers)))
    return (await connection.execute(sa.delete(passages).where(condition))).rowcount


def _values(
    project_id: ProjectId, archive_id: ArchiveId, passage: NewPassage, now: datetime, embed_at: datetime | None
) -> dict[str, Any]:
    document_of(passage)  # the database must be able to store the text, too
    return {
        "id": passage.id,
        "project_id": project_id,
        "archive_id": archive_id,
        "text": passage.text,
        "document": document_of(_Document(list(dict.fromkeys(passage.tags)), passage.metadata)),
        "created_at": passage.created_at,
        "updated_at": now,
        "embed_at": embed_at,
    }


class ArchiveFilter(msgspec.Struct, frozen=True):
    """Which archives of a project a list shows. All given conditions must hold."""

    name: str | None = None
    agent_id: AgentId | None = None


class ArchiveStore(Store):
    """Reads and writes archives."""

    async def create(self, archive: Archive) -> Archive:
        """Stores an archive that no agent has yet."""
        async with self._database.write() as connection:
            await connection.execute(sa.insert(archives).values(_archive_values(archive)))
        return archive

    async def get(self, project_id: ProjectId, archive_id: ArchiveId) -> Archive:
        """One archive of this project. Raises `NotFound`."""
        async with self._database.read() as connection:
            return await load_archive(connection, project_id, archive_id)

    async def list(self, project_id: ProjectId, wanted: ArchiveFilter, page: Page) -> list[Archive]:
        """Returns a page of the project's archives. Raises `NotFound` for an agent that the project does not have."""
        conditions: list[sa.ColumnElement[bool]] = []
        if wanted.name is not None:
            conditions.append(archives.c.name == wanted.name)
        async with self._database.read() as connection:
            if wanted.agent_id is not None:
                await agent_row(connection, project_id, wanted.agent_id)
                conditions.append(archives.c.id.in_(archive_ids_of(project_id, wanted.agent_id)))
            rows = await rows_of_page(connection, archives, project_id, page, *conditions)
            return [_archive_of(row) for row in rows]

    async def update(
        self, project_id: ProjectId, archive_id: ArchiveId, *, name: str | None, description: str | None, now: datetime
    ) -> Archive:
        """Changes the given fields. Raises `NotFound`."""
        async with self._database.write() as connection:
            before = await load_archive(connection, project_id, archive_id, lock="update")
            archive = replace(
                before,
                name=before.name if name is None else name,
                description=before.description if description is None else description,
                updated_at=now,
            )
            await connection.execute(
                sa.update(archives).where(archives.c.id == archive_id).values(_archive_values(archive))
            )
            return archive

    async def delete(self, project_id: ProjectId, archive_id: ArchiveId) -> None:
        """Deletes an archive with its passages, and takes it from all agents. Raises `NotFound`."""
        async with self._database.write() as connection:
            await load_archive(connection, project_id, archive_id, lock="update")
            await _delete_archives(connection, [archive_id])
            await record(connection, project_id, "archive.deleted", archive_id)

    async def attach(self, project_id: ProjectId, agent_id: AgentId, archive_id: ArchiveId) -> None:
        """Attaches an archive to the agent; does nothing if it is attached already. Raises `NotFound`."""
        async with self._database.write() as connection:
            await agent_row(connection, project_id, agent_id, lock=True)
            await load_archive(connection, project_id, archive_id, lock="share")
            attached = archive_ids_of(project_id, agent_id).where(agent_archives.c.archive_id == archive_id)
            found = await connection.execute(attached)
            if found.one_or_none() is None:
                await _link(connection, agent_id, archive_id, is_own=False)

    async def detach(self, project_id: ProjectId, agent_id: AgentId, archive_id: ArchiveId) -> None:
        """Detaches an archive from the agent; the archive itself stays. Raises `NotFound`."""
        async with self._database.write() as connection:
            await agent_row(connection, project_id, agent_id)
            await load_archive(connection, project_id, archive_id)
            await connection.execute(
                sa.delete(agent_archives).where(
                    agent_archives.c.agent_id == agent_id, agent_archives.c.archive_id == archive_id
                )
            )


def archive_ids_of(project_id: ProjectId, agent_id: AgentId) -> sa.Select[*tuple[str]]:
    """Returns the query for the ids of the project's archives that the agent is attached to."""
    ours = sa.select(agent_archives.c.archive_id).join(archives, archives.c.id == agent_archives.c.archive_id)
    return ours.where(agent_archives.c.agent_id == agent_id, archives.c.project_id == project_id)


async def load_archive(
    connection: Connection, project_id: ProjectId, archive_id: ArchiveId, *, lock: str | None = None
) -> Archive:
    """One archive of this project. Raises `NotFound`. With `lock`, no other transaction can delete it until this one
    ends; with "update", no other transaction can store a passage in it either."""
    query = sa.select(archives).where(archives.c.id == archive_id, archives.c.project_id == project_id)
    if lock is not None:
        query = query.with_for_update(read=lock == "share")
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"Archive with ID {archive_id} not found")
    return _archive_of(row)


async def agent_row(
    connection: Connection, project_id: ProjectId, agent_id: AgentId, *, lock: bool = False
) -> RowMapping:
    """Returns name and document of an agent of this project. Raises `NotFound`. With `lock`, locks its row for this
    transaction."""
    is_meant = sa.and_(agents.c.id == agent_id, agents.c.project_id == project_id)
    query = sa.select(agents.c.name, agents.c.document).where(is_meant)
    found = await connection.execute(query.with_for_update(key_share=True) if lock else query)
    row = found.mappings().one_or_none()
    if row is None:
        raise NotFound(f"Agent with ID {agent_id} not found")
    return row


async def archive_for_insert(
    connection: Connection, project_id: ProjectId, agent_id: AgentId, new_id: ArchiveId, now: datetime
) -> Archive:
    """Returns the archive for the agent's new passages: the first one attached to it, or else a new one with this id
    and the agent's embedding model. Raises `NotFound` for an agent that the project does not have."""
    first = archive_ids_of(project_id, agent_id).order_by(agent_archives.c.number).limit(1)
    found = (await connection.execute(first)).scalar_one_or_none()
    if found is None:
        # If two first inserts come at once, the second waits here and then finds the archive of the first.
        agent = await agent_row(connection, project_id, agent_id, lock=True)
        found = (await connection.execute(first)).scalar_one_or_none()
        if found is None:
            return await _create_own(connection, project_id, agent_id, agent, new_id, now)
    return await load_archive(connection, project_id, ArchiveId(found), lock="share")


async def _create_own(
    connection: Connection,
    project_id: ProjectId,
    agent_id: AgentId,
    agent: RowMapping,
    archive_id: ArchiveId,
    now: datetime,
) -> Archive:
    archive = Archive(
        id=archive_id,
        project_id=project_id,
        name=f"{agent['name']}'s Archive",
        description=AUTOMATIC_DESCRIPTION,
        embedding=from_json(agent["document"], _AgentDocument).embedding,
        created_at=now,
        updated_at=now,
    )
    await connection.execute(sa.insert(archives).values(_archive_values(archive)))
    await _link(connection, agent_id, archive_id, is_own=True)
    return archive


class _AgentDocument(msgspec.Struct):
    """The only field of an agent that this module reads."""

    embedding: str | None = None


async def forget_agent(connection: Connection, project_id: ProjectId, agent_id: AgentId) -> None:
    """Detaches an agent that is about to be deleted from its archives. Also deletes the archive that was made for it,
    unless another agent uses that archive."""
    own = archive_ids_of(project_id, agent_id).where(agent_archives.c.is_own)
    shared = sa.select(agent_archives.c.archive_id).where(agent_archives.c.agent_id != agent_id)
    # The agent is locked before its archive, as by `attach`: otherwise the two could deadlock. Another agent may attach
    # the archive until it is locked, so this asks for that afterwards.
    await agent_row(connection, project_id, agent_id, lock=True)
    await connection.execute(own.with_for_update(of=archives))
    found = await connection.execute(own.where(agent_archives.c.archive_id.not_in(shared)))
    await _delete_archives(connection, list(found.scalars()))
    await connection.execute(sa.delete(agent_archives).where(agent_archives.c.agent_id == agent_id))


async def _delete_archives(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        for archive_id in ids:
            await remember_place(connection, archives, archive_id)
        # The archive is deleted first: a transaction that wants to store a passage in it waits for this one, and then
        # does not find the archive.
        await connection.execute(sa.delete(archives).where(archives.c.id.in_(ids)))
        await connection.execute(sa.delete(agent_archives).where(agent_archives.c.archive_id.in_(ids)))
        await delete_passages(connection, passages.c.archive_id.in_(ids))


async def _link(connection: Connection, agent_id: AgentId, archive_id: ArchiveId, *, is_own: bool) -> None:
    await connection.execute(sa.insert(agent_archives).values(agent_id=agent_id, archive_id=archive_id, is_own=is_own))


def _archive_of(row: RowMapping) -> Archive:
    return from_json(row["document"], Archive)


def _archive_values(archive: Archive) -> dict[str, Any]:
    columns = columns_of(archive, "id", "project_id", "name", "embedding", "created_at", "updated_at")
    return {**columns, "document": document_of(archive)}
