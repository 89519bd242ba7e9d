"""The things that every process is built from; the command line makes them once and hands them to the composition
roots."""

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
    """Where the event logs of runs are: on `redis`, unless the settings name other servers for them."""
    is_embedded: bool
    """Redis lives in this process: nothing in it outlives the process, and no other process sees it."""
    clock: Clock
    ids: IdMaker
    environment: Mapping[str, str] = field(repr=False)
    """The process's environment variables, with the model providers' keys."""
    secret_keys: SecretKeys
    """What agents' secrets are encrypted with."""
    metrics: Metrics = field(default_factory=Metrics)
    """What this process counts and measures."""
    tracer: Tracer = field(default_factory=NoTracer)
    """Makes the spans of this process. Whoever composes it from its settings puts the one in that exports."""

    def patience(self, for_s: float = PATIENCE_S) -> Patience:
        """Returns the patience for stores whose writes a client, or the upkeep, waits for; `for_s` for others."""
        return Patience(for_s, self.clock)

    async def has_redis(self) -> bool:
        """Whether Redis answers, and every server of the logs."""
        return await is_reachable(self.redis) and await self.log_servers.are_reachable()
