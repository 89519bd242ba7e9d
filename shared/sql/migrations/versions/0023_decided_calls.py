"""The version of the tool that a person was asked about, and the calls that were decided last in a thread, whose ids no
later call gets: an old thread has many. The column comes last, because from then on no approval is read.

A process of the release before leaves the column empty, and does not read it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

INDEX = "ix_approvals_decided_thread"


def upgrade() -> None:
    # Each in the words of its queries: SQLite takes a partial index for no others.
    op.create_index(
        INDEX,
        "approvals",
        ["thread_id", "decided_at"],
        sqlite_where=sa.text("decided_at IS NOT NULL"),
        postgresql_where=sa.text("decided_at IS NOT NULL"),
    )
    op.add_column("approvals", sa.Column("tool_version", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("approvals", "tool_version")
    op.drop_index(INDEX, "approvals")
