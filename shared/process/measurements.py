"""Measurements of every process: its release, the lag of its event loop, and its connections to the database."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from shared.concurrency import background
from shared.process.context import ProcessContext
from shared.process.importing import VERSION
from shared.telemetry.metrics import Metrics

LOOK_S = 0.5
"""Seconds between two measurements of the event loop. One takes about 50 microseconds."""


@asynccontextmanager
async def measured(process: ProcessContext, part: str) -> AsyncGenerator[None]:
    """Measures this process for as long as the block lasts. `part`: `api` or `worker`."""
    metrics, database = process.metrics, process.database
    metrics.describe(version=VERSION, process=part, connections=database.connections)
    async with background(_measure_lag(metrics), name=f"lag of the event loop, {part}"):
        yield


async def _measure_lag(metrics: Metrics) -> None:
    """The delay with which the loop resumes a task. It delays every run and request by that much."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag.observe(max(now() - due, 0))
