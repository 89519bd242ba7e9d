"""Adds sleep-time groups of agents, and the turns that wait for them."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0007_groups"
down_revision = "0006_mcp_sign_in"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

IS_TO_BE_LOOKED_AT = sa.text("look_at IS NOT NULL")


def upgrade() -> None:
    _create_groups()
    _create_turns()
    protect("agent_groups", "agent_group_members", "group_turns")


def _create_groups() -> None:
    op.create_table(
        "agent_groups",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "project_id", "manager_agent_id", "description")),
        *(sa.Column(name, sa.Integer) for name in ("frequency", "turns_counter")),
        sa.Column("last_message_id", sa.Text),
        sa.Column("is_on", sa.Boolean, nullable=False),
        sa.Column("hidden", sa.Boolean),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "updated_at")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agent_groups")),
        sa.UniqueConstraint("id", name=op.f("uq_agent_groups_id")),
        sa.UniqueConstraint("manager_agent_id", name=op.f("uq_agent_groups_manager_agent_id")),
    )
    op.create_index("ix_agent_groups_project_id_number", "agent_groups", ["project_id", "number"])
    op.create_table(
        "agent_group_members",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("project_id", "group_id", "agent_id")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agent_group_members")),
        sa.UniqueConstraint("group_id", "agent_id", name=op.f("uq_agent_group_members_group_id_agent_id")),
    )
    op.create_index("ix_agent_group_members_agent_id", "agent_group_members", ["agent_id"])


def _create_turns() -> None:
    op.create_table(
        "group_turns",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("project_id", "group_id", "thread_id")),
        sa.Column("turn", sa.Integer, nullable=False),
        sa.Column("cause_id", sa.Text, nullable=False),
        sa.Column("submitted_by", sa.Text),
        sa.Column("counts", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("look_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_group_turns")),
    )
    op.create_index("ix_group_turns_group_id_number", "group_turns", ["group_id", "number"])
    op.create_index(
        "ix_group_turns_look_at",
        "group_turns",
        ["look_at"],
        sqlite_where=IS_TO_BE_LOOKED_AT,
        postgresql_where=IS_TO_BE_LOOKED_AT,
    )
