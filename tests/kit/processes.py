"""Holdfast as an operator runs it: processes of its own, which a test may kill, suspend and ask to end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE

import httpx

from tests.kit.product import HEADERS
from tests.kit.wait_until import wait_until

ROOT = Path(__file__).parents[2]
START_S = 30
"""Importing everything takes a second or two, on a busy machine more."""


class HoldfastProcess:
    """One running command. Its log is in `log`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> None:
        """As `kill -9`; returns when it is dead."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def terminate(self, within_s: float = 15.0) -> int:
        """Asks it to end, as a deploy does; its exit status."""
        self.ask_to_end()
        return await self.ended(within_s)

    async def ended(self, within_s: float = 15.0) -> int:
        """Its exit status, once it has ended."""
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def suspend(self) -> None:
        """It stands still, with all that it holds, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def first_line(self) -> str:
        """What it says when it is ready. Fails the test with its log when it ends instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await self._process.stdout.readline()
        assert line, f"the process ended at once:\n{self.log.read_text()}"
        return line.decode()


@dataclass
class Processes:
    """Starts processes on one environment. All are dead when the block of `processes_in` ends."""

    environment: Mapping[str, str]
    directory: Path
    _started: list[HoldfastProcess] = field(default_factory=list[HoldfastProcess])

    async def worker(self, **settings: object) -> HoldfastProcess:
        """`holdfast worker`, ready to take runs. `settings` are fields of `Settings`."""
        return await self._start("worker", settings=settings)

    async def api(self, port: int, **settings: object) -> HoldfastProcess:
        """`holdfast api` on a port of loopback, listening."""
        process = await self._start("api", "--port", str(port), settings=settings)
        await self._listens(port)
        return process

    async def dev(self, port: int, **settings: object) -> HoldfastProcess:
        """`holdfast dev` on a port of loopback, listening; its data is kept from one start to the next."""
        process = await self._start(
            "dev", "--port", str(port), "--data-dir", str(self.directory / "dev"), settings=settings
        )
        await self._listens(port)
        return process

    async def kill_all(self) -> None:
        for process in self._started:
            await process.kill()

    async def _start(self, *command: str, settings: Mapping[str, object]) -> HoldfastProcess:
        given = {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
        log = self.directory / f"{len(self._started)}-{command[0]}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", "from api.cli import main; main()", *command),
                stdout=PIPE,
                stderr=output,
                cwd=ROOT,
                env={**_own_environment(), **self.environment, **given},
            )
        started = HoldfastProcess(process, log)
        self._started.append(started)
        await started.first_line()
        return started

    async def _listens(self, port: int) -> None:
        async with api_at(port) as http:

            async def answers() -> bool:
                try:
                    return (await http.get("/v1/health/")).is_success
                except httpx.TransportError:
                    return False

            await wait_until(answers, description=f"the API on port {port} to answer", timeout=START_S)


@asynccontextmanager
async def processes_in(directory: Path, environment: Mapping[str, str]) -> AsyncGenerator[Processes]:
    """Processes for the block, with these variables beside the shell's own."""
    processes = Processes(environment, directory)
    try:
        yield processes
    finally:
        await processes.kill_all()


@asynccontextmanager
async def api_at(port: int) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of an API in another process."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=60) as http:
        yield http


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _own_environment() -> dict[str, str]:
    """Ours, without what would lead the product to services that are not the test's."""
    foreign = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
