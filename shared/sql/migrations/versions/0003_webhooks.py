"""Adds webhook endpoints of projects, and the outbox of deliveries to them."""

import sqlalchemy as sa
from alembic import op

from shared.sql.migrations import protect

revision = "0003_webhooks"
down_revision = "0002_body_state"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite generates numbers only for a column of type INTEGER."""

IS_DUE_SOME_TIME = sa.text("next_attempt_at IS NOT NULL")
IS_OPEN = sa.text("next_attempt_at IS NOT NULL OR given_up_at IS NOT NULL")


def upgrade() -> None:
    _create_endpoints()
    _create_deliveries()
    protect("webhook_endpoints", "webhook_deliveries")


def _create_endpoints() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("id", "project_id", "dialect", "name", "url")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("outcomes", "secret", "secret_hint")),
        sa.Column("former_secret", sa.Text),
        sa.Column("former_until", sa.BigInteger),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("created_at", "updated_at")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_webhook_endpoints")),
        sa.UniqueConstraint("id", name=op.f("uq_webhook_endpoints_id")),
    )
    op.create_index("ix_webhook_endpoints_project_id_number", "webhook_endpoints", ["project_id", "number"])


def _create_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("project_id", "run_id", "endpoint_id", "outcome")),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in ("next_attempt_at", "claimed_until", "given_up_at")),
        sa.Column("last_status_code", sa.Integer),
        sa.Column("last_error", sa.Text),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("run_id", "endpoint_id", name=op.f("uq_webhook_deliveries_run_id_endpoint_id")),
    )
    op.create_index(
        "ix_webhook_deliveries_next_attempt_at",
        "webhook_deliveries",
        ["next_attempt_at"],
        sqlite_where=IS_DUE_SOME_TIME,
        postgresql_where=IS_DUE_SOME_TIME,
    )
    op.create_index(
        "ix_webhook_deliveries_open",
        "webhook_deliveries",
        ["project_id", "number"],
        sqlite_where=IS_OPEN,
        postgresql_where=IS_OPEN,
    )
