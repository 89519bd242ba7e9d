"""What a tool may have beyond its walls: a network, and a folder that it shares with other calls of its run.

In columns, because a process of the release before does not know these fields, and refuses a document that has them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

OTHERWISE = {"network": "none", "scratch": "call"}


def upgrade() -> None:
    for name, value in OTHERWISE.items():
        op.add_column("tools", sa.Column(name, sa.Text(), server_default=sa.text(f"'{value}'"), nullable=False))


def downgrade() -> None:
    for name in OTHERWISE:
        op.drop_column("tools", name)
