"""Starts the deployments to measure: `holdfast dev`, and API and worker processes on Redis and Postgres; and as floors,
the model read directly, and a relay that stores nothing."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, CalledProcessError, run
from tempfile import TemporaryDirectory
from typing import Protocol

import psutil
import sqlalchemy as sa

from bench.client import Client
from bench.model_reader import ModelReader
from bench.starting import COMPILED
from tests.kit.commands import execute
from tests.kit.free_ports import free_port
from tests.kit.product.processes import HoldfastProcess, processes_in
from tests.kit.services.databases import migrate_database, new_database
from tests.kit.services.redis_servers import PrivateRedis

SETTINGS = {
    "HOLDFAST_LOG_LEVEL": "WARNING",
    "HOLDFAST_BUILTIN_MODELS": "true",
    # Limits above the defaults, so that the machine is the limit.
    "HOLDFAST_MAX_RUNS": "300",
    "HOLDFAST_READERS": "20000",
    "HOLDFAST_KEY_READERS": "20000",
}

AGENTS = "HOLDFAST_AGENTS"
SHARING = "HOLDFAST_AGENTS_PER_PROCESS"

STARTS_WITHIN_S = 30.0
LOOKS_EVERY_S = 1.0
AT_REST = 0.05
"""Cores."""

Replace = Callable[[signal.Signals, Callable[[], None]], Awaitable[None]]
"""Calls the second argument just before it sends the signal."""


class Fresh(Protocol):
    """Starts another deployment for a block. Yields its client, and its processes' ids by name."""

    def __call__(
        self, agents: str = "", *, per_process: int = 1
    ) -> AbstractAsyncContextManager[tuple[Client, dict[str, int]]]:
        """`agents`: a module with agents in code; `per_process`: how many of their runs share a process."""
        ...


@dataclass
class Deployment:
    """A running product or floor, its client and its processes by name."""

    client: Client
    processes: dict[str, psutil.Process]
    beside: dict[str, Callable[[], list[psutil.Process]]] = field(
        default_factory=dict[str, Callable[[], list[psutil.Process]]]
    )
    """The services that it uses, each with its processes."""
    database_url: str = ""
    redis_url: str = ""
    fresh: Fresh | None = None
    replace: Replace | None = None
    """Ends the process that executes runs with this signal, and provides another one."""
    keeps_readers: bool = False
    """Whether streams survive that."""


class ProcessorTimes:
    """The processor time that a deployment's processes have used since this was made."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._before = self._now()

    def used(self) -> dict[str, float]:
        """Returns seconds by name, without those of processes that have ended meanwhile."""
        now = self._now()
        return {
            name: sum(seconds - self._before[name].get(pid, 0.0) for pid, seconds in of_processes.items())
            for name, of_processes in now.items()
        }

    def of_product(self) -> float:
        """Returns the seconds of the product's own processes."""
        used = self.used()
        return sum(used[name] for name in self._deployment.processes)

    def _now(self) -> dict[str, dict[int, float]]:
        groups = {name: [process] for name, process in self._deployment.processes.items()}
        groups |= {name: find() for name, find in self._deployment.beside.items()}
        return {name: {one.pid: sum(one.cpu_times()[:2]) for one in group} for name, group in groups.items()}


async def at_rest(deployment: Deployment) -> None:
    """Waits until ready processes are idle: a worker first loads SDKs, which must not be measured."""
    end = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < end:
        times = ProcessorTimes(deployment)
        await asyncio.sleep(LOOKS_EVERY_S)
        if times.of_product() < LOOKS_EVERY_S * AT_REST:
            return


@asynccontextmanager
async def model() -> AsyncGenerator[dict[str, str]]:
    """Runs the model for the block. Yields the environment that points to it."""
    async with program("bench.model") as (_, port):
        yield {"OPENAI_API_KEY": "bench", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}


@asynccontextmanager
async def model_alone(environment: dict[str, str]) -> AsyncGenerator[Deployment]:
    """The model, read by the client that reads the product. It measures the load program itself."""
    with _closing(ModelReader(_model_port(environment))) as client:
        yield Deployment(client, {})


@asynccontextmanager
async def relay(directory: Path, environment: dict[str, str]) -> AsyncGenerator[Deployment]:
    """An ASGI application that forwards the model's bytes, and reads logs from its own Redis."""
    async with _redis(directory) as redis:
        arguments = ["bench.relay", str(_model_port(environment)), redis.url]
        async with program(*arguments) as (process, port):
            with _closing(Client(port)) as client:
                ours, beside = {"relay": psutil.Process(process.pid)}, {"redis": lambda: _alive(redis.pid)}
                yield Deployment(client, ours, beside, redis_url=redis.url)


