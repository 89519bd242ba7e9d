"""Results of calls that were answered in the transaction of their effect."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tool_intents", sa.Column("result", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_intents", "result")
