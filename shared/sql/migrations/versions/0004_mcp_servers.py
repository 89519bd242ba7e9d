"""Adds MCP servers of projects."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0004_mcp_servers"
down_revision = "0003_webhooks"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""


def upgrade() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "project_id", "name", "document", "secrets")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "updated_at")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_mcp_servers")),
        sa.UniqueConstraint("id", name=op.f("uq_mcp_servers_id")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_mcp_servers_project_id_name")),
    )
    op.create_index("ix_mcp_servers_project_id_number", "mcp_servers", ["project_id", "number"])
    protect("mcp_servers")
