"""Indices for lists of an agent's and of a project's conversations, in the order of these lists."""

from alembic import op

revision = "0015_lists_of_conversations"
down_revision = "0014_begun_turns"


def upgrade() -> None:
    for owner in ("agent_id", "project_id"):
        op.create_index(f"ix_conversations_{owner}_number", "conversations", [owner, "number"])
        op.drop_index(f"ix_conversations_{owner}", table_name="conversations")
