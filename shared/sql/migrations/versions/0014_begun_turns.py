"""An index of the messages with which turns begin, for lists of all histories of an agent."""

import sqlalchemy as sa
from alembic import op

revision = "0014_begun_turns"
down_revision = "0012_code_versions"


def upgrade() -> None:
    begins = sa.text("position = 1")
    index = ("ix_messages_begins", "messages", ["agent_id", "created_at", "thread_id", "turn"])
    # An operator may have created the index earlier, without a lock.
    op.create_index(*index, if_not_exists=True, sqlite_where=begins, postgresql_where=begins)
