"""The MCP servers of the deployment's projects: starts them, records when they were away, and reads the calls that
arrived."""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.chaos.mcp_server import CUT
from tests.kit.commands import Command, execute
from tests.kit.mcp.official import Kind, path_of, transport_of
from tests.kit.product.processes import HoldfastProcess

_launch = partial(execute, program="from bench.chaos.mcp_server import serve; serve()")

CUT_S = 1.0
"""Seconds during which a cut of all streams of answers has effects."""


@dataclass(frozen=True)
class McpCall:
    """A call that reached a server; `at` in seconds since the epoch."""

    key: str
    at: float


@dataclass
class Span:
    """The time of an event at a server, in seconds since the epoch."""

    began_at: float
    ended_at: float = float("inf")

    def touches(self, began_at: float, ended_at: float) -> bool:
        """Returns whether the span overlaps with the time between these two."""
        return self.began_at <= ended_at and began_at <= self.ended_at


@dataclass
class McpSlot:
    """One project's server. A restart keeps the slot and the port."""

    project: str
    kind: Kind
    port: int
    directory: Path
    process: HoldfastProcess | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A task holds it during a fault."""
    away: list[Span] = field(default_factory=list[Span])
    """Times in which calls could fail, without cuts of the streams of answers."""
    frozen: list[Span] = field(default_factory=list[Span])
    pids: set[int] = field(default_factory=set[int])
    """The process ids of all its processes, including dead ones."""

    @property
    def config(self) -> dict[str, str]:
        """The server's configuration, for its registration at a project."""
        return {
            "mcp_server_type": transport_of(self.kind),
            "server_url": f"http://127.0.0.1:{self.port}{path_of(self.kind)}",
        }

    async def start(self) -> None:
        """Starts a process and waits until it serves."""
        name = f"{len(self.pids)}-mcp"
        files = self.directory / f"{name}.out", self.directory / f"{name}.log"
        for file in files:
            file.touch()
        command = Command([self.kind, str(self.port), str(self._calls_file)], os.environ, *files)
        self.process = HoldfastProcess(await asyncio.to_thread(_launch, command), command)
        self.pids.add(self.process.pid)
        await self.process.is_ready()

    @contextmanager
    def being_away(self) -> Generator[None]:
        """Records that calls may fail during the block."""
        with _noted(self.away):
            yield

    async def freeze(self, seconds: float) -> None:
        """Suspends the process for `seconds`. Its callers can only wait."""
        assert self.process is not None
        with _noted(self.frozen):
            self.process.suspend()
            try:
                await asyncio.sleep(seconds)
            finally:
                self.process.resume()

    def calls(self) -> dict[str, list[McpCall]]:
        """Reads the calls that have arrived, by their keys."""
        found: dict[str, list[McpCall]] = defaultdict(list)
        for line in self._lines():
            key, at = line.split()
            if key != CUT:
                found[key].append(McpCall(key, float(at)))
        return found

    def troubles(self) -> list[Span]:
        """Reads the times in which a call could fail."""
        cuts = [float(at) for key, at in map(str.split, self._lines()) if key == CUT]
        return [*self.away, *(Span(at, at + CUT_S) for at in cuts)]

    @property
    def _calls_file(self) -> Path:
        return self.directory / "calls.txt"

    def _lines(self) -> list[str]:
        return self._calls_file.read_text().splitlines() if self._calls_file.exists() else []


@contextmanager
def _noted(spans: list[Span]) -> Generator[None]:
    span = Span(time.time())
    spans.append(span)
    try:
        yield
    finally:
        span.ended_at = time.time()
