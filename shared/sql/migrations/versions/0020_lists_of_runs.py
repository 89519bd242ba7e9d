"""Lists of runs by status, stop reason and time, and what a deployment is asked about the runs of the last hour. While
the indices are built, runs are read and not written.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

ENDED = "status IN ('completed', 'failed', 'cancelled')"

LISTS = {
    "ix_runs_ended_project": (["project_id", "status", "number"], ENDED),
    "ix_runs_ended_agent": (["agent_id", "status", "number"], ENDED),
    "ix_runs_stopped_project": (["project_id", "stop_reason", "number"], "stop_reason IS NOT NULL"),
    "ix_runs_stopped_agent": (["agent_id", "stop_reason", "number"], "stop_reason IS NOT NULL"),
    "ix_runs_project_id_completed_at": (["project_id", "completed_at", "status"], "completed_at IS NOT NULL"),
}
"""Each is written when a run ends, and not while it goes on."""


def upgrade() -> None:
    op.create_index("ix_runs_project_id_created_at", "runs", ["project_id", "created_at"])
    for name, (columns, condition) in LISTS.items():
        where = sa.text(condition)
        op.create_index(name, "runs", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name in (*LISTS, "ix_runs_project_id_created_at"):
        op.drop_index(name, "runs")
