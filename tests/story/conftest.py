"""The product for the stories, in both set-ups: on embedded parts, and on Postgres and a real Redis.

A module that is marked `shared_product` runs on one product, and each of its tests is a project of its own on it. A
test in it that is marked `own_product`, and every other module, has a product for each test.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from arq.connections import ArqRedis
from redis.exceptions import RedisError

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.shared_product import Backends, SharedProduct, embedded_backends
from tests.kit.services.databases import PostgresServer, patient_database
from tests.kit.services.missing_service import missing_service
from tests.kit.services.redis_fixtures import TEST_REDIS, shared_server_url
from tests.kit.services.redis_servers import RedisService

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A shared product lives on one event loop for as long as its module's tests do, so these run on it as well."""
    for item in items:
        if item.path.is_relative_to(HERE) and _shares(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def _shares(item: pytest.Item) -> bool:
    return item.get_closest_marker("shared_product") is not None and item.get_closest_marker("own_product") is None


def _chosen(request: pytest.FixtureRequest, name: str) -> Any:
    """The fixture of this name: the shared product's, or the test's own."""
    if _shares(request.node):
        shared: SharedProduct = request.getfixturevalue(f"shared_{request.node.callspec.params['backends']}")
        return getattr(shared, name)
    return request.getfixturevalue(f"own_{name}")


@pytest.fixture(params=["embedded", pytest.param("services", marks=pytest.mark.services)])
def backends(request: pytest.FixtureRequest) -> Backends:
    """A set-up of each kind: an empty one, or the shared product's."""
    return _chosen(request, "backends") if _shares(request.node) else request.getfixturevalue(f"own_{request.param}")


@pytest.fixture
def models(request: pytest.FixtureRequest) -> ModelServer:
    """The model at the other end of the wire."""
    return _chosen(request, "models")


@pytest.fixture
def database(request: pytest.FixtureRequest, backends: Backends) -> Database:
    """The product's database, also for tests that run the product in a way of their own."""
    return _chosen(request, "database")


@pytest.fixture
def redis(request: pytest.FixtureRequest, backends: Backends) -> ArqRedis:
    """The product's Redis, likewise."""
    return _chosen(request, "redis")


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of the running product; a module of tests may have its own, unless its product is shared."""
    return {}


@pytest.fixture
def product(request: pytest.FixtureRequest, backends: Backends, settings: dict[str, Any]) -> Product:
    """The running product. It names `settings` for modules that have several of them."""
    return request.getfixturevalue("project_of_its_own" if _shares(request.node) else "own_product")


@pytest_asyncio.fixture(loop_scope="session")
async def project_of_its_own(request: pytest.FixtureRequest, settings: dict[str, Any]) -> AsyncIterator[Product]:
    """The shared product, as a project sees it that no other test has."""
    assert not settings, "a module with settings of its own cannot share its product"
    shared: SharedProduct = request.getfixturevalue(f"shared_{request.node.callspec.params['backends']}")
    async with shared.project() as product:
        yield product
    await shared.end_test()


@pytest.fixture
async def own_embedded(sqlite_url: str) -> AsyncIterator[Backends]:
    redis = RedisService(None, stores_first=True)
    yield Backends(sqlite_url, redis)
    await redis.close()


@pytest.fixture
async def own_services(postgres_url: str) -> AsyncIterator[Backends]:
    redis = await _shared_server()
    yield Backends(postgres_url, redis)
    await redis.close()


@pytest.fixture
async def own_models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def own_database(backends: Backends) -> AsyncIterator[Database]:
    opened = patient_database(backends.database_url, connections=10)
    yield opened
    await opened.aclose()


@pytest.fixture
def own_redis(backends: Backends) -> ArqRedis:
    return backends.redis.client()


@pytest.fixture
async def own_product(
    database: Database, redis: ArqRedis, models: ModelServer, settings: dict[str, Any]
) -> AsyncIterator[Product]:
    async with running_product(database, redis, models, settings=settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_embedded(
    migrated_sqlite_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedProduct]:
    shared = SharedProduct(lambda: embedded_backends(migrated_sqlite_file, tmp_path_factory.mktemp("shared")))
    await shared.start()
    yield shared
    await shared.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_services(postgres_server: PostgresServer) -> AsyncIterator[SharedProduct]:
    @asynccontextmanager
    async def empty() -> AsyncGenerator[Backends]:
        redis, url = await _shared_server(), postgres_server.lend_migrated()
        yield Backends(url, redis)
        await redis.close()
        postgres_server.release(url)

    shared = SharedProduct(empty)
    await shared.start()
    yield shared
    await shared.aclose()


async def _shared_server() -> RedisService:
    """The Redis that test processes share, with this one's database empty."""
    server = RedisService(shared_server_url())
    try:
        await server.empty()
    except (RedisError, OSError) as error:
        missing_service("Redis", TEST_REDIS, error)
    return server
