"""The first schema, with the policies that separate projects.

`tables.py` describes the columns. Each later change of the schema has its own migration.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
import structlog
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.schema import SchemaItem

from shared.sql.migrations import protect

revision = "0001_schema"
down_revision = None

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""
VECTOR = sa.LargeBinary().with_variant(postgresql.ARRAY(sa.REAL), "postgresql")

IS_A_STATUS = "status IN ('created', 'running', 'awaiting_approval', 'completed', 'failed', 'cancelled')"
IS_ACTIVE = "status IN ('created', 'running', 'awaiting_approval')"
HAS_ENDED = "status IN ('completed', 'failed', 'cancelled')"

OWNED = (
    "agents", "approvals", "archives", "audit_events", "blocks", "budget_totals", "callbacks", "conversations",
    "passages", "runs", "steps", "tools",
)  # fmt: skip
"""Tables with a column for the project."""

PARENTS = {
    "agent_archives": ("agents", "id", "agent_id"),
    "agent_blocks": ("agents", "id", "agent_id"),
    "agent_tags": ("agents", "id", "agent_id"),
    "agent_tools": ("agents", "id", "agent_id"),
    "event_blocks": ("runs", "id", "run_id"),
    "injected_messages": ("runs", "id", "run_id"),
    "messages": ("agents", "id", "agent_id"),
    "passage_tags": ("passages", "number", "passage_number"),
    "passage_vectors": ("passages", "number", "number"),
    "run_inputs": ("runs", "id", "run_id"),
    "submission_keys": ("runs", "id", "run_id"),
    "tool_intents": ("runs", "id", "run_id"),
}
"""Tables without such a column: for each the parent table, the key of the parent, and the column that refers to it. The
policy of the parent decides."""


def upgrade() -> None:
    _create_agents()
    _create_tools_and_blocks()
    _create_histories()
    _create_archives()
    _create_passages()
    _create_passage_words()
    _create_passage_vectors()
    _create_runs()
    _create_tables_of_runs()
    _create_approvals()
    _create_deliveries()
    _create_budgets()
    _create_keys()
    _create_audit_log()
    _set_policies()


def _set_policies() -> None:
    """These tables have no policy: the index of words, because Postgres would not use it below one (the operator is
    not leakproof), and a search joins it with the passages, which have a policy; the places of deleted rows, because
    the next deletion in any project clears old ones of all projects; API keys, because the API looks up a key before it
    knows the key's project."""
    protect(*OWNED)
    for table, (parent, key, column) in PARENTS.items():
        protect(table, is_shown=f"EXISTS (SELECT FROM {parent} WHERE {parent}.{key} = {table}.{column})")


def _column(kind: type[sa.types.TypeEngine[Any]], name: str, *, null: bool = False, default: str = "") -> SchemaItem:
    return sa.Column(name, kind(), nullable=null, server_default=sa.text(default) if default else None)


_text, _integer, _boolean = partial(_column, sa.Text), partial(_column, sa.Integer), partial(_column, sa.Boolean)
_big, _binary = partial(_column, sa.BigInteger), partial(_column, sa.LargeBinary)
_moment = _big
"""A column for a time in microseconds since 1970."""


def _row_number(name: str = "number") -> SchemaItem:
    """A column whose numbers the database generates."""
    return sa.Column(name, NUMBER, autoincrement=True, nullable=False)


def _given_number(name: str) -> SchemaItem:
    return sa.Column(name, NUMBER, autoincrement=False, nullable=False)


def _create(
    table: str, *items: SchemaItem, key: Sequence[str] = ("number",), unique: Sequence[Sequence[str]] = ()
) -> None:
    """Creates a table with this primary key, and one constraint for each of the lists of columns in `unique`."""
    primary = sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{table}"))
    others = [sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}")) for columns in unique]
    op.create_table(table, *items, primary, *others)


def _index(name: str, table: str, *columns: str, unique: bool = False, where: str = "", on_postgres: str = "") -> None:
    """Creates an index of the rows for which `where` holds; `on_postgres` is the condition's form on Postgres, if it
    differs."""
    conditions: dict[str, Any] = {}
    if where:
        conditions = {"sqlite_where": sa.text(where), "postgresql_where": sa.text(on_postgres or where)}
    op.create_index(name, table, list(columns), unique=unique, **conditions)


