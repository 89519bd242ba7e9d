"""Which run goes on behind a decided one, and since when: the columns. They are alone here, because for as long as this
transaction lasts no run can be read.

A process of the release before leaves them empty, and does not read them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("continued_by", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("decided_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "decided_at")
    op.drop_column("runs", "continued_by")
