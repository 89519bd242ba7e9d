"""The tables. Migrations in `migrations/` bring a database to this shape; a test holds the two together.

A struct of `shared.domain` that stores read and write whole is JSON text in a column. A field by which a query filters,
orders or guards has its own column. `document_of` refuses a text that Postgres could not return.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from shared.concurrency import beside
from shared.domain.errors import InvalidRequest

Struct = TypeVar("Struct")
Noun = TypeVar("Noun")


def to_json(value: Any) -> str:
    """Returns a struct, or a list of structs, as JSON text."""
    return msgspec.json.encode(value).decode()


def from_json(text: str, kind: type[Struct]) -> Struct:
    """Returns the struct of a JSON column."""
    return msgspec.json.decode(text, type=kind)


def fields_of(row: RowMapping, kind: type[msgspec.Struct], *, beside: str = "") -> dict[str, Any]:
    """Returns the columns of a row that are fields of the struct under the same names, without the one named by
    `beside`."""
    return {name: row[name] for name in kind.__struct_fields__ if name != beside}


def columns_of(value: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Returns the fields of a struct with these names, for the columns of the same names."""
    return {name: getattr(value, name) for name in names}


def document_of(value: msgspec.Struct | dict[str, Any]) -> str:
    """Returns a struct, or the fields of one, as JSON text. Raises `InvalidRequest` for a NUL or half a surrogate pair
    in one of its texts.

    JSON allows a NUL, but then every query of Postgres that reads a field of the document fails, even if it wants other
    rows.
    """
    try:
        document = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("A text contains half a surrogate pair, which is no character: remove it") from error
    # An escaped backslash is written twice, and `u0000` may follow it.
    if "\\u0000" in document.replace("\\\\", ""):
        raise InvalidRequest("A text contains a NUL character, which cannot be stored: remove it")
    return document


CHARACTERS_OF_A_ROW = 500
"""The cost of a row without its long columns, in characters of JSON that take as long to decode."""


async def made_of(rows: Sequence[RowMapping], make: Callable[[RowMapping], Noun], long_column: str) -> list[Noun]:
    """Returns `make(row)` for each row, in order. The long column is the one that takes longest to decode. Many or long
    rows are decoded on a thread, so that the event loop does not wait."""
    size = sum(CHARACTERS_OF_A_ROW + len(row[long_column] or "") for row in rows)
    return await beside(partial(_made, rows, make), size)


def _made(rows: Sequence[RowMapping], make: Callable[[RowMapping], Noun]) -> list[Noun]:
    return [make(row) for row in rows]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Returns a time as it is stored: microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


