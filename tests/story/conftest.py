"""The product for the stories, in both set-ups: on embedded parts, and on Postgres and a real Redis."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from arq.connections import ArqRedis
from redis.exceptions import RedisError

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.services.missing_service import missing_service
from tests.kit.services.redis_fixtures import TEST_REDIS, shared_server_url
from tests.kit.services.redis_servers import RedisService


class Backends(NamedTuple):
    """Where a product keeps what it knows."""

    database_url: str
    redis: RedisService


@pytest.fixture(params=["embedded", pytest.param("services", marks=pytest.mark.services)])
async def backends(request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    """An empty set-up of each kind."""
    if request.param == "embedded":
        found = Backends(request.getfixturevalue("sqlite_url"), RedisService(None))
    else:
        server = RedisService(shared_server_url())
        found = Backends(request.getfixturevalue("postgres_url"), server)
        try:
            await server.empty()
        except (RedisError, OSError) as error:
            missing_service("Redis", TEST_REDIS, error)
    yield found
    await found.redis.close()


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    """The model at the other end of the wire."""
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def database(backends: Backends) -> AsyncIterator[Database]:
    """The product's database, also for tests that run the product in a way of their own."""
    opened = Database(backends.database_url, connections=10)
    yield opened
    await opened.aclose()


@pytest.fixture
def redis(backends: Backends) -> ArqRedis:
    """The product's Redis, likewise."""
    return backends.redis.client()


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of the running product; a module of tests may have its own."""
    return {}


@pytest.fixture
async def product(
    database: Database, redis: ArqRedis, models: ModelServer, settings: dict[str, Any]
) -> AsyncIterator[Product]:
    """The running product."""
    async with running_product(database, redis, models, settings=settings) as running:
        yield running
