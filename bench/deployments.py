"""What is measured: `holdfast dev`, and API and worker as processes on Redis and Postgres, all started here."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import psutil

from bench.client import Client
from tests.kit.commands import execute
from tests.kit.product.processes import api_at, processes_in
from tests.kit.services.databases import migrate_database, new_database
from tests.kit.services.redis_servers import PrivateRedis
from tests.kit.services.tcp_proxy import free_port

SETTINGS = {"HOLDFAST_LOG_LEVEL": "WARNING"}


@dataclass
class Deployment:
    """A running product, its client and its processes by name."""

    client: Client
    processes: dict[str, psutil.Process]


@asynccontextmanager
async def model() -> AsyncGenerator[dict[str, str]]:
    """The model for the block; the environment that leads to it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.model", stdout=PIPE)
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        yield {"OPENAI_API_KEY": "bench", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def embedded(directory: Path, environment: dict[str, str]) -> AsyncGenerator[Deployment]:
    """`holdfast dev`: SQLite and the Redis inside the process."""
    port = free_port()
    async with processes_in(directory, {**environment, **SETTINGS}, execute) as processes, api_at(port) as http:
        dev = await processes.dev(port)
        yield Deployment(Client(http), {"api + worker": psutil.Process(dev.pid)})


@asynccontextmanager
async def services(directory: Path, environment: dict[str, str], postgres_url: str) -> AsyncGenerator[Deployment]:
    """`holdfast api` and `holdfast worker` on a Redis of their own and a new database of the Postgres server."""
    redis = PrivateRedis(directory)
    await redis.start()
    try:
        async with new_database(postgres_url) as url:
            await migrate_database(url)
            connections = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_REDIS_URL": redis.url}
            port = free_port()
            variables = {**environment, **SETTINGS, **connections}
            async with processes_in(directory, variables, execute) as processes, api_at(port) as http:
                api, worker = await asyncio.gather(processes.api(port), processes.worker())
                yield Deployment(Client(http), {"api": psutil.Process(api.pid), "worker": psutil.Process(worker.pid)})
    finally:
        await redis.close()
        await redis.kill()


def machine() -> str:
    """What the figures were measured on, in one line."""
    described = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", described.read_text()) if described.exists() else []
    processor = names[0] if names else "unknown processor"
    busy = f"load {os.getloadavg()[0]:.1f} before the start"
    return f"{os.cpu_count()} cores, {processor}, Python {sys.version.split()[0]}, everything on this machine; {busy}"
