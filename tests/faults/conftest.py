"""What the tests of faults run on: a Redis that may be killed, a Postgres database, and workers as processes.

The API runs in the test's own process, so that a test can look at both sides of it; the workers do not.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.sql.engine import Database
from tests.kit.model_server import ModelServer
from tests.kit.product import Product, running_product
from tests.kit.product.processes import Processes, processes_in
from tests.kit.services.databases import patient_database
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.wait_until import LONG_LEASE_S

LEASE_S = 1.5
USUAL_LEASE_S = 6.0
PATIENCE_S = 1.5
SWEEP_S = 1.0


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    """The model at the other end of the wire."""
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    """The database of this test, as the test's own process reaches it."""
    database = patient_database(postgres_url, connections=8)
    yield database
    await database.aclose()


@pytest.fixture
async def product(database: Database, private_redis: PrivateRedis, models: ModelServer) -> AsyncIterator[Product]:
    """The API, in this process. Nobody works until the test starts a worker."""
    settings = {"lease_s": LEASE_S}
    async with running_product(
        database, private_redis.client(), models, settings=settings, with_worker=False
    ) as running:
        yield running


@pytest.fixture
async def working_product(
    database: Database, private_redis: PrivateRedis, models: ModelServer
) -> AsyncIterator[Product]:
    """API and worker, in this process. Leases are as long as in production: on a busy machine the event loop stands
    still for seconds."""
    settings = {"lease_s": USUAL_LEASE_S, "database_patience": PATIENCE_S, "sweep_s": SWEEP_S}
    async with running_product(database, private_redis.client(), models, settings=settings) as running:
        yield running


@pytest.fixture
async def patient_product(
    database: Database, private_redis: PrivateRedis, models: ModelServer
) -> AsyncIterator[Product]:
    """The same with leases that end for no busy machine: for tests of runs that are to stay where they are."""
    settings = {"lease_s": LONG_LEASE_S, "database_patience": LONG_LEASE_S, "sweep_s": SWEEP_S}
    async with running_product(database, private_redis.client(), models, settings=settings) as running:
        yield running


@pytest.fixture
async def processes(
    product: Product, postgres_url: str, private_redis: PrivateRedis, models: ModelServer, tmp_path: Path
) -> AsyncIterator[Processes]:
    """Processes on the same database and the same Redis as `product`. Their leases are longer than any standstill: a
    test that needs one to be over ends it."""
    environment = {
        **models.base_urls(),
        "HOLDFAST_DATABASE_URL": postgres_url,
        "HOLDFAST_REDIS_URL": private_redis.url,
        "HOLDFAST_SWEEP_S": str(SWEEP_S),
        "HOLDFAST_MODEL_RETRIES": "0",
        "HOLDFAST_DATABASE_CONNECTIONS": "8",
        "HOLDFAST_DRAIN_S": "0",
    }
    async with processes_in(tmp_path, environment) as running:
        yield running
