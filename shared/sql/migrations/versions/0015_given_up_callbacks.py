"""When a callback was given up: the column. It is alone here, because for as long as this transaction lasts nobody can
use the table.

A process of the release before leaves it empty, and does not read it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("callbacks", sa.Column("given_up_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("callbacks", "given_up_at")
