"""The journals of turns whose body is an operator's own code, and the agents that workers have had."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0009_journal"
down_revision = "0008_conversation_names"


def upgrade() -> None:
    text, number = sa.Text, sa.BigInteger
    op.create_table(
        "run_steps",
        *(sa.Column(name, text, nullable=False) for name in ("journal", "slot", "run_id")),
        sa.Column("number", sa.Integer, nullable=False),
        *(sa.Column(name, text, nullable=False) for name in ("kind", "name", "branch")),
        sa.Column("ordinal", sa.Integer, nullable=False),
        *(sa.Column(name, text, nullable=False) for name in ("hash", "state")),
        sa.Column("result", sa.LargeBinary),
        sa.Column("attempt", sa.Integer, nullable=False),
        *(sa.Column(name, number, nullable=False) for name in ("fence", "started_at")),
        sa.Column("ended_at", number),
        sa.Column("idempotency_key", text, nullable=False),
        sa.PrimaryKeyConstraint("journal", "slot", name=op.f("pk_run_steps")),
    )
    op.create_index(op.f("ix_run_steps_run_id"), "run_steps", ["run_id"])
    op.create_table(
        "code_agents",
        *(sa.Column(name, text, nullable=False) for name in ("name", "description")),
        sa.Column("seen_at", number, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_code_agents")),
    )
    protect("run_steps", is_shown="EXISTS (SELECT FROM runs WHERE runs.id = run_steps.run_id)")
