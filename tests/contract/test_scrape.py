"""A scrape of the API: who may, and what it says while Redis or SQL is away."""

from collections.abc import AsyncGenerator

import pytest
from sqlalchemy.engine import make_url

from api.deployment_figures import DeploymentFigures
from shared.clock import SystemClock
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.figures import RunFigureStore
from shared.telemetry.metrics import Metrics
from tests.kit.exposition import Figures, scraped
from tests.kit.keys import KeyMaker
from tests.kit.product.in_process import api_client
from tests.kit.runs.stored_runs import stored_runs
from tests.kit.services.databases import open_database
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
    async with stored_runs(database_url) as stores:
        figures = DeploymentFigures(
            metrics=Metrics(),
            figures=RunFigureStore(stores.database),
            queue=RunQueue(private_redis.client()),
            clock=SystemClock(),
        )
        async with private_redis.hanging():
            said = Figures((await figures.exposition()).decode())

    assert said.has("runs")
    assert not said.has("queue_waiting")
