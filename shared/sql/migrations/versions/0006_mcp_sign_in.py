"""Adds sign-ins at MCP servers."""

import sqlalchemy as sa
from alembic import op

revision = "0006_mcp_sign_in"
down_revision = "0005_run_trees"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

SETTING = "current_setting('holdfast.project', true)"
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
    if op.get_context().dialect.name == "postgresql":
        _protect()


def downgrade() -> None:
    op.drop_table("mcp_sign_ins")
    op.drop_column("mcp_servers", "renewal_until")
    op.drop_column("mcp_servers", "renewed_by")


def _protect() -> None:
    """Adds the policy that `0001_schema` gives a table with a project column."""
    sees_all = f"(SELECT coalesce({SETTING}, '') = '')"
    op.execute(f"CREATE POLICY of_project ON mcp_sign_ins USING ({sees_all} OR project_id = (SELECT {SETTING}))")
    op.execute("ALTER TABLE mcp_sign_ins ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
