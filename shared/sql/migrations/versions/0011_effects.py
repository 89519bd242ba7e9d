"""The number of starts of each call's tool, and the verdicts on calls whose outcome was unknown."""

import sqlalchemy as sa
from alembic import op

revision = "0011_effects"
down_revision = "0010_model_entries"
branch_labels = None
depends_on = None

SETTING = "current_setting('holdfast.project', true)"


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
    if op.get_context().dialect.name == "postgresql":
        sees_all = f"(SELECT coalesce({SETTING}, '') = '')"
        is_shown = "EXISTS (SELECT FROM runs WHERE runs.id = settled_effects.run_id)"
        op.execute(f"CREATE POLICY of_project ON settled_effects USING ({sees_all} OR {is_shown})")
        op.execute("ALTER TABLE settled_effects ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.drop_table("settled_effects")
    op.drop_column("tool_intents", "attempt")
