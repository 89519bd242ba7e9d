"""Adds a column for the state that a run's body stores."""

import sqlalchemy as sa
from alembic import op

revision = "0002_body_state"
down_revision = "0001_schema"


def upgrade() -> None:
    op.add_column("runs", sa.Column("body_state", sa.LargeBinary))
