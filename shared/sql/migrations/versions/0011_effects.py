"""The number of starts of each call's tool, and the verdicts on calls whose outcome was unknown."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0011_effects"
down_revision = "0010_model_entries"


def upgrade() -> None:
    # A worker of the previous release stores starts without this column.
    op.add_column("tool_intents", sa.Column("attempt", sa.Integer, nullable=False, server_default="1"))
    op.create_table(
        "settled_effects",
        *(sa.Column(name, sa.Text, nullable=False) for name in ("idempotency_key", "run_id", "call_id", "settled_by")),
        sa.Column("who", sa.Text),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("settled_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("idempotency_key", name=op.f("pk_settled_effects")),
    )
    op.create_index(op.f("ix_settled_effects_run_id"), "settled_effects", ["run_id"])
    protect("settled_effects", is_shown="EXISTS (SELECT FROM runs WHERE runs.id = settled_effects.run_id)")
