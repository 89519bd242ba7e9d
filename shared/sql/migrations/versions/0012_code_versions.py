"""Versions of agents of operators' own code: those that workers have reported, and the version that executed a run."""

import sqlalchemy as sa
from alembic import op

revision = "0012_code_versions"
down_revision = "0011_effects"


def upgrade() -> None:
    text, number = sa.Text, sa.BigInteger
    op.add_column("runs", sa.Column("code_version", text))
    framework = sa.Column("framework", text, nullable=False, server_default=sa.text("'function'"))
    op.add_column("code_agents", framework)
    op.create_table(
        "code_agent_versions",
        *(sa.Column(name, text, nullable=False) for name in ("name", "version")),
        *(sa.Column(name, number, nullable=False) for name in ("first_seen_at", "seen_at")),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_code_agent_versions")),
    )
