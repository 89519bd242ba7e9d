"""Adds sign-ins at MCP servers."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0006_mcp_sign_in"
down_revision = "0005_run_trees"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

TEXTS = ("id", "project_id", "server_id", "state_hash", "status", "problem", "sealed", "begun_by")


def upgrade() -> None:
    op.add_column("mcp_servers", sa.Column("renewed_by", sa.Text))
    op.add_column("mcp_servers", sa.Column("renewal_until", sa.BigInteger))
    op.create_table(
        "mcp_sign_ins",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in TEXTS),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "expires_at")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_mcp_sign_ins")),
        sa.UniqueConstraint("id", name=op.f("uq_mcp_sign_ins_id")),
        sa.UniqueConstraint("state_hash", name=op.f("uq_mcp_sign_ins_state_hash")),
    )
    op.create_index("ix_mcp_sign_ins_project_id_number", "mcp_sign_ins", ["project_id", "number"])
    protect("mcp_sign_ins")
