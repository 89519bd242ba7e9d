"""The approvals of one agent that were decided, in the order of their decisions."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_approvals_agent_id_decided_at", "approvals", ["agent_id", "decided_at"])


def downgrade() -> None:
    op.drop_index("ix_approvals_agent_id_decided_at", "approvals")
