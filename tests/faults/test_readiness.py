"""Balancers ask `/readyz`, and take out whom it refuses. An outage of what the API can do without must not be one of
the API."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from sqlalchemy.engine import make_url

from tests.kit.free_ports import free_port
from tests.kit.product.behind_proxies import Outage, unavailable
from tests.kit.product.processes import Processes, api_at, processes_in
from tests.kit.services.databases import read_only
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.services.tcp_proxy import TcpProxy
from tests.kit.wait_until import wait_until

WHOLE = {
    "database": True,
    "database_writes": True,
    "redis": True,
    "redis_writes": True,
    "migrations": True,
    "worker": True,
}
WITHOUT_REDIS = {**WHOLE, "redis": False, "redis_writes": False, "worker": None}


@pytest.fixture
async def processes(tmp_path: Path, postgres_url: str, private_redis: PrivateRedis) -> AsyncGenerator[Processes]:
    environment = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_REDIS_URL": private_redis.url}
    async with processes_in(tmp_path, {**environment, "HOLDFAST_BUILTIN_MODELS": "true"}) as processes:
        await processes.migrate()
        yield processes


async def services(http: httpx.AsyncClient, expected: Mapping[str, bool | None]) -> None:
    """Returns when the whole deployment is said to be so, with the status that belongs to it."""

    async def are_so() -> bool:
        answer = await http.get("/readyz?full")
        assert (answer.status_code == 200) == (answer.json()["status"] == "ready") == ("code" not in answer.json())
        return answer.json()["services"] == expected and answer.is_success == all(expected.values())

    await wait_until(are_so, description=f"services {expected}")


async def is_served(http: httpx.AsyncClient) -> None:
    """The API takes a run, and is left where it is."""
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "services": {"database": True}})
    agent = (await http.post("/v1/agents", json={"model": "builtin/echo"})).json()
    sent = await http.post(f"/v1/agents/{agent['id']}/messages/async", json={"input": "kept"})
    assert sent.status_code == 200, sent.text
    assert (await http.get("/readyz")).status_code == 200


@pytest.mark.parametrize("how", ["frozen", pytest.param("killed", marks=pytest.mark.exhaustive)])
async def test_an_api_stays_ready_while_redis_is_away(
    processes: Processes, private_redis: PrivateRedis, how: str
) -> None:
    port = free_port()
    await processes.api(port)
    await processes.worker()
    async with api_at(port) as http, AsyncExitStack() as outage:
        await services(http, WHOLE)
        if how == "frozen":
            await outage.enter_async_context(private_redis.hanging())
        else:
            await private_redis.kill()
        await services(http, WITHOUT_REDIS)
        await is_served(http)
        told = (await http.get("/readyz?full")).json()
        assert (told["sandbox"], told["javascript"]) == (None, None), "only Redis knows"
        await outage.aclose()
        if how == "killed":
            await private_redis.start()
        await services(http, WHOLE)


async def test_an_api_stays_ready_when_the_last_worker_has_ended(processes: Processes) -> None:
    port = free_port()
    await processes.api(port, lease_s=1)
    worker = await processes.worker(lease_s=1)
    async with api_at(port) as http:
        await services(http, WHOLE)
        await worker.kill()
        await services(http, {**WHOLE, "worker": False})
        await is_served(http)


@pytest.mark.parametrize("outage", [pytest.param("refused", marks=pytest.mark.exhaustive), "stalled"])
async def test_an_api_without_its_database_is_not_ready_and_says_so_in_time(
    processes: Processes, postgres_url: str, outage: Outage
) -> None:
    """A probe of Kubernetes waits for 5 s. The answer came after 18 to 29 s when a service was frozen."""
    port, address = free_port(), make_url(postgres_url)
    async with TcpProxy(address.port or 5432).serving() as proxy, api_at(port) as http:
        through = address.set(host="127.0.0.1", port=proxy.port)
        await processes.api(port, database_url=through.render_as_string(hide_password=False))
        assert (await http.get("/readyz")).status_code == 200
        async with unavailable(proxy, outage):

            async def is_away() -> bool:
                answer = await http.get("/readyz")
                return (answer.status_code, answer.json()["services"]) == (503, {"database": False})

            await wait_until(is_away, description="the API to miss its database")
            refused = await http.get("/readyz")
            assert refused.headers["Retry-After"] and refused.json()["hint"], "it was the one error without a code"
            assert refused.json()["code"] == "service_unavailable"
            assert refused.json()["message"] == "Not ready: the database does not answer"
            full = (await http.get("/readyz?full")).json()
            assert full["message"].endswith("; whether the database has all migrations cannot be known")
            assert "refuses writes" not in full["message"]
            away = {"database": False, "database_writes": False, "migrations": None, "worker": False}
            assert full["services"] == WHOLE | away
            assert (await http.get("/healthz")).status_code == 200, "a restart would not mend the database"


async def test_a_database_that_refused_writes_was_said_to_be_well(processes: Processes, postgres_url: str) -> None:
    """After a failover to a standby, each request that writes was a 503, and no page of the operator showed it."""
    port, worker_port = free_port(), free_port()
    await processes.api(port)
    await processes.worker(worker_port=worker_port)
    async with api_at(port) as http, api_at(worker_port) as worker:
        await services(http, WHOLE)
        async with read_only(postgres_url):
            await services(http, {**WHOLE, "database_writes": False})
            assert (await http.get("/readyz?full")).json()["message"] == "Not ready: the database refuses writes"
            refused = await http.post("/v1/agents", json={"model": "builtin/echo"})
            assert (refused.status_code, "refuses writes" in refused.text) == (503, True)
            assert (await http.get("/readyz")).status_code == 200, "the API still shows histories and streams"
            assert (await http.get("/v1/admin/operations")).json()["services"]["database_writes"] is False

            async def worker_is_not_ready() -> bool:
                answer = await worker.get("/readyz")
                return answer.status_code == 503 and answer.json()["services"]["database_writes"] is False

            await wait_until(worker_is_not_ready, description="the worker to miss the database's writes")
        await services(http, WHOLE)

        async def takes_agents() -> bool:
            # A connection that was opened meanwhile stays read-only, and its first write closes it.
            return (await http.post("/v1/agents", json={"model": "builtin/echo"})).is_success

        async def worker_is_ready() -> bool:
            return (await worker.get("/readyz")).status_code == 200

        await wait_until(takes_agents, description="the API to write again")

        await wait_until(worker_is_ready, description="the worker to be ready again")
