"""Callbacks that wait or were given up are listed. Those that the release before has given up are the few that end with
an error; all others keep their rows as they are.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

IS_OPEN = sa.text("next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL")


def upgrade() -> None:
    op.execute(
        "UPDATE callbacks SET given_up_at = (SELECT runs.callback_sent_at FROM runs WHERE runs.id = callbacks.run_id) "
        "WHERE next_attempt_at IS NULL AND EXISTS "
        "(SELECT 1 FROM runs WHERE runs.id = callbacks.run_id AND runs.callback_error IS NOT NULL)"
    )
    op.create_index(
        "ix_callbacks_open", "callbacks", ["project_id", "number"], sqlite_where=IS_OPEN, postgresql_where=IS_OPEN
    )


def downgrade() -> None:
    op.drop_index("ix_callbacks_open", "callbacks")
