"""The index of words: what is written into it with each passage, and the ranking that a query gets from it.

Words are cut and folded before they get here (`shared/domain/words.py`), so a database splits at spaces and nothing
else, and a query has no operators but ours. A passage is found by any of the query's words; the more of them and the
rarer they are, the higher it ranks. A word of three letters and more also finds words that begin with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from shared.domain.words import MOST_WORDS, phrases_of, words_of
from shared.sql.connection import Connection
from shared.sql.tables import passage_words

SHORTEST_BEGINNING = 3
"""Letters from which on a word stands for all words that begin with it."""

_ON_SQLITE = sa.table("passage_words", sa.column("rowid", sa.Integer), sa.column("words", sa.Text))
"""Both kinds of the table on SQLite have a row id."""


class WordRank(msgspec.Struct, frozen=True):
    """How a statement ranks passages by words: the index, which of its rows match, and the order, the best first."""

    index: sa.FromClause
    number: sa.ColumnElement[int]
    matches: sa.ColumnElement[bool]
    order: sa.ColumnElement[Any]


async def index_words(connection: Connection, texts: Iterable[tuple[int, str]]) -> None:
    """Adds passages to the index, by their numbers."""
    if connection.dialect.name == "sqlite":
        rows = [{"rowid": number, "words": f" {' '.join(words_of(text))} "} for number, text in texts]
        # A plain table has the row id under the name of its key, and takes it by either.
        await connection.execute(sa.insert(_ON_SQLITE), rows)
        return
    words = sa.cast(sa.bindparam("lexemes", type_=sa.Text), postgresql.TSVECTOR)
    insert = sa.insert(passage_words).values(number=sa.bindparam("passage"), words=words)
    await connection.execute(insert, [{"passage": number, "lexemes": _lexemes(text)} for number, text in texts])


async def forget_words(connection: Connection, numbers: sa.ScalarSelect[Any]) -> None:
    """Takes the passages that the query names out of the index."""
    if connection.dialect.name == "sqlite":
        await connection.execute(sa.delete(_ON_SQLITE).where(_ON_SQLITE.c.rowid.in_(numbers)))
    else:
        await connection.execute(sa.delete(passage_words).where(passage_words.c.number.in_(numbers)))


async def word_ranking(connection: Connection, query: str) -> WordRank | None:
    """The ranking by the words of the query; None when it has none."""
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
    """Postgres' own rank does not know which words are rare, and would prefer a text that has all of a question's small
    words. So each phrase counts as BM25 has it, by how few of the passages that match have it."""
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
    """The text's words as Postgres writes a tsvector. Its own parser would cut them once more, by the locale."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for place, word in enumerate(words_of(text), start=1):
        places[word].append(str(place))
    return " ".join(f"'{word}':{','.join(where)}" for word, where in places.items())