@asynccontextmanager
async def embedded(directory: Path, environment: dict[str, str]) -> AsyncGenerator[Deployment]:
    """`holdfast dev`, with SQLite and an embedded Redis."""
    port = free_port()
    async with processes_in(directory, {**environment, **SETTINGS}, execute) as processes:
        running = await processes.dev(port)
        with _closing(Client(port)) as client:
            deployment = Deployment(client, {"api + worker": psutil.Process(running.pid)})
            deployment.database_url = f"sqlite:///{directory}/dev/holdfast.db"

            async def replace(end: signal.Signals, before: Callable[[], None]) -> None:
                nonlocal running
                before()
                await _end(running, end)
                running = await processes.dev(port)
                deployment.processes["api + worker"] = psutil.Process(running.pid)

            @asynccontextmanager
            async def fresh(agents: str = "", *, per_process: int = 1) -> AsyncGenerator[tuple[Client, dict[str, int]]]:
                with TemporaryDirectory(prefix="holdfast-bench-") as place:
                    variables = {**environment, **SETTINGS, **COMPILED, AGENTS: agents, SHARING: str(per_process)}
                    async with processes_in(Path(place), variables, execute) as others:
                        other = await others.dev(port := free_port())
                        with _closing(Client(port)) as client:
                            yield client, {"holdfast dev": other.pid}

            deployment.replace, deployment.fresh = replace, fresh
            yield deployment


@asynccontextmanager
async def services(directory: Path, environment: dict[str, str], postgres_url: str) -> AsyncGenerator[Deployment]:
    """`holdfast api` and `holdfast worker` on their own Redis and a new database of the Postgres server."""
    port = free_port()
    async with _redis(directory) as redis, new_database(postgres_url) as url:
        await migrate_database(url)
        connections = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_REDIS_URL": redis.url}
        variables = {**environment, **SETTINGS, **connections}
        async with processes_in(directory, variables, execute) as processes:
            api, running = await asyncio.gather(processes.api(port), processes.worker())
            with _closing(Client(port)) as client:
                ours = {"api": psutil.Process(api.pid), "worker": psutil.Process(running.pid)}
                beside = {"redis": lambda: _alive(redis.pid), "postgres": lambda: _backends(url)}
                deployment = Deployment(client, ours, beside, url, redis.url, keeps_readers=True)

                async def replace(end: signal.Signals, before: Callable[[], None]) -> None:
                    nonlocal running
                    ending, running = running, await processes.worker()
                    before()
                    await _end(ending, end)
                    deployment.processes["worker"] = psutil.Process(running.pid)

                @asynccontextmanager
                async def fresh(
                    agents: str = "", *, per_process: int = 1
                ) -> AsyncGenerator[tuple[Client, dict[str, int]]]:
                    with TemporaryDirectory(prefix="holdfast-bench-") as place:
                        own = {**variables, **COMPILED, AGENTS: agents, SHARING: str(per_process)}
                        async with processes_in(Path(place), own, execute) as others:
                            other = await others.api(port := free_port())
                            more = await others.worker()
                            with _closing(Client(port)) as client:
                                yield client, {"holdfast api": other.pid, "holdfast worker": more.pid}

                deployment.replace, deployment.fresh = replace, fresh
                yield deployment


@asynccontextmanager
async def program(*arguments: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int]]:
    """Runs one of our modules as a process for the block. Yields it, and the number that it prints when it is ready."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, stdout=PIPE)
    assert process.stdout is not None
    try:
        yield process, int(await process.stdout.readline())
    finally:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            process.kill()
        await process.wait()


@asynccontextmanager
async def _redis(directory: Path) -> AsyncGenerator[PrivateRedis]:
    redis = PrivateRedis(directory)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()
        await redis.kill()


@contextmanager
def _closing(client: Client) -> Generator[Client]:
    try:
        yield client
    finally:
        client.close()


async def _end(process: HoldfastProcess, end: signal.Signals) -> None:
    if end == signal.SIGKILL:
        await process.kill()
    else:
        await process.terminate()


def _model_port(environment: dict[str, str]) -> int:
    port = sa.make_url(environment["OPENAI_BASE_URL"]).port
    assert port is not None
    return port


def _alive(pid: int | None) -> list[psutil.Process]:
    return [] if pid is None else [psutil.Process(pid)]


def _backends(url: str) -> list[psutil.Process]:
    """Returns the server's processes for connections to one database, if the server is on this machine."""
    named = f" {sa.make_url(url).database} "
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile
            title = " ".join(process.cmdline())
            if title.startswith("postgres:") and named in title:
                found.append(process)
    return found


def machine() -> str:
    """Describes the measured machine in one line."""
    busy = f"load {os.getloadavg()[0]:.1f} before the start"
    return f"{hardware()}, Python {sys.version.split()[0]}, everything on this machine; {busy}"


def hardware() -> str:
    """Returns the processor's name and the number of cores."""
    described = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", described.read_text()) if described.exists() else []
    return f"{os.cpu_count()} cores, {names[0] if names else 'unknown processor'}"


def revision() -> str:
    """Returns the measured commit, with a `+` if files differ from it."""
    try:
        described = run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True)
    except (OSError, CalledProcessError):
        return "unknown"
    return described.stdout.strip()
