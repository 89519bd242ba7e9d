"""SQL that each database writes its own way: the text that both get."""

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

from shared.sql.portable import AdvisoryLock, JsonOf, OwnedBy, PositionOf

ROWS = sa.table("rows", sa.column("owner", sa.Text), sa.column("document", sa.Text))
DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}


def text_of(element: sa.ColumnElement[bool], dialect: Dialect) -> str:
    query = sa.select(ROWS.c.owner).where(element)
    return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True})).partition("WHERE ")[2]


@pytest.mark.parametrize(
    ("element", "on_sqlite", "on_postgres"),
    [
        pytest.param(
            OwnedBy(ROWS.c.owner, "a"),
            "rows.owner = 'a'",
            "rows.owner >= 'a' AND rows.owner <= 'a'",
            id="an owner, whose index has the order",
        ),
        pytest.param(
            sa.and_(OwnedBy(ROWS.c.owner, "a"), ROWS.c.document == "b"),
            "rows.owner = 'a' AND rows.document = 'b'",
            "rows.owner >= 'a' AND rows.owner <= 'a' AND rows.document = 'b'",
            id="an owner beside another condition",
        ),
        pytest.param(
            PositionOf(ROWS.c.owner, "a") > 0,
            "instr(rows.owner, 'a') > 0",
            "strpos(rows.owner, 'a') > 0",
            id="a text in a text",
        ),
        pytest.param(
            JsonOf(ROWS.c.document)["a"].as_string() == "b",
            """CAST(JSON_EXTRACT(rows.document, '$."a"') AS VARCHAR) = 'b'""",
            "CAST((CAST(rows.document AS JSON) ->> 'a') AS VARCHAR) = 'b'",
            id="a field of a document",
        ),
        pytest.param(
            AdvisoryLock(sa.literal(7)).is_(None),
            "NULL IS NULL",
            "pg_advisory_xact_lock(7) IS NULL",
            id="a lock",
        ),
    ],
)
def test_each_database_gets_its_own_text(element: sa.ColumnElement[bool], on_sqlite: str, on_postgres: str) -> None:
    assert text_of(element, DIALECTS["sqlite"]) == on_sqlite
    assert text_of(element, DIALECTS["postgresql"]) == on_postgres


def test_a_statement_is_not_taken_for_another_with_the_same_construct() -> None:
    """SQLAlchemy compiles a statement once and finds it again by its cache key, which must know the arguments."""
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (owner TEXT, document TEXT)"))
        connection.execute(sa.text("INSERT INTO rows VALUES ('a', 'b')"))
        found = [
            connection.execute(sa.select(sa.func.count()).select_from(ROWS).where(OwnedBy(column, value))).scalar_one()
            for column, value in ((ROWS.c.owner, "a"), (ROWS.c.owner, "b"), (ROWS.c.document, "b"))
        ]
    engine.dispose()
    assert found == [1, 0, 1]
