"""What people think of a step, and the few steps of which somebody thinks something.

A process of the release before leaves the columns as they are, and does not read them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

HAS_OPINION = sa.text("feedback IS NOT NULL OR tags IS NOT NULL")


def upgrade() -> None:
    op.add_column("steps", sa.Column("feedback", sa.Text(), nullable=True))
    op.add_column("steps", sa.Column("tags", sa.Text(), nullable=True))
    op.create_index(
        "ix_steps_opinions",
        "steps",
        ["project_id", "created_at", "number", "id"],
        sqlite_where=HAS_OPINION,
        postgresql_where=HAS_OPINION,
    )


def downgrade() -> None:
    op.drop_index("ix_steps_opinions", "steps")
    op.drop_column("steps", "tags")
    op.drop_column("steps", "feedback")
