"""Holdfast as an operator runs it: processes of its own, which a test may kill, suspend and end."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from tests.kit.commands import Command, CommandProcess, Launch, fork
from tests.kit.product.in_process import CANCELLED_S, HEADERS, NO_PINGS_S
from tests.kit.wait_until import HANGS_S, LONG_LEASE_S, wait_until

PATIENT = {
    "HOLDFAST_LEASE_S": str(LONG_LEASE_S),
    "HOLDFAST_CANCEL_WAIT_S": str(CANCELLED_S),
    "HOLDFAST_KEEPALIVE_S": str(NO_PINGS_S),
}
"""Limits that no process here exceeds because the machine was paused. A test that needs lower ones sets them."""


class HoldfastProcess:
    """One running command. Its log is in `log`."""

    def __init__(self, process: CommandProcess, command: Command) -> None:
        self.pid = process.pid
        self.log = command.log
        self._exit_status = process.exit_status
        self._output = command.output

    async def kill(self) -> None:
        """As `kill -9`; returns when it is dead."""
        if self._exit_status() is None:
            self._signal(signal.SIGKILL)
        await self.ended()

    async def terminate(self, within_s: float = HANGS_S) -> int:
        """Asks it to end, as a deploy does; its exit status."""
        self.ask_to_end()
        return await self.ended(within_s)

    async def ended(self, within_s: float = HANGS_S) -> int:
        """Its exit status, once it has ended; negative when a signal ended it."""
        await wait_until(
            lambda: self._exit_status() is not None, description=f"process {self.pid} to end", timeout=within_s
        )
        status = self._exit_status()
        assert status is not None
        return status

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def suspend(self) -> None:
        """It stands still, with all that it holds, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def is_ready(self) -> None:
        """Returns when it has printed this. Fails the test with its log if it ends instead."""

        def has_spoken() -> bool:
            return "\n" in self._output.read_text() or self._exit_status() is not None

        await wait_until(has_spoken, description=f"process {self.pid} to be ready", timeout=HANGS_S)
        assert "\n" in self._output.read_text(), f"the process ended at once:\n{self.log.read_text()}"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self.pid, number)


@dataclass
class Processes:
    """Starts processes on one environment. All are dead when the block of `processes_in` ends."""

    environment: Mapping[str, str]
    directory: Path
    launch: Launch = fork
    _started: list[HoldfastProcess] = field(default_factory=list[HoldfastProcess])
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def pids(self) -> set[int]:
        """The logs of every process that was started here, including dead ones."""
        return {process.pid for process in self._started}

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

    async def migrate(self) -> None:
        """`holdfast migrate`; returns when the database has the shape of the release."""
        process = await self._start("migrate", settings={})
        assert await process.ended() == 0, process.log.read_text()

    async def kill_all(self) -> None:
        for process in self._started:
            await process.kill()

    async def _start(self, *arguments: str, settings: Mapping[str, object]) -> HoldfastProcess:
        given = {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
        name = f"{next(self._numbers)}-{arguments[0]}"
        files = self.directory / f"{name}.out", self.directory / f"{name}.log"
        for file in files:
            file.touch()
        command = Command(arguments, {**_own_environment(), **PATIENT, **self.environment, **given}, *files)
        started = HoldfastProcess(await asyncio.to_thread(self.launch, command), command)
        self._started.append(started)
        await started.is_ready()
        return started

    async def _listens(self, port: int) -> None:
        async with api_at(port) as http:

            async def answers() -> bool:
                try:
                    return (await http.get("/v1/health/")).is_success
                except httpx.TransportError:
                    return False

            await wait_until(answers, description=f"the API on port {port} to answer", timeout=HANGS_S)


@asynccontextmanager
async def processes_in(
    directory: Path, environment: Mapping[str, str], launch: Launch = fork
) -> AsyncGenerator[Processes]:
    """Processes for the block, with these variables beside the shell's own."""
    processes = Processes(environment, directory, launch)
    try:
        yield processes
    finally:
        await processes.kill_all()


@asynccontextmanager
async def api_at(port: int) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of an API in another process."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=HANGS_S) as http:
        yield http


def _own_environment() -> dict[str, str]:
    """Our environment, without variables that would lead the product to services outside of the test."""
    foreign = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
