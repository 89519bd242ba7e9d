"""The messages of a thread that are in its context, which every step of a run reads: an old thread has few of them
among many. While the index is built, messages are read and not written.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

INDEX = "ix_messages_in_context"


def upgrade() -> None:
    # Each in the words of its queries: SQLite takes a partial index for no others.
    op.create_index(
        INDEX,
        "messages",
        ["thread_id", "turn", "position"],
        sqlite_where=sa.text("in_context = 1"),
        postgresql_where=sa.text("in_context"),
    )


def downgrade() -> None:
    op.drop_index(INDEX, "messages")
