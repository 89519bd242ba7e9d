"""The packages that a tool was given, in their versions."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tools", sa.Column("packages", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("tools", "packages")