def _create_agents() -> None:
    _create(
        "agents",
        _row_number(), _text("id"), _text("project_id"), _text("name"), _text("document"),
        _text("last_stop_reason", null=True), _moment("created_at"), _moment("updated_at"),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_agents_project_id", "agents", "project_id")
    _create("agent_tags", _text("agent_id"), _text("tag"), key=["agent_id", "tag"])
    _index("ix_agent_tags_tag", "agent_tags", "tag")
    _create(
        "agent_tools",
        _row_number(), _text("agent_id"), _text("tool_id"),
        unique=[["agent_id", "tool_id"]],
    )  # fmt: skip
    _index("ix_agent_tools_tool_id", "agent_tools", "tool_id")
    _create(
        "agent_blocks",
        _row_number(), _text("agent_id"), _text("block_id"),
        unique=[["agent_id", "block_id"]],
    )  # fmt: skip
    _index("ix_agent_blocks_block_id", "agent_blocks", "block_id")


def _create_tools_and_blocks() -> None:
    _create(
        "tools",
        _row_number(), _text("id"), _text("project_id"), _text("name"), _text("document"), _moment("created_at"),
        _moment("updated_at"),
        unique=[["id"], ["project_id", "name"]],
    )  # fmt: skip
    _create(
        "blocks",
        _row_number(), _text("id"), _text("project_id"), _text("label"), _text("document"), _moment("created_at"),
        _moment("updated_at"),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_blocks_project_id", "blocks", "project_id")


def _create_histories() -> None:
    _create(
        "conversations",
        _row_number(), _text("id"), _text("project_id"), _text("agent_id"), _text("document"), _moment("created_at"),
        _moment("updated_at"),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_conversations_agent_id", "conversations", "agent_id")
    _index("ix_conversations_project_id", "conversations", "project_id")
    _create(
        "messages",
        _text("id"), _text("agent_id"), _text("thread_id"), _text("conversation_id", null=True),
        _text("run_id", null=True), _text("step_id", null=True), _integer("turn"), _integer("position"),
        _text("sibling_id", null=True), _boolean("in_context"), _text("left_because", null=True), _text("body"),
        _moment("created_at"),
        key=["id"],
    )  # fmt: skip
    _index("ix_messages_agent_id", "messages", "agent_id")
    _index("ix_messages_run_id", "messages", "run_id")
    _index("ix_messages_sibling_id", "messages", "sibling_id")
    _index("ix_messages_step_id", "messages", "step_id")
    _index("uq_messages_thread_turn_position", "messages", "thread_id", "turn", "position", unique=True)
    # Each condition has the text of its queries: SQLite uses a partial index for no other condition.
    _index(
        "ix_messages_in_context",
        "messages",
        "thread_id",
        "turn",
        "position",
        where="in_context = 1",
        on_postgres="in_context",
    )
    _create(
        "deleted_rows",
        _row_number("entry"), _text("id"), _text("project_id"), _big("number"),
        key=["entry"],
        unique=[["id"]],
    )  # fmt: skip


def _create_archives() -> None:
    _create(
        "archives",
        _row_number(), _text("id"), _text("project_id"), _text("name"), _text("embedding", null=True),
        _text("document"), _moment("created_at"), _moment("updated_at"),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_archives_project_id", "archives", "project_id")
    _create(
        "agent_archives",
        _row_number(), _text("agent_id"), _text("archive_id"), _boolean("is_own"),
        unique=[["agent_id", "archive_id"]],
    )  # fmt: skip
    _index("ix_agent_archives_archive_id", "agent_archives", "archive_id")


def _create_passages() -> None:
    _create(
        "passages",
        _row_number(), _text("id"), _text("project_id"), _text("archive_id"), _text("text"), _text("document"),
        _moment("created_at"), _moment("updated_at"), _moment("embed_at", null=True),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_passages_archive_id_created_at", "passages", "archive_id", "created_at", "number")
    _index("ix_passages_project_id_created_at", "passages", "project_id", "created_at", "number")
    _index("ix_passages_embed_at", "passages", "embed_at", where="embed_at IS NOT NULL")
    _create(
        "passage_tags",
        _given_number("passage_number"), _text("tag"),
        key=["passage_number", "tag"],
    )  # fmt: skip


def _create_passage_words() -> None:
    if op.get_context().dialect.name != "sqlite":
        words = sa.Column("words", postgresql.TSVECTOR(), nullable=False)
        _create("passage_words", _given_number("number"), words)
        op.create_index("ix_passage_words_words", "passage_words", ["words"], postgresql_using="gin")
    elif op.get_bind().scalar(sa.text("SELECT sqlite_compileoption_used('ENABLE_FTS5')")):
        # The words arrive folded and separated by spaces; this tokenizer keeps every character beyond ASCII.
        op.execute("CREATE VIRTUAL TABLE passage_words USING fts5(words, tokenize = 'ascii')")
    else:
        log.warning(
            "sqlite_has_no_fts5",
            consequence="archival memory is searched without an index: slow beyond some thousand passages",
            fix="use a Python whose SQLite has FTS5 and a new database, or Postgres",
        )
        op.execute("CREATE TABLE passage_words (number INTEGER NOT NULL PRIMARY KEY, words TEXT NOT NULL)")


def _create_passage_vectors() -> None:
    _create(
        "passage_vectors",
        _given_number("number"), _text("model"), _integer("dimensions"),
        _binary("signs"), sa.Column("vector", VECTOR, nullable=False),
    )  # fmt: skip


def _create_runs() -> None:
    _create(
        "runs",
        _row_number(), _text("id"), _text("project_id"), _text("agent_id"), _text("thread_id"),
        _text("conversation_id", null=True), _text("status"), _text("stop_reason", null=True),
        _text("cause", null=True), _text("error", null=True), _boolean("background"), _text("options"),
        _text("continues", null=True), _text("continued_by", null=True), _moment("decided_at", null=True),
        _integer("turn", null=True), _integer("dispatch"), _integer("priority", default="0"),
        _big("fence"), _text("owner", null=True), _integer("attempts_without_progress"),
        _moment("cancel_requested_at", null=True), _text("cancel_actor", null=True), _text("cancel_reason", null=True),
        _text("cancel_mode", null=True), _moment("cancel_acknowledged_at", null=True), _text("usage"),
        _integer("step_count"), _big("last_seq"), _big("checkpoint_seq"), _text("reservation", null=True),
        _moment("waits_until", null=True), _text("callback_url", null=True), _moment("callback_sent_at", null=True),
        _integer("callback_status_code", null=True), _text("callback_error", null=True), _moment("created_at"),
        _moment("started_at", null=True), _moment("first_token_at", null=True), _moment("completed_at", null=True),
        _moment("pruned_at", null=True), _moment("updated_at"),
        sa.CheckConstraint(IS_A_STATUS, name=op.f("ck_runs_status")),
        unique=[["id"]],
    )  # fmt: skip
    _index_runs()


def _index_runs() -> None:
    # If two indices fit, SQLite uses the one that was created last, as long as it has no statistics (ANALYZE).
    _index("ix_runs_agent_id_number", "runs", "agent_id", "number")
    _index("ix_runs_project_id_number", "runs", "project_id", "number")
    _index("ix_runs_status_updated_at", "runs", "status", "updated_at")
    _index("ix_runs_thread_id_number", "runs", "thread_id", "number")
    _index("uq_runs_running_thread", "runs", "thread_id", unique=True, where="status = 'running'")
    _index("ix_runs_thread_id_turn", "runs", "thread_id", "turn")
    _index("ix_runs_active_project", "runs", "project_id", "number", where=IS_ACTIVE)
    _index("ix_runs_active_thread", "runs", "thread_id", "number", where=IS_ACTIVE)
    _index(
        "ix_runs_cancel_open",
        "runs",
        "number",
        where="cancel_requested_at IS NOT NULL AND status IN ('created', 'awaiting_approval')",
    )
    _index("ix_runs_not_pruned", "runs", "completed_at", where="pruned_at IS NULL")
    _index("ix_runs_project_id_created_at", "runs", "project_id", "created_at")
    _index("ix_runs_ended_project", "runs", "project_id", "status", "number", where=HAS_ENDED)
    _index("ix_runs_ended_agent", "runs", "agent_id", "status", "number", where=HAS_ENDED)
    _index("ix_runs_stopped_project", "runs", "project_id", "stop_reason", "number", where="stop_reason IS NOT NULL")
    _index("ix_runs_stopped_agent", "runs", "agent_id", "stop_reason", "number", where="stop_reason IS NOT NULL")
    _index(
        "ix_runs_project_id_completed_at",
        "runs",
        "project_id",
        "completed_at",
        "status",
        where="completed_at IS NOT NULL",
    )


def _create_tables_of_runs() -> None:
    _create("run_inputs", _text("run_id"), _text("input"), key=["run_id"])
    _create(
        "submission_keys",
        _text("thread_id"), _text("key"), _text("run_id"), _text("content", null=True), _moment("sent_at", null=True),
        key=["thread_id", "key"],
    )  # fmt: skip
    _index("ix_submission_keys_run_id", "submission_keys", "run_id")
    _create(
        "steps",
        _text("id"), _text("project_id"), _text("run_id"), _text("agent_id"), _integer("number"), _text("document"),
        _text("feedback", null=True), _text("tags", null=True), _moment("created_at"),
        key=["id"],
    )  # fmt: skip
    _index("ix_steps_agent_id", "steps", "agent_id")
    _index("ix_steps_run_id_number", "steps", "run_id", "number")
    _index("ix_steps_project_id_created_at", "steps", "project_id", "created_at")
    _index(
        "ix_steps_opinions",
        "steps",
        "project_id",
        "created_at",
        "number",
        "id",
        where="feedback IS NOT NULL OR tags IS NOT NULL",
    )
    _create(
        "tool_intents",
        _text("run_id"), _text("tool_call_id"), _text("tool_name"), _text("state"), _moment("started_at"),
        _text("result", null=True),
        key=["run_id", "tool_call_id"],
    )  # fmt: skip
    _create(
        "event_blocks",
        _text("run_id"), _big("first_seq"), _big("last_seq"), _binary("data"),
        key=["run_id", "first_seq"],
    )  # fmt: skip


def _create_approvals() -> None:
    _create(
        "approvals",
        _text("id"), _text("project_id"), _text("agent_id"), _text("thread_id"), _text("run_id"), _integer("number"),
        _text("message_id"), _text("tool_call_id"), _text("tool_name"), _text("arguments"), _text("arguments_hash"),
        _text("tool_version", null=True), _boolean("client_side"), _moment("asked_at"),
        _moment("expires_at", null=True), _text("on_expiry"), _text("decision", null=True),
        _moment("decided_at", null=True), _text("decided_by", null=True), _text("continued_by", null=True),
        key=["id"],
    )  # fmt: skip
    _index("ix_approvals_expires_at", "approvals", "expires_at", where="decided_at IS NULL")
    _index("ix_approvals_project_id_decided_at", "approvals", "project_id", "decided_at")
    _index("ix_approvals_run_id", "approvals", "run_id")
    _index("ix_approvals_thread_id", "approvals", "thread_id")
    _index("ix_approvals_tool_call_id", "approvals", "tool_call_id")
    _index("ix_approvals_open_thread", "approvals", "thread_id", where="decided_at IS NULL")
    _index("ix_approvals_agent_id_decided_at", "approvals", "agent_id", "decided_at")
    _index("ix_approvals_decided_thread", "approvals", "thread_id", "decided_at", where="decided_at IS NOT NULL")


def _create_deliveries() -> None:
    _create(
        "injected_messages",
        _row_number(), _text("run_id"), _text("thread_id"), _text("message_id"), _text("message"), _text("if_ended"),
        _moment("delivered_at", null=True),
    )  # fmt: skip
    _index("ix_injected_messages_run_id", "injected_messages", "run_id")
    _index("uq_injected_messages_message_id", "injected_messages", "message_id", unique=True)
    _index("ix_injected_messages_open", "injected_messages", "run_id", where="delivered_at IS NULL")
    _index("ix_injected_messages_open_thread", "injected_messages", "thread_id", where="delivered_at IS NULL")
    _create(
        "callbacks",
        _row_number(), _text("run_id"), _text("project_id"), _text("url"), _integer("attempts"),
        _moment("next_attempt_at", null=True), _moment("claimed_until", null=True), _moment("given_up_at", null=True),
        unique=[["run_id"]],
    )  # fmt: skip
    _index("ix_callbacks_next_attempt_at", "callbacks", "next_attempt_at")
    _index(
        "ix_callbacks_open",
        "callbacks",
        "project_id",
        "number",
        where="next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL",
    )


def _create_budgets() -> None:
    _create(
        "budget_totals",
        _text("account"), _text("day"), _text("project_id"), _big("used_tokens"), _big("used_nano_usd"),
        _big("reserved_tokens"), _big("reserved_nano_usd"),
        key=["account", "day"],
    )  # fmt: skip
    _index("ix_budget_totals_day", "budget_totals", "day")


def _create_keys() -> None:
    _create(
        "api_keys",
        _row_number(), _text("id"), _text("project_id"), _text("name"), _text("scopes"), _text("prefix"),
        _binary("token_secret"), _moment("created_at"), _text("created_by"), _moment("expires_at", null=True),
        _moment("last_used_at", null=True), _moment("rotated_at", null=True), _moment("revoked_at", null=True),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_api_keys_project_id_number", "api_keys", "project_id", "number")
    _create(
        "api_key_secrets",
        _text("digest"), _text("key_id"), _moment("valid_until", null=True),
        key=["digest"],
    )  # fmt: skip
    _index("ix_api_key_secrets_key_id", "api_key_secrets", "key_id")


def _create_audit_log() -> None:
    _create(
        "audit_events",
        _row_number(), _text("id"), _text("project_id"), _moment("at"), _text("key_id"), _text("key_name"),
        _text("action"), _text("object_id"), _text("outcome"), _text("address"), _text("user_agent"),
        _text("request_id"),
        unique=[["id"]],
    )  # fmt: skip
    _index("ix_audit_events_project_id_number", "audit_events", "project_id", "number")
