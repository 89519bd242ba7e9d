"""Keys that are stored, and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("token_secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.Column("rotated_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("id", name=op.f("uq_api_keys_id")),
    )
    op.create_index("ix_api_keys_project_id_number", "api_keys", ["project_id", "number"])
    op.create_table(
        "api_key_secrets",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("valid_until", sa.BigInteger()),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_api_key_secrets")),
    )
    op.create_index(op.f("ix_api_key_secrets_key_id"), "api_key_secrets", ["key_id"])
    op.create_table(
        "audit_events",
        sa.Column("number", NUMBER, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("key_name", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_events")),
        sa.UniqueConstraint("id", name=op.f("uq_audit_events_id")),
    )
    op.create_index("ix_audit_events_project_id_number", "audit_events", ["project_id", "number"])


def downgrade() -> None:
    op.drop_table("audit_events")
    op.drop_table("api_key_secrets")
    op.drop_table("api_keys")
