"""What one call of a tool may use, where that is less than a worker gives.

In a column, because a process of the release before does not know the field, and refuses a document that has it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tools", sa.Column("limits", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("tools", "limits")
