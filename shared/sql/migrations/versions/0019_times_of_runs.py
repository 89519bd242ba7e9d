"""When a run began to answer: the column. It is alone here, because for as long as this transaction lasts no run can be
read.

A process of the release before leaves it empty, and does not read it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("first_token_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "first_token_at")
