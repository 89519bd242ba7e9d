"""The deployment under test: API and worker processes, their own Redis, a new database, a proxy before each service."""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil
from sqlalchemy.engine import make_url

from bench.chaos.mcp_slots import McpSlot
from shared.domain.errors import Unavailable
from shared.domain.tools import SandboxTier
from shared.sql.connection import Connection
from shared.sql.engine import Database
from tests.kit.commands import Launch
from tests.kit.free_ports import free_port
from tests.kit.product.processes import HoldfastProcess, Processes, processes_in
from tests.kit.services.redis_servers import PrivateRedis, promote, replicate
from tests.kit.services.tcp_proxy import TcpProxy
from worker.tools.sandbox_choice import SandboxChoice

LEASE_S = 6.0
RESUMING_S = 2.0
"""Seconds in which a process that was suspended learns what it has missed."""

PROJECTS = {"north": "key-of-north", "south": "key-of-south"}
"""Projects and their keys."""

CALLBACK_SECRET = "what-callbacks-are-signed-with"

REQUESTS_PER_S, REQUESTS_OF_SOUTH_PER_S, READERS, QUEUED_RUNS, RUNS_IN_FLIGHT = 1.6, 1.2, 1.5, 0.4, 0.6
"""A project's limits, for each of its concurrent stories. Stories sometimes reach each of them, but succeed."""

IN_FLIGHT = "HOLDFAST_RUNS_IN_FLIGHT"

PROGRAM = "bench.chaos.code_program"
"""The module with agents in code."""

MOST_CONNECTIONS = 75
"""All processes' connections to Postgres: a server's default limit is 100, and other programs may use the server."""

MCP_CALL_S = 25.0
"""Seconds for one call of an MCP server's tool: more than the slowest tool and the longest suspension take together."""

SETTINGS = {
    "HOLDFAST_LEASE_S": str(LEASE_S),
    "HOLDFAST_KEEPALIVE_S": "5",
    "HOLDFAST_DATABASE_CONNECTIONS": "14",
    "HOLDFAST_LOG_LEVEL": "INFO",
    "HOLDFAST_API_KEYS": ",".join(f"{project}={key}" for project, key in PROJECTS.items()),
    "HOLDFAST_CALLBACK_ALLOW_PRIVATE": "true",
    "HOLDFAST_CALLBACK_SECRET": CALLBACK_SECRET,
    # Never reached: the checks only compare the accounts with the runs.
    "HOLDFAST_PROJECT_DAILY_TOKENS": str(10**12),
    "HOLDFAST_AGENT_DAILY_TOKENS": str(10**12),
    "HOLDFAST_REACHABLE_NETWORKS": "127.0.0.0/8",  # where the MCP servers are
    "HOLDFAST_MCP_TIMEOUT": str(MCP_CALL_S),
    "HOLDFAST_BUILTIN_MODELS": "true",  # `builtin/scripted` plays the texts of `scripts.py`
    "HOLDFAST_AGENTS": PROGRAM,
}


def limits_for(at_once: int) -> dict[str, str]:
    """Returns limits that the stories sometimes reach. `at_once`: concurrent stories of all projects together."""
    stories = at_once / len(PROJECTS)
    own = {"south": {"key_requests_per_s": REQUESTS_OF_SOUTH_PER_S * stories}}
    return {
        "HOLDFAST_REQUESTS_PER_S": str(REQUESTS_PER_S * stories),
        "HOLDFAST_READERS": str(round(READERS * stories)),
        "HOLDFAST_QUEUED_RUNS": str(round(QUEUED_RUNS * stories)),
        IN_FLIGHT: str(round(RUNS_IN_FLIGHT * stories)),
        "HOLDFAST_PROJECT_LIMITS": json.dumps(own),
    }


async def tier_of(sandbox: str) -> str:
    """Returns the isolation of tools with this value of HOLDFAST_SANDBOX. Raises `InvalidRequest` if there is none."""
    plan = await SandboxChoice(sandbox, "nobody", "", 64).best_isolation()
    return SandboxTier.PROCESS if plan is None else plan.tier


@dataclass
class Slot:
    """A place for one process. Its next process takes over the place, and the port of an API."""

    name: str
    processes: Processes
    port: int | None = None
    process: HoldfastProcess | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a fault."""
    is_suspended: bool = False
    resumed_at: float = 0.0
    """When it last continued after a suspension. Seconds since the epoch."""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Starts a process and waits until it is ready. If it ends because a service is away, starts it again."""
        self.process = await self.started()

    async def started(self, **settings: object) -> HoldfastProcess:
        """Returns a new, ready process beside the slot's own. `settings` are fields of `Settings`."""
        start = self.processes.worker if self.port is None else partial(self.processes.api, self.port)
        while True:
            try:
                return await start(**settings)
            except (AssertionError, TimeoutError):
                await asyncio.sleep(0.5)

    async def replace(self, launch: Launch) -> None:
        """Replaces the process with one of another release, and sends it SIGTERM, as a deploy does."""
        self.processes.launch = launch
        async with self.changing:
            assert self.process is not None
            replaced = self.process
            if self.port is None:
                self.process = await self.started()
            await replaced.terminate()
            if self.port is not None:
                self.process = await self.started()

    def is_running(self) -> bool:
        """Whether its process exists, suspended or not."""
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class PatientDatabase(Database):
    """The harness's own access to the database. It retries while the server has no free connection."""

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Connection]:
        """Yields a connection for reading as soon as one is free."""
        async with AsyncExitStack() as stack:
            while True:
                try:
                    connection = await stack.enter_async_context(super().read())
                except Unavailable:
                    await asyncio.sleep(0.2)
                else:
                    break
            yield connection


