"""The tables of keys, and of who did what with them."""

import sqlalchemy as sa

from shared.sql.tables import BigNumber, UtcMoment, metadata

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    # JSON list of texts.
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("prefix", sa.Text, nullable=False),
    # Signs the stream tokens that are made with the key.
    sa.Column("token_secret", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcMoment, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("expires_at", UtcMoment),
    sa.Column("last_used_at", UtcMoment),
    sa.Column("rotated_at", UtcMoment),
    sa.Column("revoked_at", UtcMoment),
    sa.Index("ix_api_keys_project_id_number", "project_id", "number"),
)
"""Rows stay when a key ends: a server whose database has had a key never opens itself again."""

api_key_secrets = sa.Table(
    "api_key_secrets",
    metadata,
    # SHA-256, as hexadecimal digits.
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, nullable=False, index=True),
    # When a secret ends that was replaced by another.
    sa.Column("valid_until", UtcMoment),
)

audit_events = sa.Table(
    "audit_events",
    metadata,
    sa.Column("number", BigNumber, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("at", UtcMoment, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("key_name", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("object_id", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("user_agent", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Index("ix_audit_events_project_id_number", "project_id", "number"),
)
