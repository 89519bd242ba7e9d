"""An index of the messages with which turns begin, for lists of all histories of a project."""

import sqlalchemy as sa
from alembic import op

revision = "0016_begun_turns_of_projects"
down_revision = "0015_lists_of_conversations"


def upgrade() -> None:
    begins = sa.text("position = 1")
    index = ("ix_messages_begun", "messages", ["created_at", "thread_id", "turn"])
    # An operator may have created the index earlier, without a lock.
    op.create_index(*index, if_not_exists=True, sqlite_where=begins, postgresql_where=begins)
