"""An API process and a worker process whose ways to Redis and to Postgres a test can shut. The test's own stay open."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from sqlalchemy.engine import make_url

from tests.kit.door import Door
from tests.kit.processes import HoldfastProcess, Processes, api_at, free_port, processes_in
from tests.kit.product import Product
from tests.kit.wait_until import wait_until

Way = Literal["refused", "stalled"]
"""How a service is away: connections are cut and new ones refused, or nothing that is sent arrives."""

CONNECTIONS = 6
"""To Postgres, of each process: its server is shared with others."""


@dataclass(frozen=True)
class BehindDoors:
    """Two processes, the doors in front of what they need, and a product of the test's own that needs no door."""

    product: Product
    processes: Processes
    http: httpx.AsyncClient
    """A client of the API process."""
    worker: HoldfastProcess
    redis_door: Door
    database_door: Door

    async def submit(self, **fields: Any) -> str:
        """A run in token mode, submitted to the API process; its id. `fields` are the agent's."""
        agent = await self.product.agent(**fields)
        return await self.submit_to(agent.id)

    async def submit_to(self, agent_id: str) -> str:
        body = {"input": "Hello", "stream_tokens": True}
        answer = await self.http.post(f"/v1/agents/{agent_id}/messages/async", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    async def worker_says(self, event: str, timeout: float = 30.0) -> None:
        """Waits until the worker has logged this."""
        await wait_until(
            lambda: event in self.worker.log.read_text(), description=f"the worker to log {event}", timeout=timeout
        )

    async def end_worker(self) -> None:
        """The worker that was started first is still there, and ends as it should."""
        assert await self.worker.terminate() == 0


@asynccontextmanager
async def away(door: Door, way: Way) -> AsyncGenerator[None]:
    """For the block, the service behind the door is away."""
    if way == "stalled":
        door.stall(True)
    else:
        door.shut()
    try:
        yield
    finally:
        door.stall(False)
        await door.open()


@asynccontextmanager
async def behind_doors(
    product: Product, directory: Path, *, redis_url: str, database_url: str, **settings: object
) -> AsyncGenerator[BehindDoors]:
    """Both processes, ready, for the block. `settings` are fields of `Settings`; the model is the product's."""
    redis, database = Door(urlsplit(redis_url).port or 6379), Door(make_url(database_url).port or 5432)
    async with redis.standing(), database.standing():
        environment = {
            **product.models.base_urls(),
            "HOLDFAST_DATABASE_URL": url_through(database, database_url),
            "HOLDFAST_DATABASE_CONNECTIONS": str(CONNECTIONS),
            "HOLDFAST_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0",
            "HOLDFAST_SWEEP_S": "0.3",
            "HOLDFAST_MODEL_RETRIES": "0",
        }
        port = free_port()
        async with processes_in(directory, environment) as processes, api_at(port) as http:
            worker = await processes.worker(**settings)
            await processes.api(port, **settings)
            yield BehindDoors(product, processes, http, worker, redis, database)


def url_through(door: Door, database_url: str) -> str:
    """The same database, by way of the door."""
    url = make_url(database_url).set(host="127.0.0.1", port=door.port)
    return url.render_as_string(hide_password=False)
