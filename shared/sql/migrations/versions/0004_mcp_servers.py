"""Adds MCP servers of projects."""

import sqlalchemy as sa
from alembic import op

revision = "0004_mcp_servers"
down_revision = "0003_webhooks"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

SETTING = "current_setting('holdfast.project', true)"


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
    if op.get_context().dialect.name == "postgresql":
        _protect()


def downgrade() -> None:
    op.drop_table("mcp_servers")


def _protect() -> None:
    """Adds the policy that `0001_schema` gives a table with a project column."""
    sees_all = f"(SELECT coalesce({SETTING}, '') = '')"
    op.execute(f"CREATE POLICY of_project ON mcp_servers USING ({sees_all} OR project_id = (SELECT {SETTING}))")
    op.execute("ALTER TABLE mcp_servers ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
