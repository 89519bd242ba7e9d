"""Runs, steps, logs, approvals and what waits to be delivered."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_approvals()
    _create_callbacks()
    _create_event_blocks()
    _create_injected_messages()
    _create_runs()
    _create_steps()
    _create_submission_keys()
    _create_tool_intents()


def downgrade() -> None:
    for table in (
        "tool_intents",
        "submission_keys",
        "steps",
        "runs",
        "injected_messages",
        "event_blocks",
        "callbacks",
        "approvals",
    ):
        op.drop_table(table)


def _create_approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("arguments_hash", sa.Text(), nullable=False),
        sa.Column("client_side", sa.Boolean(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("on_expiry", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("continued_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index(
        "ix_approvals_expires_at",
        "approvals",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("decided_at IS NULL"),
        postgresql_where=sa.text("decided_at IS NULL"),
    )
    op.create_index("ix_approvals_project_id_decided_at", "approvals", ["project_id", "decided_at"], unique=False)
    op.create_index(op.f("ix_approvals_run_id"), "approvals", ["run_id"], unique=False)
    op.create_index(op.f("ix_approvals_thread_id"), "approvals", ["thread_id"], unique=False)
    op.create_index(op.f("ix_approvals_tool_call_id"), "approvals", ["tool_call_id"], unique=False)


def _create_callbacks() -> None:
    op.create_table(
        "callbacks",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("claimed_until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_callbacks")),
        sa.UniqueConstraint("run_id", name=op.f("uq_callbacks_run_id")),
    )
    op.create_index(op.f("ix_callbacks_next_attempt_at"), "callbacks", ["next_attempt_at"], unique=False)


def _create_event_blocks() -> None:
    op.create_table(
        "event_blocks",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_seq", name=op.f("pk_event_blocks")),
    )


def _create_injected_messages() -> None:
    op.create_table(
        "injected_messages",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("if_ended", sa.Text(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_injected_messages")),
    )
    op.create_index(op.f("ix_injected_messages_run_id"), "injected_messages", ["run_id"], unique=False)


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("continues", sa.Text(), nullable=True),
        sa.Column("turn", sa.Integer(), nullable=True),
        sa.Column("ring", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("stalled_claims", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_actor", sa.Text(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("cancel_mode", sa.Text(), nullable=True),
        sa.Column("cancel_acknowledged_at", sa.BigInteger(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.Column("step_count", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_seq", sa.BigInteger(), nullable=False),
        sa.Column("reserved_seq", sa.BigInteger(), nullable=False),
        sa.Column("reserved_log", sa.Text(), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("callback_sent_at", sa.BigInteger(), nullable=True),
        sa.Column("callback_status_code", sa.Integer(), nullable=True),
        sa.Column("callback_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "status IN ('created', 'running', 'awaiting_approval', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_runs_status"),
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    op.create_index("ix_runs_agent_id_number", "runs", ["agent_id", "number"], unique=False)
    op.create_index("ix_runs_project_id_number", "runs", ["project_id", "number"], unique=False)
    op.create_index("ix_runs_status_updated_at", "runs", ["status", "updated_at"], unique=False)
    op.create_index("ix_runs_thread_id_number", "runs", ["thread_id", "number"], unique=False)
    op.create_index(
        "uq_runs_running_thread",
        "runs",
        ["thread_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )


def _create_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_steps")),
    )
    op.create_index(op.f("ix_steps_agent_id"), "steps", ["agent_id"], unique=False)
    op.create_index("ix_steps_run_id_number", "steps", ["run_id", "number"], unique=False)


def _create_submission_keys() -> None:
    op.create_table(
        "submission_keys",
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "key", name=op.f("pk_submission_keys")),
    )
    op.create_index(op.f("ix_submission_keys_run_id"), "submission_keys", ["run_id"], unique=False)


def _create_tool_intents() -> None:
    op.create_table(
        "tool_intents",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "tool_call_id", name=op.f("pk_tool_intents")),
    )
