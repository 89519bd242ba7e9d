"""Archives, passages, and the indices that they are searched by."""

import sqlalchemy as sa
import structlog
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
VECTOR = sa.LargeBinary().with_variant(postgresql.ARRAY(sa.REAL), "postgresql")


def upgrade() -> None:
    _create_archives()
    _create_agent_archives()
    _create_passages()
    op.create_table(
        "passage_tags",
        sa.Column("passage_number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("passage_number", "tag", name=op.f("pk_passage_tags")),
    )
    if op.get_context().dialect.name == "sqlite":
        _create_words_on_sqlite()
    else:
        _create_words_on_postgres()
    _create_passage_vectors()


def downgrade() -> None:
    for table in ("passage_vectors", "passage_words", "passage_tags", "passages", "agent_archives", "archives"):
        op.drop_table(table)


def _create_archives() -> None:
    op.create_table(
        "archives",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("embedding", sa.Text(), nullable=True),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_archives")),
        sa.UniqueConstraint("id", name=op.f("uq_archives_id")),
    )
    op.create_index(op.f("ix_archives_project_id"), "archives", ["project_id"])


def _create_agent_archives() -> None:
    op.create_table(
        "agent_archives",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("is_own", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_agent_archives")),
        sa.UniqueConstraint("agent_id", "archive_id", name=op.f("uq_agent_archives_agent_id_archive_id")),
    )
    op.create_index(op.f("ix_agent_archives_archive_id"), "agent_archives", ["archive_id"])


def _create_passages() -> None:
    op.create_table(
        "passages",
        sa.Column("number", NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("embed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_passages")),
        sa.UniqueConstraint("id", name=op.f("uq_passages_id")),
    )
    op.create_index("ix_passages_archive_id_created_at", "passages", ["archive_id", "created_at", "number"])
    op.create_index("ix_passages_project_id_created_at", "passages", ["project_id", "created_at", "number"])
    is_due = sa.text("embed_at IS NOT NULL")
    op.create_index("ix_passages_embed_at", "passages", ["embed_at"], sqlite_where=is_due, postgresql_where=is_due)


def _create_words_on_sqlite() -> None:
    has_fts5 = op.get_bind().scalar(sa.text("SELECT sqlite_compileoption_used('ENABLE_FTS5')"))
    if has_fts5:
        # Words come folded and separated by spaces; this tokenizer leaves every character that is not ASCII alone.
        op.execute("CREATE VIRTUAL TABLE passage_words USING fts5(words, tokenize = 'ascii')")
        return
    log.warning(
        "sqlite_has_no_fts5",
        consequence="archival memory is searched word by word, without an index: slow beyond some thousand passages",
        fix="use a Python whose SQLite has FTS5 and a new database, or Postgres",
    )
    op.execute("CREATE TABLE passage_words (number INTEGER NOT NULL PRIMARY KEY, words TEXT NOT NULL)")


def _create_words_on_postgres() -> None:
    op.create_table(
        "passage_words",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("words", postgresql.TSVECTOR(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_passage_words")),
    )
    op.create_index("ix_passage_words_words", "passage_words", ["words"], postgresql_using="gin")


def _create_passage_vectors() -> None:
    op.create_table(
        "passage_vectors",
        sa.Column("number", NUMBER, autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("signs", sa.LargeBinary(), nullable=False),
        sa.Column("vector", VECTOR, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_passage_vectors")),
    )
