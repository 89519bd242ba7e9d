"""The state of the deployment, from the database, from Redis, and from the entries that each process publishes.

A service that is away costs only its own fields, because operators look here during an outage. The composition root
calls `operations_service` and `showing_process`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypeVar

from api.admission import CallerQuotas
from api.letta.admin import OperationsView
from shared.concurrency import Clock, unix_ms
from shared.domain.errors import Unavailable
from shared.domain.events import decode
from shared.domain.ids import ProjectId
from shared.domain.operations import ApiState
from shared.process.context import ProcessContext
from shared.process.importing import VERSION
from shared.redis.connection import greet
from shared.redis.event_log import EventLog
from shared.redis.process_presence import ProcessPresence, RedisServers, ToolPresence
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.listing import RunStatStore
from shared.sql.runs.webhooks import WebhookDeliveryStore
from shared.telemetry.metrics import DeploymentState, Metrics

# The metrics of the whole deployment: its runs by status, its queue, its callbacks, its Redis servers. Every API
# process exports the same values; a sum over processes would count them more than once. The API asks SQL and Redis
# during a scrape, at most once per `KEPT_S`, however often Prometheus scrapes. A service that does not answer in time
# is omitted, and never delays a scrape.


KEPT_S = 5.0
"""Seconds for which the values are cached."""

ASK_S = 2.0
"""Seconds that SQL and Redis have to answer. Prometheus waits for ten."""

QUIETEST_LOOKED_AT = 20
"""The number of running runs whose logs the API reads for the last event: those whose last write to SQL is oldest."""

Answer = TypeVar("Answer")


@dataclass(kw_only=True)
class DeploymentStats:
    """Caches the deployment's values, and exports them with the metrics of this process."""

    metrics: Metrics
    stats: RunStatStore
    """On a database that shows all projects."""
    queue: RunQueue
    redis: RedisServers
    event_log: EventLog
    clock: Clock
    _asked_at: float = -math.inf
    _one_asks: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exposition(self) -> bytes:
        """All metrics of this process in Prometheus' text format. The deployment's values are at most `KEPT_S` old."""
        async with self._one_asks:
            if self.clock.monotonic() - self._asked_at >= KEPT_S:
                self.metrics.api.deployment = await self._ask()
                self._asked_at = self.clock.monotonic()
        # Up to twenty milliseconds of computation, which would delay tokens on the event loop.
        return await asyncio.to_thread(self.metrics.exposition)

    async def _ask(self) -> DeploymentState:
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(_in_time(self.stats.of_deployment), name="count the runs")
            looking = group.create_task(_in_time(self.queue.state), name="look at the queue")
            listening = group.create_task(_in_time(self._longest_silence_s), name="look for silent runs")
            weighing = group.create_task(self.redis.memory(within_s=ASK_S), name="ask for the memory of Redis")
        counts, queue = counting.result(), looking.result()
        return DeploymentState(
            runs=None if counts is None else dict(counts.runs),
            callbacks_waiting=None if counts is None else counts.callbacks_waiting,
            queue_waiting=None if queue is None else queue.waiting,
            oldest_wait_s=None if queue is None else queue.oldest_wait_s or 0.0,
            longest_silence_s=listening.result(),
            redis_memory=weighing.result(),
        )

    async def _longest_silence_s(self) -> float:
        """The longest time for which one of the running runs has logged no event; 0 if none runs. Events go to Redis
        first, and to SQL with each step or after some thousands of them."""
        now, longest = self.clock.now(), 0.0
        for run in await self.stats.quietest(QUIETEST_LOOKED_AT):
            unheard_s = (now - run.heard_at).total_seconds()
            if unheard_s <= longest:
                break  # each later run has a more recent write in SQL
            shown = await self.event_log.newest(run.id)
            unshown_s = unheard_s if shown is None else unix_ms(now) / 1000 - decode(shown[1]).at / 1000
            longest = max(longest, min(unheard_s, unshown_s))
        return longest