@dataclass
class Deployment:
    """A running product, and the faults that can be injected into it."""

    directory: Path
    redis: PrivateRedis
    redis_servers: list[PrivateRedis]
    """The current one, and those that it replaced."""
    redis_proxy: TcpProxy | None
    postgres_proxy: TcpProxy | None
    """None if no fault is injected into the connection to a service."""
    database: Database
    """The harness's own access to the database, which no fault affects."""
    workers: list[Slot]
    apis: list[Slot]
    mcp_servers: list[McpSlot] = field(default_factory=list[McpSlot])
    redis_lost_data_at: float = 0.0
    """When Redis was last back without its data, or its newest data. Seconds since the epoch."""

    @property
    def ports(self) -> list[int]:
        return [slot.port for slot in self.apis if slot.port is not None]

    @property
    def pids(self) -> set[int]:
        """The ids of all processes that the harness has started, including dead ones."""
        started = {pid for slot in (*self.workers, *self.apis) for pid in slot.processes.pids}
        started |= {pid for server in self.mcp_servers for pid in server.pids}
        return started | {one.pid for one in self.redis_servers if one.pid is not None}

    def excuse(self) -> str:
        """Why a worker may not know yet that it has lost its runs; empty if it must know. Their tools continue then."""
        now = time.time()
        if any(slot.is_suspended or now - slot.resumed_at < RESUMING_S for slot in self.workers):
            return "beside a suspended worker"
        return "after Redis lost data" if now - self.redis_lost_data_at < LEASE_S else ""

    def redis_client(self) -> Any:
        """Returns a new client of the current Redis that bypasses the proxy."""
        return cast("Any", self.redis.client())

    async def fail_over(self, *, lags_s: float) -> None:
        """Replaces Redis with a replica, which lacks the writes of the last `lags_s` seconds."""
        lost, replica = self.redis, PrivateRedis(self.directory)
        await replica.start()
        self.redis_servers.append(replica)
        await replicate(lost, replica)
        await promote(replica)
        await asyncio.sleep(lags_s)
        await lost.kill()
        self.redis = replica
        assert self.redis_proxy is not None
        self.redis_proxy.lead_to(replica.port)
        self.redis_lost_data_at = time.time()


@asynccontextmanager
async def deployed(
    directory: Path,
    database_url: str,
    settings: Mapping[str, str],
    *,
    workers: int,
    apis: int,
    launch: Launch,
    behind_proxies: bool,
) -> AsyncGenerator[Deployment]:
    """Yields a deployment of the release that `launch` starts. All its processes have ended after the block."""
    redis = PrivateRedis(directory)
    redis_servers = [redis]
    try:
        await redis.start()
        async with AsyncExitStack() as stack:
            database = PatientDatabase(database_url)
            stack.push_async_callback(database.aclose)
            redis_url, redis_proxy, postgres_proxy = redis.url, None, None
            if behind_proxies:
                redis_url, redis_proxy = await _proxied(stack, redis.url)
                database_url, postgres_proxy = await _proxied(stack, database_url, MOST_CONNECTIONS)
            environment = {**settings, "HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_REDIS_URL": redis_url}
            names = [*(f"worker-{n}" for n in range(workers)), *(f"api-{n}" for n in range(apis))]
            slots = [await _slot(stack, directory, name, environment, launch) for name in names]
            await slots[0].processes.migrate()
            deployment = Deployment(
                directory, redis, redis_servers, redis_proxy, postgres_proxy, database, slots[:workers], slots[workers:]
            )
            await asyncio.gather(*(slot.start() for slot in slots))
            yield deployment
    finally:
        for one in redis_servers:
            await one.close()
            with suppress(ProcessLookupError):  # it may have got our SIGTERM, too
                await one.kill()


async def _proxied(stack: AsyncExitStack, service: str, most: int = 10_000) -> tuple[str, TcpProxy]:
    """Returns the service's URL through a proxy, and the proxy, which can inject faults."""
    url = make_url(service)
    proxy = await stack.enter_async_context(TcpProxy(url.port or 5432, most).serving())
    return url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False), proxy


@asynccontextmanager
async def mcp_servers_of(deployment: Deployment, dice: random.Random) -> AsyncGenerator[None]:
    """Gives each project an MCP server during the block: one of the newest version, or one of before it."""
    kinds = dice.choice(("stateless", "json")), dice.choice(("sessions", "sse"))
    try:
        for project, kind in zip(PROJECTS, dice.sample(kinds, len(kinds)), strict=True):
            place = deployment.directory / f"mcp-of-{project}"
            place.mkdir()
            slot = McpSlot(project, kind, free_port(), place)
            deployment.mcp_servers.append(slot)
            await slot.start()
        yield
    finally:
        for slot in deployment.mcp_servers:
            if slot.process is not None:
                await slot.process.kill()


async def _slot(stack: AsyncExitStack, directory: Path, name: str, environment: dict[str, str], launch: Launch) -> Slot:
    place = directory / name
    place.mkdir()
    processes = await stack.enter_async_context(processes_in(place, environment, launch))
    return Slot(name, processes, free_port() if name.startswith("api") else None)


def say(text: str) -> None:
    """Prints a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
