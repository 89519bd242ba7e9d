"""What a deployment is asked about its runs: when they began to answer, how those of the last hour ended, which
callbacks failed. And what people think of a step.

A process of the release before leaves the new columns empty, and reads none of them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ENDED = "status IN ('completed', 'failed', 'cancelled')"

LISTS = {
    "ix_runs_ended_project": (["project_id", "status", "number"], ENDED),
    "ix_runs_ended_agent": (["agent_id", "status", "number"], ENDED),
    "ix_runs_stopped_project": (["project_id", "stop_reason", "number"], "stop_reason IS NOT NULL"),
    "ix_runs_stopped_agent": (["agent_id", "stop_reason", "number"], "stop_reason IS NOT NULL"),
    "ix_runs_project_id_completed_at": (["project_id", "completed_at", "status"], "completed_at IS NOT NULL"),
}
"""Each is written when a run ends, and not while it goes on."""

IS_OPEN = "next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL"


def upgrade() -> None:
    op.add_column("runs", sa.Column("first_token_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_runs_project_id_created_at", "runs", ["project_id", "created_at"])
    for name, (columns, condition) in LISTS.items():
        _create_index_where(name, "runs", columns, condition)
    op.add_column("callbacks", sa.Column("given_up_at", sa.BigInteger(), nullable=True))
    op.execute(
        "UPDATE callbacks SET given_up_at = (SELECT runs.callback_sent_at FROM runs WHERE runs.id = callbacks.run_id "
        "AND runs.callback_error IS NOT NULL) WHERE next_attempt_at IS NULL"
    )
    _create_index_where("ix_callbacks_open", "callbacks", ["project_id", "number"], IS_OPEN)
    op.create_index("ix_approvals_agent_id_decided_at", "approvals", ["agent_id", "decided_at"])
    op.add_column("steps", sa.Column("feedback", sa.Text(), nullable=True))
    op.add_column("steps", sa.Column("tags", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "tags")
    op.drop_column("steps", "feedback")
    op.drop_index("ix_approvals_agent_id_decided_at", "approvals")
    op.drop_index("ix_callbacks_open", "callbacks")
    op.drop_column("callbacks", "given_up_at")
    for name in (*LISTS, "ix_runs_project_id_created_at"):
        op.drop_index(name, "runs")
    op.drop_column("runs", "first_token_at")


def _create_index_where(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