class UtcMoment(sa.TypeDecorator[datetime]):
    """An aware datetime, stored as microseconds since 1970: on both databases it is exact, ordered, and the same."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else microseconds(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return None if value is None else EPOCH + timedelta(microseconds=int(value))


class VectorNumbers(sa.TypeDecorator[Sequence[float]]):
    """Numbers of single precision: bytes on SQLite; on Postgres an array, which pgvector can read if it is
    installed."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.LargeBinary() if dialect.name == "sqlite" else postgresql.ARRAY(sa.REAL))

    def process_bind_param(self, value: Sequence[float] | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return array("f", value).tobytes() if dialect.name == "sqlite" else list(value)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> Sequence[float] | None:
        if value is None or dialect.name != "sqlite":
            return value
        numbers = array("f")
        numbers.frombytes(value)
        return numbers


BigNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def listed() -> Iterator[sa.Column[Any]]:
    """Columns of every row that clients list: the number that orders the rows, and the public id."""
    yield sa.Column("number", BigNumber, primary_key=True, autoincrement=True)
    yield sa.Column("id", sa.Text, nullable=False, unique=True)


def times(*names: str, nullable: bool = False) -> Iterator[sa.Column[datetime]]:
    """Columns of times; every row has each of them unless they are `nullable`."""
    return (sa.Column(name, UtcMoment, nullable=nullable) for name in names)


def texts(*names: str, nullable: bool = False) -> Iterator[sa.Column[str]]:
    """Columns of texts; every row has each of them unless they are `nullable`."""
    return (sa.Column(name, sa.Text, nullable=nullable) for name in names)


def where(condition: str) -> dict[str, Any]:
    """Options of a partial index."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


agents = sa.Table(
    "agents",
    metadata,
    *listed(),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    *texts("name", "document"),
    sa.Column("last_stop_reason", sa.Text),
    *times("created_at", "updated_at"),
)

agent_tags = sa.Table(
    "agent_tags",
    metadata,
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True, index=True),
)

agent_tools = sa.Table(
    "agent_tools",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("tool_id", sa.Text, nullable=False, index=True),
    sa.UniqueConstraint("agent_id", "tool_id"),
)

agent_blocks = sa.Table(
    "agent_blocks",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("block_id", sa.Text, nullable=False, index=True),
    sa.UniqueConstraint("agent_id", "block_id"),
)

tools = sa.Table(
    "tools",
    metadata,
    *listed(),
    *texts("project_id", "name", "document"),
    *times("created_at", "updated_at"),
    sa.UniqueConstraint("project_id", "name"),
)

blocks = sa.Table(
    "blocks",
    metadata,
    *listed(),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    *texts("label", "document"),
    *times("created_at", "updated_at"),
)

conversations = sa.Table(
    "conversations",
    metadata,
    *listed(),
    *texts("project_id", "agent_id", "document"),
    *times("created_at", "updated_at"),
    sa.Column("name", sa.Text),
    sa.Index("ix_conversations_agent_id_number", "agent_id", "number"),
    sa.Index("ix_conversations_project_id_number", "project_id", "number"),
    sa.Index("uq_conversations_agent_id_name", "agent_id", "name", unique=True, **where("name IS NOT NULL")),
)

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    sa.Column("thread_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text),
    sa.Column("run_id", sa.Text, index=True),
    sa.Column("step_id", sa.Text, index=True),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("sibling_id", sa.Text, index=True),
    sa.Column("in_context", sa.Boolean, nullable=False),
    sa.Column("left_because", sa.Text),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Index("uq_messages_thread_turn_position", "thread_id", "turn", "position", unique=True),
    # For lists of all histories of an agent, and of a project: first messages give the times of turns.
    sa.Index("ix_messages_begins", "agent_id", "created_at", "thread_id", "turn", **where("position = 1")),
    sa.Index("ix_messages_begun", "created_at", "thread_id", "turn", **where("position = 1")),
    sa.Index(
        "ix_messages_in_context",
        *("thread_id", "turn", "position"),
        sqlite_where=sa.text("in_context = 1"),
        postgresql_where=sa.text("in_context"),
    ),
)

SAID_BY_USERS = '{"type":"user",'
"""How the stored body of a user's message begins."""

_LATER = messages.alias("later")


def step_of(among: sa.FromClause) -> sa.ColumnElement[str | None]:
    """The step of a message. A user's message is stored before any step, and belongs to the step that answers it."""
    answered_in = (
        sa.select(_LATER.c.step_id)
        .where(*(_LATER.c[name] == among.c[name] for name in ("thread_id", "turn", "run_id")))
        .where(_LATER.c.position > among.c.position, _LATER.c.step_id.is_not(None))
        .order_by(_LATER.c.position)
        .limit(1)
        .correlate(among)
        .scalar_subquery()
    )
    is_said = among.c.body.startswith(SAID_BY_USERS, autoescape=True)
    return sa.case((is_said, answered_in), else_=among.c.step_id)


def shown_messages(among: sa.FromClause) -> sa.Select[Any]:
    """Selects messages for readers."""
    own = (column for column in among.c if column.name != "step_id")
    return sa.select(*own, step_of(among).label("step_id"))


SHOWN_MESSAGES = shown_messages(messages)

deleted_rows = sa.Table(
    "deleted_rows",
    metadata,
    # The places that deleted rows had in lists, for cursors that name these rows.
    sa.Column("entry", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
)

archives = sa.Table(
    "archives",
    metadata,
    *listed(),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("embedding", sa.Text),
    sa.Column("document", sa.Text, nullable=False),
    *times("created_at", "updated_at"),
)

agent_archives = sa.Table(
    "agent_archives",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("archive_id", sa.Text, nullable=False, index=True),
    # The agent's first passage created the archive.
    sa.Column("is_own", sa.Boolean, nullable=False),
    sa.UniqueConstraint("agent_id", "archive_id"),
)

passages = sa.Table(
    "passages",
    metadata,
    *listed(),
    *texts("project_id", "archive_id", "text", "document"),
    *times("created_at", "updated_at"),
    # When to request its vector next; NULL if there is no embedding model, or the request is done.
    sa.Column("embed_at", UtcMoment),
    sa.Index("ix_passages_archive_id_created_at", "archive_id", "created_at", "number"),
    sa.Index("ix_passages_project_id_created_at", "project_id", "created_at", "number"),
    sa.Index("ix_passages_embed_at", "embed_at", **where("embed_at IS NOT NULL")),
)

passage_tags = sa.Table(
    "passage_tags",
    metadata,
    sa.Column("passage_number", BigNumber, primary_key=True, autoincrement=False),
    sa.Column("tag", sa.Text, primary_key=True),
)

passage_words = sa.Table(
    "passage_words",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=False),
    sa.Column("words", postgresql.TSVECTOR().with_variant(sa.Text(), "sqlite"), nullable=False),
    sa.Index("ix_passage_words_words", "words", postgresql_using="gin"),
)
"""The table on Postgres. On SQLite it is a table of FTS5, or a plain one of that shape if SQLite lacks FTS5."""

passage_vectors = sa.Table(
    "passage_vectors",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("dimensions", sa.Integer, nullable=False),
    # Precedes the long column, so that SQLite reads it without that one.
    sa.Column("signs", sa.LargeBinary, nullable=False),
    sa.Column("vector", VectorNumbers, nullable=False),
)

webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    *listed(),
    *texts("project_id", "dialect", "name", "url"),
    # JSON list of texts.
    sa.Column("outcomes", sa.Text, nullable=False),
    # Encrypted if there is a key, like the former secret.
    *texts("secret", "secret_hint"),
    sa.Column("former_secret", sa.Text),
    sa.Column("former_until", UtcMoment),
    *times("created_at", "updated_at"),
    sa.Index("ix_webhook_endpoints_project_id_number", "project_id", "number"),
)

