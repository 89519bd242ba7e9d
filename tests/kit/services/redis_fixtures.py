"""Redis for tests: each test that asks for `redis_service` or `redis` runs in process and on a real server.

HOLDFAST_TEST_REDIS_URL names, by default database 9 of the one on this machine; the database is emptied. Tests that
kill or empty a server start one of their own (`private_redis`).
"""

import os
import shutil
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from arq.connections import ArqRedis
from redis.exceptions import RedisError

from shared.domain.ids import RunId
from tests.kit.services.missing_service import missing_service
from tests.kit.services.redis_servers import PrivateRedis, RedisService

TEST_REDIS = "HOLDFAST_TEST_REDIS_URL"

_RUN_NUMBERS = count(1)


def shared_server_url() -> str:
    """The server that HOLDFAST_TEST_REDIS_URL names; test processes that run side by side get a database each."""
    url = os.environ.get(TEST_REDIS) or "redis://127.0.0.1:6379/9"
    server, _, database = url.rpartition("/")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return f"{server}/{int(database or 0) + int(worker)}"


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.services)])
async def redis_service(request: pytest.FixtureRequest) -> AsyncIterator[RedisService]:
    """An empty Redis: first in process, then a real one."""
    if request.param == "embedded":
        service = RedisService(None)
    else:
        service = RedisService(shared_server_url())
        try:
            await service.empty()
        except (RedisError, OSError) as error:
            missing_service("Redis", TEST_REDIS, error)
    yield service
    await service.empty()
    await service.close()


@pytest.fixture
async def redis(redis_service: RedisService) -> ArqRedis:
    """A client of `redis_service`."""
    return redis_service.client()


@pytest.fixture
async def private_redis(tmp_path: Path) -> AsyncIterator[PrivateRedis]:
    """A server of the test's own, running and empty."""
    if shutil.which("redis-server") is None:
        missing_service("The program redis-server", "PATH", "not found")
    server = PrivateRedis(tmp_path)
    await server.start()
    yield server
    await server.close()
    await server.kill()


@pytest.fixture
def run_id() -> RunId:
    """A run that no other test knows."""
    return RunId(f"run-{next(_RUN_NUMBERS)}-{uuid4().hex[:8]}")
