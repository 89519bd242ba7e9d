"""The tables. Migrations in `migrations/` bring a database to this shape; a test holds the two together.

Structs of `shared.domain` that are read and written whole are kept as JSON text in a column; what a query filters,
orders or guards by has a column of its own.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from shared.domain.lifecycle import RunStatus

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UtcMoment(sa.TypeDecorator[datetime]):
    """An aware datetime, kept as microseconds since 1970: the same bits on SQLite and Postgres, exact and ordered."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        return None if value is None else EPOCH + timedelta(microseconds=int(value))


BigNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite numbers rows by itself only for a column of type INTEGER."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("last_stop_reason", sa.Text),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("updated_at", UtcMoment, nullable=False),
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
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("updated_at", UtcMoment, nullable=False),
    sa.UniqueConstraint("project_id", "name"),
)

blocks = sa.Table(
    "blocks",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("updated_at", UtcMoment, nullable=False),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False, index=True),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("updated_at", UtcMoment, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("thread_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("stop_reason", sa.Text),
    sa.Column("cause", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("continues", sa.Text),
    sa.Column("turn", sa.Integer),
    sa.Column("ring", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("stalled_claims", sa.Integer, nullable=False),
    sa.Column("cancel_requested_at", UtcMoment),
    sa.Column("cancel_actor", sa.Text),
    sa.Column("cancel_reason", sa.Text),
    sa.Column("cancel_mode", sa.Text),
    sa.Column("cancel_acknowledged_at", UtcMoment),
    sa.Column("usage", sa.Text, nullable=False),
    sa.Column("step_count", sa.Integer, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("checkpoint_seq", sa.BigInteger, nullable=False),
    sa.Column("reserved_seq", sa.BigInteger, nullable=False),
    sa.Column("reserved_log", sa.Text),
    sa.Column("callback_url", sa.Text),
    sa.Column("callback_sent_at", UtcMoment),
    sa.Column("callback_status_code", sa.Integer),
    sa.Column("callback_error", sa.Text),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("started_at", UtcMoment),
    sa.Column("completed_at", UtcMoment),
    sa.Column("updated_at", UtcMoment, nullable=False),
    sa.CheckConstraint("status IN ({})".format(", ".join(f"'{status}'" for status in RunStatus)), name="status"),
    sa.Index("ix_runs_project_id_number", "project_id", "number"),
    sa.Index("ix_runs_agent_id_number", "agent_id", "number"),
    sa.Index("ix_runs_thread_id_number", "thread_id", "number"),
    sa.Index("ix_runs_status_updated_at", "status", "updated_at"),
    # One run at a time per thread. The claim's own guard can be raced on Postgres; this cannot.
    sa.Index(
        "uq_runs_running_thread",
        "thread_id",
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    ),
)

submission_keys = sa.Table(
    "submission_keys",
    metadata,
    sa.Column("thread_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
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
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Index("ix_steps_run_id_number", "run_id", "number"),
)

tool_intents = sa.Table(
    "tool_intents",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("tool_call_id", sa.Text, primary_key=True),
    sa.Column("tool_name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("started_at", UtcMoment, nullable=False),
)

event_blocks = sa.Table(
    "event_blocks",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("first_seq", sa.BigInteger, primary_key=True),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("thread_id", sa.Text, nullable=False, index=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("tool_call_id", sa.Text, nullable=False, index=True),
    sa.Column("tool_name", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("arguments_hash", sa.Text, nullable=False),
    sa.Column("client_side", sa.Boolean, nullable=False),
    sa.Column("asked_at", UtcMoment, nullable=False),
    sa.Column("expires_at", UtcMoment),
    sa.Column("on_expiry", sa.Text, nullable=False),
    sa.Column("decision", sa.Text),
    sa.Column("decided_at", UtcMoment),
    sa.Column("decided_by", sa.Text),
    sa.Column("continued_by", sa.Text),
    sa.Index("ix_approvals_project_id_decided_at", "project_id", "decided_at"),
    # Every worker asks every few seconds what has expired, and nearly all rows are decided.
    sa.Index(
        "ix_approvals_expires_at",
        "expires_at",
        sqlite_where=sa.text("decided_at IS NULL"),
        postgresql_where=sa.text("decided_at IS NULL"),
    ),
)

injected_messages = sa.Table(
    "injected_messages",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, nullable=False, index=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("if_ended", sa.Text, nullable=False),
    sa.Column("delivered_at", UtcMoment),
)

callbacks = sa.Table(
    "callbacks",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", UtcMoment, index=True),
    sa.Column("claimed_until", UtcMoment),
)
