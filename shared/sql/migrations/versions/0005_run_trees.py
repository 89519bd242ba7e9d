"""Adds trees of runs: the parent of a run, and the kind of wait that a run is in."""

import sqlalchemy as sa
from alembic import op

revision = "0005_run_trees"
down_revision = "0004_mcp_servers"

COLUMNS = {"waits_for": sa.Text, "parent_run_id": sa.Text, "root_run_id": sa.Text, "awaited": sa.Boolean}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("runs", sa.Column(name, kind, nullable=True))
    for name in ("parent_run_id", "root_run_id"):
        is_known = sa.text(f"{name} IS NOT NULL")
        op.create_index(f"ix_runs_{name}", "runs", [name, "number"], sqlite_where=is_known, postgresql_where=is_known)
    waits = sa.text("waits_for = 'runs'")
    op.create_index("ix_runs_waits_for_runs", "runs", ["number"], sqlite_where=waits, postgresql_where=waits)
