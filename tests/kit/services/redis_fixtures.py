"""Redis for tests: each test that asks for `redis_service` or `redis` runs in process and on a real server.

HOLDFAST_TEST_REDIS_URL names, by default database 9 of the one on this machine; the database is emptied. Tests that
kill or empty a server start one of their own (`private_redis`).
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from arq.connections import ArqRedis
from redis.exceptions import RedisError

from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.embedded import connect_embedded
from shared.redis.log_servers import LogServers, OneLogServer, log_servers
from tests.kit.process_number import process_number
from tests.kit.services.databases import on_another_loop
from tests.kit.services.missing_service import missing_service
from tests.kit.services.redis_cluster import PrivateCluster
from tests.kit.services.redis_servers import PrivateRedis, RedisService

TEST_REDIS = "HOLDFAST_TEST_REDIS_URL"

_RUN_NUMBERS = count(1)


def shared_server_url() -> str:
    """The server that HOLDFAST_TEST_REDIS_URL names; test processes that run side by side get a database each."""
    url = os.environ.get(TEST_REDIS) or "redis://127.0.0.1:6379/9"
    server, _, database = url.rpartition("/")
    return f"{server}/{int(database or 0) + (process_number() or 0)}"


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.services)])
async def redis_service(request: pytest.FixtureRequest) -> AsyncIterator[RedisService]:
    """An empty Redis: first in process, then a real one."""
    service = await _service(request.param)
    yield service
    await service.empty()
    await service.close()


async def _service(kind: str) -> RedisService:
    if kind == "embedded":
        return RedisService(None)
    service = RedisService(shared_server_url())
    try:
        await service.empty()
    except (RedisError, OSError) as error:
        missing_service("Redis", TEST_REDIS, error)
    return service


@pytest.fixture
async def redis(redis_service: RedisService) -> ArqRedis:
    """A client of `redis_service`."""
    return redis_service.client()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    """A cluster that the tests share: each has runs of its own in it."""
    _need_server()
    cluster = PrivateCluster(tmp_path_factory.mktemp("cluster"))
    try:
        on_another_loop(cluster.start())
        yield cluster
    finally:
        cluster.end()


@dataclass(frozen=True)
class LogService:
    """The servers on which a test keeps logs."""

    servers: LogServers
    redis: ArqRedis
    """A client of the server that has the log of the test's run."""


@pytest.fixture(params=["embedded", *(pytest.param(one, marks=pytest.mark.services) for one in ("server", "cluster"))])
async def log_service(request: pytest.FixtureRequest, run_id: RunId) -> AsyncIterator[LogService]:
    """Empty logs: first in process, then on a real server, then on the three nodes of a cluster."""
    if request.param == "cluster":
        cluster: PrivateCluster = request.getfixturevalue("redis_cluster")
        async with log_servers(cluster.url, connect_embedded()) as servers:
            yield LogService(servers, servers.server_of(keys.events(run_id)))
        await cluster.empty()
        return
    service = await _service(request.param)
    redis = service.client()
    yield LogService(OneLogServer(redis), redis)
    await service.empty()
    await service.close()


@pytest.fixture
async def private_redis(tmp_path: Path) -> AsyncIterator[PrivateRedis]:
    """A server of the test's own, running and empty."""
    _need_server()
    server = PrivateRedis(tmp_path)
    await server.start()
    yield server
    await server.close()
    await server.kill()


@pytest.fixture
def run_id() -> RunId:
    """A run that no other test knows."""
    return RunId(f"run-{next(_RUN_NUMBERS)}-{uuid4().hex[:8]}")


def _need_server() -> None:
    if shutil.which("redis-server") is None:
        missing_service("The program redis-server", "PATH", "not found")
