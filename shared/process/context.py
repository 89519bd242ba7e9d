"""The objects from which every process is composed, and its reports about itself: spans and measurements.

The command line constructs the objects once and passes them to the composition roots.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from shared.concurrency import PATIENCE_S, Clock, Patience, background
from shared.domain.errors import InvalidRequest
from shared.domain.ids import IdMaker
from shared.process.importing import VERSION
from shared.process.settings import Settings
from shared.redis.connection import Redis, is_reachable
from shared.redis.log_servers import LogServers
from shared.secret_keys import SecretKeys
from shared.sql.engine import Database
from shared.telemetry.metrics import Metrics
from shared.telemetry.tracer import NoTracer, Tracer


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """The settings, connections and sources of time and ids of one process."""

    settings: Settings
    database: Database
    redis: Redis
    log_servers: LogServers
    """The servers of runs' event logs: `redis`, unless the settings name others."""
    is_embedded: bool
    """Redis runs inside this process: its data ends with the process, and no other process sees it."""
    clock: Clock
    ids: IdMaker
    environment: Mapping[str, str] = field(repr=False)
    """The process's environment variables, with the model providers' keys."""
    secret_keys: SecretKeys
    """The keys that encrypt agents' secrets."""
    metrics: Metrics = field(default_factory=Metrics)
    """The metrics of this process."""
    tracer: Tracer = field(default_factory=NoTracer)
    """Creates the spans of this process. `tracer_of` returns the exporting tracer."""

    def patience(self, for_s: float = PATIENCE_S) -> Patience:
        """The patience of stores whose writes a client, or maintenance, waits for. `for_s` are its seconds."""
        return Patience(for_s, self.clock)

    async def has_redis(self) -> bool:
        """Whether Redis and every server of the logs answer."""
        return await is_reachable(self.redis) and await self.log_servers.are_reachable()


FLUSH_S = 3.0
"""Seconds that the receiver has to accept the last spans when a process ends."""


@asynccontextmanager
async def traced(process: ProcessContext, *, service: str, instance: str) -> AsyncGenerator[ProcessContext]:
    """The process with its tracer, as in `tracer_of`."""
    async with tracer_of(process.settings, service=service, instance=instance) as tracer:
        yield replace(process, tracer=tracer)


@asynccontextmanager
async def tracer_of(
    settings: Settings, *, service: str, instance: str, flush_s: float = FLUSH_S
) -> AsyncGenerator[Tracer]:
    """The tracer for the block. At the end it exports its remaining spans, within `flush_s`. `service` and `instance`
    name this process in the traces. Raises `InvalidRequest` if traces are configured and the extra `otel` is not
    installed."""
    if not settings.otlp_endpoint:
        yield NoTracer()
        return
    try:
        # Imported here: a process without export does not load the SDK, and may not have it.
        from shared.telemetry.otlp import exporting
    except ImportError as error:
        raise InvalidRequest(
            f"HOLDFAST_OTLP_ENDPOINT is set and {error.name or 'a package'} is not installed: install the extra "
            "`otel`, or unset the variable"
        ) from error
    resource = {"service.name": service, "service.version": VERSION, "service.instance.id": instance}
    export = exporting(
        settings.otlp_endpoint,
        sample=settings.trace_sample,
        shows_content=settings.trace_content,
        resource=resource,
        flush_s=flush_s,
    )
    async with export as tracer:
        yield tracer


# Measurements of every process: its release, the lag of its event loop, and its connections to the database.


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
    """Measures the delay with which the loop resumes a task. Every run and request has this delay."""
    now = asyncio.get_running_loop().time
    while True:
        due = now() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag.observe(max(now() - due, 0))
