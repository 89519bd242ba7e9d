"""An API process and a worker process behind proxies that a test can break. The test's own connections bypass them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from sqlalchemy.engine import make_url

from tests.kit.free_ports import free_port
from tests.kit.product.in_process import Product
from tests.kit.product.processes import HoldfastProcess, Processes, api_at, processes_in
from tests.kit.services.tcp_proxy import TcpProxy
from tests.kit.wait_until import wait_until

Outage = Literal["refused", "stalled"]
"""The ways in which a service is away: connections are cut and new ones refused, or no sent byte arrives."""

CONNECTIONS = 6
"""To Postgres, of each process: its server is shared with others."""


@dataclass(frozen=True)
class ProxiedProcesses:
    """Two processes, the proxies in front of what they need, and a product of the test's own without proxies."""

    product: Product
    processes: Processes
    http: httpx.AsyncClient
    """A client of the API process."""
    worker: HoldfastProcess
    redis_proxy: TcpProxy
    database_proxy: TcpProxy

    async def submit(self, **fields: Any) -> str:
        """A run in token mode, submitted to the API process; its id. `fields` are the agent's."""
        agent = await self.product.agent(**fields)
        return await self.submit_to(agent.id)

    async def submit_to(self, agent_id: str) -> str:
        body = {"input": "Hello", "stream_tokens": True}
        answer = await self.http.post(f"/v1/agents/{agent_id}/messages/async", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    async def worker_logs(self, event: str) -> None:
        """Waits until the worker has logged this."""
        await wait_until(lambda: event in self.worker.log.read_text(), description=f"the worker to log {event}")

    async def end_worker(self) -> None:
        """The first worker is still running, and ends correctly."""
        assert await self.worker.terminate() == 0


@asynccontextmanager
async def unavailable(proxy: TcpProxy, outage: Outage) -> AsyncGenerator[None]:
    """For the block, the service behind the proxy is away."""
    if outage == "stalled":
        proxy.stall(True)
    else:
        proxy.refuse()
    try:
        yield
    finally:
        proxy.stall(False)
        await proxy.accept()


@asynccontextmanager
async def failed_over(proxy: TcpProxy, port: int) -> AsyncGenerator[None]:
    """For the block, the proxy's clients are cut off and reach the server on another port."""
    proxy.refuse()
    other = TcpProxy(port)
    other.port = proxy.port
    async with other.serving():
        yield


@asynccontextmanager
async def behind_proxies(
    product: Product, directory: Path, *, redis_url: str, database_url: str, **settings: object
) -> AsyncGenerator[ProxiedProcesses]:
    """Both processes, ready, for the block. `settings` are fields of `Settings`; the model is the product's."""
    redis, database = TcpProxy(urlsplit(redis_url).port or 6379), TcpProxy(make_url(database_url).port or 5432)
    async with redis.serving(), database.serving():
        environment = {
            **product.models.base_urls(),
            "HOLDFAST_DATABASE_URL": _through(database, database_url),
            "HOLDFAST_DATABASE_CONNECTIONS": str(CONNECTIONS),
            "HOLDFAST_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
            "HOLDFAST_SWEEP_S": "0.3",
            "HOLDFAST_MODEL_RETRIES": "0",
        }
        port = free_port()
        async with processes_in(directory, environment) as processes, api_at(port) as http:
            worker = await processes.worker(**settings)
            await processes.api(port, **settings)
            yield ProxiedProcesses(product, processes, http, worker, redis, database)


def _through(proxy: TcpProxy, database_url: str) -> str:
    """The same database, by way of the proxy."""
    url = make_url(database_url).set(host="127.0.0.1", port=proxy.port)
    return url.render_as_string(hide_password=False)