async def _in_time(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    try:
        async with asyncio.timeout(ASK_S):
            return await ask()
    except (Unavailable, TimeoutError):
        return None


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Reads the state of the deployment."""

    database: Database
    redis: RedisServers
    presence: ProcessPresence
    tool_presence: ToolPresence
    """The sandbox isolation that live workers report."""
    queue: RunQueue
    stats: RunStatStore
    callbacks: CallbackStore
    webhooks: WebhookDeliveryStore
    clock: Clock
    deployment_stats: DeploymentStats
    """The values that a scrape reports."""

    async def look(self, project_id: ProjectId, services: Mapping[str, bool | None]) -> OperationsView:
        """The deployment, with this project's runs and callbacks. `services`: whether each service answers."""
        # It sends no query to a service that is away: each would last until its timeout.
        is_there, has_redis = bool(services["database"]), bool(services["redis"])
        has_database = is_there and bool(services["migrations"])
        now = self.clock.now()
        return OperationsView(
            at=now,
            version=VERSION,
            services=services,
            database_kind="sqlite" if self.database.is_sqlite else "postgresql",
            database_ms=await self._answers_ms(self.database.greet, is_there),
            redis_is_embedded=self.redis.is_embedded,
            redis_ms=await self._answers_ms(lambda: greet(self.redis.shared), has_redis),
            redis_memory=await self._unless_away(self.redis.memory, has_redis),
            workers=await self._unless_away(self.presence.workers, has_redis),
            api_processes=await self._unless_away(self.presence.api_processes, has_redis),
            queue=await self._unless_away(self.queue.state, has_redis),
            runs=await self._unless_away(lambda: self.stats.of_runs(project_id, now), has_database),
            callbacks=await self._unless_away(lambda: self.stats.of_callbacks(project_id), has_database),
        )

    async def _answers_ms(self, ask: Callable[[], Awaitable[None]], is_there: bool) -> float | None:
        """The milliseconds that a service takes to answer the smallest request."""
        began = self.clock.monotonic()

        async def asked() -> float:
            await ask()
            return round((self.clock.monotonic() - began) * 1000, 3)

        return await self._unless_away(asked, is_there)

    async def _unless_away(self, ask: Callable[[], Awaitable[Answer]], is_there: bool) -> Answer | None:
        if not is_there:
            return None
        try:
            return await ask()
        except Unavailable:
            return None


def operations_service(
    process: ProcessContext, unscoped: ProcessContext, queue: RunQueue, event_log: EventLog
) -> Operations:
    """Reads the deployment, and the rows of a caller's project. `unscoped` is the process with a database that shows
    all projects."""
    servers = RedisServers(shared=process.redis, logs=process.log_servers, is_embedded=process.is_embedded)
    return Operations(
        database=process.database,
        redis=servers,
        presence=ProcessPresence(process.redis),
        tool_presence=ToolPresence(process.redis),
        queue=queue,
        stats=RunStatStore(process.database),
        callbacks=CallbackStore(process.database),
        webhooks=WebhookDeliveryStore(process.database),
        clock=process.clock,
        deployment_stats=DeploymentStats(
            metrics=process.metrics,
            stats=RunStatStore(unscoped.database),
            queue=queue,
            redis=servers,
            event_log=event_log,
            clock=process.clock,
        ),
    )


def showing_process(process: ProcessContext, name: str, quotas: CallerQuotas) -> AbstractAsyncContextManager[None]:
    """Publishes this process for `/v1/admin/operations` for as long as the block lasts, under its name in traces."""
    started_at = process.clock.now()

    def state() -> ApiState:
        return ApiState(
            name=name,
            version=VERSION,
            started_at=started_at,
            seen_at=process.clock.now(),
            readers=quotas.open_streams,
            secret_keys=process.secret_keys.fingerprints,
        )

    return ProcessPresence(process.redis).showing(state)
