"""What a process knows of itself: its version, how busy its event loop is, its connections to the database; and imports
of many modules at once, as they cost least."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version

from shared.concurrency import background
from shared.process.context import ProcessContext
from shared.telemetry.metrics import Metrics


@contextmanager
def without_collections() -> Generator[None]:
    """A block that imports, and collects no garbage: an import makes none, and each collection would look through all
    that is there, which is a quarter of what a server's start took.

    What is there at the end of the block lives as long as the process, so later collections leave it out, too: a full
    one would hold up every stream for a fifth of a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def _installed_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0+checkout"


VERSION = _installed_version()


LOOK_S = 0.5
"""Seconds between two looks at the event loop. One costs some 50 microseconds."""


@asynccontextmanager
async def measured(process: ProcessContext, part: str) -> AsyncGenerator[None]:
    """Measures this process for as long as the block lasts. `part`: what it is, `api` or `worker`."""
    metrics, database = process.metrics, process.database
    metrics.describe(version=VERSION, process=part, connections=database.connections)
    async with background(_measure_lag(metrics), name=f"lag of the event loop, {part}"):
        yield


async def _measure_lag(metrics: Metrics) -> None:
    """How late the loop comes back to a task whose time has come: for so long, it is late for every run and request."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag.observe(max(now() - due, 0))
