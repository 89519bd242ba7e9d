"""Indices for what is asked all the time, inputs in a table of their own, numbers of a log that belong to a fence."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _extend_runs()
    _create_run_inputs()
    _extend_injected_messages()
    op.create_index("ix_steps_project_id_created_at", "steps", ["project_id", "created_at"])
    _create_index_where("ix_approvals_open_thread", "approvals", ["thread_id"], "decided_at IS NULL")


def downgrade() -> None:
    # What was submitted since has its input elsewhere.
    op.execute(
        "UPDATE runs SET input = (SELECT run_inputs.input FROM run_inputs WHERE run_inputs.run_id = runs.id) "
        "WHERE id IN (SELECT run_id FROM run_inputs)"
    )
    op.drop_index("ix_approvals_open_thread", "approvals")
    op.drop_index("ix_steps_project_id_created_at", "steps")
    for index in ("uq_injected_messages_message_id", "ix_injected_messages_open", "ix_injected_messages_open_thread"):
        op.drop_index(index, "injected_messages")
    op.drop_column("injected_messages", "message_id")
    op.drop_column("injected_messages", "thread_id")
    op.drop_table("run_inputs")
    for index in ("active_project", "active_thread", "thread_id_turn", "cancel_open", "not_pruned"):
        op.drop_index(f"ix_runs_{index}", "runs")
    op.drop_column("runs", "pruned_at")
    op.drop_column("runs", "owner")


def _extend_runs() -> None:
    op.add_column("runs", sa.Column("owner", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("pruned_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_runs_thread_id_turn", "runs", ["thread_id", "turn"])
    # Of two indices that fit, SQLite takes the one that was made last, as long as nobody has it gather statistics.
    is_active = "status IN ('created', 'running', 'awaiting_approval')"
    _create_index_where("ix_runs_active_project", "runs", ["project_id", "number"], is_active)
    _create_index_where("ix_runs_active_thread", "runs", ["thread_id", "number"], is_active)
    _create_index_where(
        "ix_runs_cancel_open",
        "runs",
        ["number"],
        "cancel_requested_at IS NOT NULL AND status IN ('created', 'awaiting_approval')",
    )
    _create_index_where("ix_runs_not_pruned", "runs", ["completed_at"], "pruned_at IS NULL")
    # A run in flight may have shown more numbers than its fences have, a million each. Its next owner goes on behind
    # all of them.
    op.execute(
        "UPDATE runs SET fence = (last_seq + reserved_seq) / 1000000 + 1 WHERE status = 'running' "
        "AND (last_seq > fence * 1000000 OR reserved_seq > fence * 1000000)"
    )


def _create_run_inputs() -> None:
    op.create_table(
        "run_inputs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_inputs")),
    )


def _extend_injected_messages() -> None:
    op.add_column("injected_messages", sa.Column("thread_id", sa.Text(), nullable=True))
    op.add_column("injected_messages", sa.Column("message_id", sa.Text(), nullable=True))
    op.execute(
        "UPDATE injected_messages SET thread_id = "
        "(SELECT runs.thread_id FROM runs WHERE runs.id = injected_messages.run_id) WHERE delivered_at IS NULL"
    )
    op.create_index("uq_injected_messages_message_id", "injected_messages", ["message_id"], unique=True)
    _create_index_where("ix_injected_messages_open", "injected_messages", ["run_id"], "delivered_at IS NULL")
    _create_index_where("ix_injected_messages_open_thread", "injected_messages", ["thread_id"], "delivered_at IS NULL")


def _create_index_where(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