mcp_servers = sa.Table(
    "mcp_servers",
    metadata,
    *listed(),
    *texts("project_id", "name", "document"),
    # JSON object of texts, encrypted if there is a key. The document does not contain them.
    sa.Column("secrets", sa.Text, nullable=False),
    *times("created_at", "updated_at"),
    # The process that renews the token of a sign-in, and the time until which no other process may.
    sa.Column("renewed_by", sa.Text),
    sa.Column("renewal_until", UtcMoment),
    sa.UniqueConstraint("project_id", "name"),
    sa.Index("ix_mcp_servers_project_id_number", "project_id", "number"),
)

# Sign-ins at MCP servers that have begun. Each is needed for minutes.
mcp_sign_ins = sa.Table(
    "mcp_sign_ins",
    metadata,
    *listed(),
    *texts("project_id", "server_id"),
    # SHA-256 of the state that the browser returns.
    sa.Column("state_hash", sa.Text, nullable=False, unique=True),
    *texts("status", "problem", "sealed"),
    # JSON object of texts.
    sa.Column("begun_by", sa.Text, nullable=False),
    *times("created_at", "expires_at"),
    sa.Index("ix_mcp_sign_ins_project_id_number", "project_id", "number"),
)


agent_groups = sa.Table(
    "agent_groups",
    metadata,
    *listed(),
    *texts("project_id", "description"),
    sa.Column("manager_agent_id", sa.Text, nullable=False, unique=True),
    sa.Column("frequency", sa.Integer),
    sa.Column("turns_counter", sa.Integer),
    sa.Column("last_message_id", sa.Text),
    sa.Column("is_on", sa.Boolean, nullable=False),
    sa.Column("hidden", sa.Boolean),
    *times("created_at", "updated_at"),
    sa.Index("ix_agent_groups_project_id_number", "project_id", "number"),
)

agent_group_members = sa.Table(
    "agent_group_members",
    metadata,
    # In the order of `number`. The manager is no member.
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    *texts("project_id", "group_id"),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    sa.UniqueConstraint("group_id", "agent_id"),
)

group_turns = sa.Table(
    "group_turns",
    metadata,
    # Turns of a group's manager that the group's agents have not received (`EndedTurn`).
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    *texts("project_id", "group_id", "thread_id"),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("cause_id", sa.Text, nullable=False),
    sa.Column("submitted_by", sa.Text),
    sa.Column("counts", sa.Boolean, nullable=False),
    # `new`, `counted`, `due` or `told`. The agents get the `due` and `told` turns in their next run; the `due` one
    # started it.
    sa.Column("state", sa.Text, nullable=False),
    # When to read the row next, to count it or to start runs. NULL: it waits for later turns.
    sa.Column("look_at", UtcMoment),
    sa.Index("ix_group_turns_group_id_number", "group_id", "number"),
    sa.Index("ix_group_turns_look_at", "look_at", **where("look_at IS NOT NULL")),
)


# The tables of API keys and of the audit log.


api_keys = sa.Table(
    "api_keys",
    metadata,
    *listed(),
    *texts("project_id", "name"),
    # JSON list of texts.
    *texts("scopes", "prefix"),
    # Signs the stream tokens that are made with the key.
    sa.Column("token_secret", sa.LargeBinary, nullable=False),
    *times("created_at"),
    *texts("created_by"),
    *times("expires_at", "last_used_at", "rotated_at", "revoked_at", nullable=True),
    sa.Index("ix_api_keys_project_id_number", "project_id", "number"),
)
"""Rows stay when a key ends: a server whose database has had a key never again accepts requests without one."""

api_key_secrets = sa.Table(
    "api_key_secrets",
    metadata,
    # SHA-256, as hexadecimal digits.
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, nullable=False, index=True),
    # The time at which a replaced secret ends.
    sa.Column("valid_until", UtcMoment),
)

audit_events = sa.Table(
    "audit_events",
    metadata,
    *listed(),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("at", UtcMoment, nullable=False),
    *texts("key_id", "key_name", "action", "object_id", "outcome", "address", "user_agent", "request_id"),
    sa.Index("ix_audit_events_project_id_number", "project_id", "number"),
)
