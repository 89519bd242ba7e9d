"""The places of deleted rows, for cursors that name them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deleted_rows",
        sa.Column("entry", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("entry", name=op.f("pk_deleted_rows")),
        sa.UniqueConstraint("id", name=op.f("uq_deleted_rows_id")),
    )


def downgrade() -> None:
    op.drop_table("deleted_rows")
