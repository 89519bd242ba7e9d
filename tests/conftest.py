"""The services that tests run on. A test that asks for `database_url` runs once per kind of database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError

from tests.kit.missing_service import missing_service
from tests.kit.postgres_server import PostgresServer

pytest_plugins = ["tests.kit.redis_fixtures"]

TEST_DATABASE = "HOLDFAST_TEST_DATABASE_URL"


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The server that HOLDFAST_TEST_DATABASE_URL names, or the one on this machine."""
    server = PostgresServer(os.environ.get(TEST_DATABASE) or "postgresql://127.0.0.1/test")
    try:
        server.check()
    except (OSError, SQLAlchemyError) as error:
        missing_service("Postgres", TEST_DATABASE, error)
    return server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'holdfast.sqlite3'}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A new, empty Postgres database, dropped after the test."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A new, empty database: first SQLite, then Postgres."""
    return request.getfixturevalue(f"{request.param}_url")
