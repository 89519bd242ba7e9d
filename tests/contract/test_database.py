"""Connections that die are replaced, and a busy process does not ask before every use whether they have."""

from collections.abc import AsyncGenerator

import pytest
import sqlalchemy as sa

from shared.domain.errors import Unavailable
from shared.sql import engine
from shared.sql.engine import Database


@pytest.fixture
async def database(postgres_url: str) -> AsyncGenerator[Database]:
    """One that has one connection."""
    database = Database(postgres_url, connections=1)
    yield database
    await database.aclose()


async def backend_of(database: Database) -> int:
    async with database.read() as connection:
        return (await connection.execute(sa.select(sa.func.pg_backend_pid()))).scalar_one()


async def end_backend(url: str, backend: int) -> None:
    other = Database(url, connections=1)
    async with other.read() as connection:
        ended = await connection.execute(sa.select(sa.func.pg_terminate_backend(backend, 5000)))
        assert ended.scalar_one()
    await other.aclose()


async def test_a_connection_that_died_while_nobody_used_it_is_replaced_unnoticed(
    database: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRUSTED_S", 0.0)
    first = await backend_of(database)
    await end_backend(postgres_url, first)
    assert await backend_of(database) != first


async def test_a_connection_that_died_between_two_uses_fails_once(
    database: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRUSTED_S", 60.0)
    first = await backend_of(database)
    await end_backend(postgres_url, first)
    with pytest.raises(Unavailable):
        await backend_of(database)
    assert await backend_of(database) != first
