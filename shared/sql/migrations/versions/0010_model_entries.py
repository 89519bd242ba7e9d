"""Calls of models in journals: a hash of the instructions and settings, whose change does not make an answer void."""

import sqlalchemy as sa
from alembic import op

revision = "0010_model_entries"
down_revision = "0009_journal"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_steps", sa.Column("settings_hash", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("run_steps", "settings_hash")
