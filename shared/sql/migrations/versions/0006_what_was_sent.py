"""What was sent under the name of a submission, and when a body was sent."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("submission_keys", sa.Column("content", sa.Text(), nullable=True))
    op.add_column("submission_keys", sa.Column("sent_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    # A release before would take them for names.
    op.execute("DELETE FROM submission_keys WHERE sent_at IS NOT NULL")
    op.drop_column("submission_keys", "sent_at")
    op.drop_column("submission_keys", "content")
