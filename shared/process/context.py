"""The objects from which every process is composed. The command line constructs them once and passes them to the
composition roots."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.concurrency import PATIENCE_S, Clock, Patience
from shared.domain.ids import IdMaker
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
