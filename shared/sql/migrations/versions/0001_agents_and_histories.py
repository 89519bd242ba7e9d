"""Agents, tools, memory, conversations and their messages."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_agent_blocks()
    _create_agent_tags()
    _create_agent_tools()
    _create_agents()
    _create_blocks()
    _create_conversations()
    _create_messages()
    _create_tools()


def downgrade() -> None:
    for table in (
        "tools",
        "messages",
        "conversations",
        "blocks",
        "agents",
        "agent_tools",
        "agent_tags",
        "agent_blocks",
    ):
        op.drop_table(table)


def _create_agent_blocks() -> None:
    op.create_table(
        "agent_blocks",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("block_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agent_blocks")),
        sa.UniqueConstraint("agent_id", "block_id", name=op.f("uq_agent_blocks_agent_id_block_id")),
    )
    op.create_index(op.f("ix_agent_blocks_block_id"), "agent_blocks", ["block_id"], unique=False)


def _create_agent_tags() -> None:
    op.create_table(
        "agent_tags",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "tag", name=op.f("pk_agent_tags")),
    )
    op.create_index(op.f("ix_agent_tags_tag"), "agent_tags", ["tag"], unique=False)


def _create_agent_tools() -> None:
    op.create_table(
        "agent_tools",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("tool_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agent_tools")),
        sa.UniqueConstraint("agent_id", "tool_id", name=op.f("uq_agent_tools_agent_id_tool_id")),
    )
    op.create_index(op.f("ix_agent_tools_tool_id"), "agent_tools", ["tool_id"], unique=False)


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("last_stop_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agents")),
        sa.UniqueConstraint("id", name=op.f("uq_agents_id")),
    )
    op.create_index(op.f("ix_agents_project_id"), "agents", ["project_id"], unique=False)


def _create_blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_blocks")),
        sa.UniqueConstraint("id", name=op.f("uq_blocks_id")),
    )
    op.create_index(op.f("ix_blocks_project_id"), "blocks", ["project_id"], unique=False)


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_conversations")),
        sa.UniqueConstraint("id", name=op.f("uq_conversations_id")),
    )
    op.create_index(op.f("ix_conversations_agent_id"), "conversations", ["agent_id"], unique=False)
    op.create_index(op.f("ix_conversations_project_id"), "conversations", ["project_id"], unique=False)


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("thread_id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("step_id", sa.Text(), nullable=True),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sibling_id", sa.Text(), nullable=True),
        sa.Column("in_context", sa.Boolean(), nullable=False),
        sa.Column("left_because", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    op.create_index(op.f("ix_messages_agent_id"), "messages", ["agent_id"], unique=False)
    op.create_index(op.f("ix_messages_run_id"), "messages", ["run_id"], unique=False)
    op.create_index(op.f("ix_messages_sibling_id"), "messages", ["sibling_id"], unique=False)
    op.create_index(op.f("ix_messages_step_id"), "messages", ["step_id"], unique=False)
    op.create_index("uq_messages_thread_turn_position", "messages", ["thread_id", "turn", "position"], unique=True)


def _create_tools() -> None:
    op.create_table(
        "tools",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_tools")),
        sa.UniqueConstraint("id", name=op.f("uq_tools_id")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_tools_project_id_name")),
    )
