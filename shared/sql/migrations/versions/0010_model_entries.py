"""Calls of models in journals: a hash of the instructions and settings, whose change does not make an answer void."""

import sqlalchemy as sa
from alembic import op

revision = "0010_model_entries"
down_revision = "0009_journal"


def upgrade() -> None:
    op.add_column("run_steps", sa.Column("settings_hash", sa.Text, nullable=False, server_default=""))
