"""A scrape of the API: who may, and what it says while Redis or SQL is away."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from sqlalchemy.engine import make_url

from api.operations import DeploymentStats
from shared.concurrency import SystemClock
from shared.redis.event_log import EventLog
from shared.redis.log_servers import OneLogServer, log_servers
from shared.redis.process_presence import RedisServers
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.listing import RunStatStore
from shared.telemetry.metrics import Metrics
from tests.kit.exposition import Figures, scraped
from tests.kit.free_ports import free_port
from tests.kit.keys import KeyMaker
from tests.kit.model_server import ModelServer
from tests.kit.product.in_process import api_client, running_product
from tests.kit.runs.stored_runs import stored_runs
from tests.kit.services.databases import open_database
from tests.kit.services.redis_cluster import PrivateCluster
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.services.tcp_proxy import TcpProxy

OPERATOR = {"Authorization": "Bearer a-long-key-of-the-operator"}
KEYS = "one=a-long-key-of-the-operator"


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with open_database(database_url) as database:
        yield database


async def test_a_scrape_needs_the_scope_admin_where_keys_are_needed(database: Database) -> None:
    """Its figures are of all projects together."""
    async with api_client(database, api_keys=KEYS) as http:
        nobody = await http.get("/metrics")
        reader = await http.get("/metrics", headers=await KeyMaker(database).headers("write"))
        operator = await http.get("/metrics", headers=OPERATOR)

    assert (nobody.status_code, reader.status_code, operator.status_code) == (401, 403, 200)
    assert "Authorization: Bearer" in nobody.json()["detail"]
    assert "needs a key with the scope admin" in reader.json()["detail"]
    figures = Figures(operator.text)
    assert figures.of("http_requests_total", method="GET", route="none", status="401") == 1
    assert figures.of("http_requests_total", method="GET", route="none", status="403") == 1


async def test_without_keys_a_scrape_is_open_to_this_machines_names(database: Database) -> None:
    async with api_client(database) as http:
        figures = await scraped(http)
        foreign = await http.get("/metrics", headers={"Host": "evil.example"})

    assert figures.has("build_info")
    assert foreign.status_code == 403


class AheadClock(SystemClock):
    """Runs on by itself, and further when a test says so."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def test_the_deployment_is_asked_for_its_figures_once_in_five_seconds(database: Database) -> None:
    """A scrape every second, by several Prometheus, must not become load."""
    clock = AheadClock()
    async with api_client(database, clock=clock) as http:
        assert (await scraped(http)).of("runs", status="created") == 0
        clock.ahead_s = -3600  # however long the machine takes for what follows
        made = await http.post("/v1/agents", json={"name": "one", "model": "builtin/echo"})
        sent = await http.post(f"/v1/agents/{made.json()['id']}/messages/async", json={"input": "Hello"})
        assert sent.status_code == 200, sent.text

        assert (await scraped(http)).of("runs", status="created") == 0
        clock.ahead_s = 5

        later = await scraped(http)
        assert (later.of("runs", status="created"), later.of("queue_waiting")) == (1, 1)


async def test_a_database_that_is_away_holds_no_scrape_up(postgres_url: str) -> None:
    """What SQL knows is left out, and what this process and Redis know is shown."""
    url, clock = make_url(postgres_url), AheadClock()
    proxy = TcpProxy(url.port or 5432)
    way = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    async with proxy.serving(), open_database(way) as database, api_client(database, clock=clock) as http:
        assert (await scraped(http)).has("runs")
        proxy.refuse()
        clock.ahead_s = 5

        figures = await scraped(http)

        assert figures.has("queue_waiting")
        assert not figures.has("runs")
        assert not figures.has("callbacks_waiting")


async def test_a_redis_that_hangs_holds_no_scrape_up(database_url: str, private_redis: PrivateRedis) -> None:
    redis = private_redis.client()
    servers = RedisServers(shared=redis, logs=OneLogServer(redis), is_embedded=False)
    async with stored_runs(database_url) as stores:
        figures = DeploymentStats(
            metrics=Metrics(),
            stats=RunStatStore(stores.database),
            queue=RunQueue(private_redis.client()),
            redis=servers,
            event_log=EventLog(redis, ttl_s=3600),
            clock=SystemClock(),
        )
        async with private_redis.hanging():
            said = Figures((await figures.exposition()).decode())

    assert said.has("runs")
    assert not said.has("queue_waiting")
    assert not said.has("redis_memory_used_bytes")


async def test_the_memory_of_servers_that_keep_logs_was_in_no_metric(
    sqlite_url: str, private_redis: PrivateRedis, redis_cluster: PrivateCluster
) -> None:
    """The one that filled up was seen when runs stood still. Each node of the cluster is a server of its own, and the
    one that all share has a series of the same name."""
    redis, nodes = private_redis.client(), {f"127.0.0.1:{port}" for port in redis_cluster.ports}
    await cast("Any", redis).config_set("maxmemory", "100mb")
    async with (
        ModelServer() as models,
        open_database(sqlite_url) as database,
        log_servers(redis_cluster.url, redis) as servers,
        running_product(database, redis, models, servers=servers, with_worker=False) as product,
    ):
        figures = await scraped(product.http)
        seen = (await product.http.get("/v1/admin/operations")).json()

    shared = f"127.0.0.1:{private_redis.port}"
    assert figures.labels("redis_memory_used_bytes") == {shared, *nodes}
    assert all(figures.of("redis_memory_used_bytes", server=one) > 0 for one in (shared, *nodes))
    assert figures.labels("redis_memory_limit_bytes") == {shared}
    assert figures.of("redis_memory_limit_bytes", server=shared) == 100 * 2**20
    assert seen["redis"]["max_memory_bytes"] == 100 * 2**20
    assert {one["server"] for one in seen["log_servers"]} == nodes
    assert all(one["used_memory_bytes"] > 0 and one["max_memory_bytes"] is None for one in seen["log_servers"])


async def test_two_databases_of_one_redis_are_one_server(private_redis: PrivateRedis) -> None:
    first = private_redis.client()
    async with log_servers(private_redis.url.removesuffix("0") + "1", first) as logs:
        assert len(await RedisServers(shared=first, logs=logs, is_embedded=False).memory()) == 1


async def test_a_second_redis_that_is_away_leaves_the_figures_of_the_first(private_redis: PrivateRedis) -> None:
    first = private_redis.client()
    away = f"127.0.0.1:{free_port()}"
    async with log_servers(f"redis://user:geheim@{away}/0", first) as logs:
        servers = RedisServers(shared=first, logs=logs, is_embedded=False)
        [of_first, of_second] = await servers.memory(within_s=2)
    assert (of_first.server, of_second.server) == (f"127.0.0.1:{private_redis.port}", away)
    assert (of_first.used or 0) > 0
    assert of_second.used is None
