"""What a scrape says of the whole deployment: its runs by status, its queue, its callbacks, its Redis servers.

Every API process says the same of it; a sum over processes would count it more than once. SQL and Redis are asked when
somebody scrapes, and seldom: a scrape every second costs them no more than one every `KEPT_S`. One that does not answer
in time is left out, and never holds a scrape up.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from shared.concurrency import Clock, unix_ms
from shared.domain.errors import Unavailable
from shared.domain.events import decode
from shared.redis.event_log import EventLog
from shared.redis.process_presence import RedisServers
from shared.redis.queue import RunQueue
from shared.sql.runs.figures import RunFigureStore
from shared.telemetry.api_metrics import DeploymentState
from shared.telemetry.metrics import Metrics

KEPT_S = 5.0
"""Seconds for which figures are shown again."""

ASK_S = 2.0
"""Seconds that SQL and Redis have to answer. Prometheus waits for ten."""

QUIETEST_LOOKED_AT = 20
"""Running runs whose logs are looked at for their last event: those that SQL has heard nothing of for longest."""

Answer = TypeVar("Answer")


@dataclass(kw_only=True)
class DeploymentFigures:
    """Keeps the figures of the deployment, and gives the process's metrics with them."""

    metrics: Metrics
    figures: RunFigureStore
    """Of a database that shows all projects."""
    queue: RunQueue
    redis: RedisServers
    event_log: EventLog
    clock: Clock
    _asked_at: float = -math.inf
    _one_asks: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def exposition(self) -> bytes:
        """All metrics of this process in Prometheus' text format, with figures of the deployment that are `KEPT_S` old
        at most."""
        async with self._one_asks:
            if self.clock.monotonic() - self._asked_at >= KEPT_S:
                self.metrics.api.deployment = await self._ask()
                self._asked_at = self.clock.monotonic()
        # Up to twenty milliseconds of computing, which no token has to wait for.
        return await asyncio.to_thread(self.metrics.exposition)

    async def _ask(self) -> DeploymentState:
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(_in_time(self.figures.of_deployment), name="count the runs")
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
        """How long the most silent of the running runs has shown nothing; 0 when none runs. Events go to Redis first,
        and to SQL with each step or some thousands of them."""
        now, longest = self.clock.now(), 0.0
        for run in await self.figures.quietest(QUIETEST_LOOKED_AT):
            unheard_s = (now - run.heard_at).total_seconds()
            if unheard_s <= longest:
                break  # each of those behind it was heard of later
            entry = await self.event_log.newest(run.id)
            unshown_s = unheard_s if entry is None else unix_ms(now) / 1000 - decode(entry).at / 1000
            longest = max(longest, min(unheard_s, unshown_s))
        return longest


async def _in_time(ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
    try:
        async with asyncio.timeout(ASK_S):
            return await ask()
    except (Unavailable, TimeoutError):
        return None
