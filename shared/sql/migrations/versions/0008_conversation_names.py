"""Names that clients give to conversations: a name belongs to one conversation of its agent."""

import sqlalchemy as sa
from alembic import op

revision = "0008_conversation_names"
down_revision = "0007_groups"

HAS_NAME = sa.text("name IS NOT NULL")


def upgrade() -> None:
    op.add_column("conversations", sa.Column("name", sa.Text, nullable=True))
    op.create_index(
        "uq_conversations_agent_id_name",
        "conversations",
        ["agent_id", "name"],
        unique=True,
        sqlite_where=HAS_NAME,
        postgresql_where=HAS_NAME,
    )
