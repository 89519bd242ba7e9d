"""What agents, keys and projects have used per day, and what is set aside for calls that are under way."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "budget_totals",
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("used_tokens", sa.BigInteger(), nullable=False),
        sa.Column("used_nano_usd", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_nano_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", "day", name=op.f("pk_budget_totals")),
    )
    op.create_index(op.f("ix_budget_totals_day"), "budget_totals", ["day"])
    op.add_column("runs", sa.Column("reservation", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("waits_until", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "waits_until")
    op.drop_column("runs", "reservation")
    op.drop_table("budget_totals")
