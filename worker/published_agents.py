"""What other processes know of a worker's agents of own code."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.concurrency import Clock
from shared.domain.code_agents import ShownAgent
from shared.domain.errors import Unavailable
from shared.redis.process_presence import VersionPresence
from shared.sql.definitions.code_agents import CodeAgentStore

STORED_EVERY = timedelta(minutes=1)


@dataclass
class PublishedAgents:
    """Shows the agents of one worker: in SQL once a minute for the API, and in Redis for the other workers, so that
    each run goes to a version that lives."""

    store: CodeAgentStore
    presence: VersionPresence
    clock: Clock
    agents: Sequence[ShownAgent]
    for_s: float
    """Seconds for which the worker counts as live."""
    _first: Mapping[str, datetime] | None = None
    """When a worker first had the version of each agent, by the agent's name."""
    _stored_at: datetime | None = None

    async def show(self) -> None:
        """Shows them for a while."""
        now = self.clock.now()
        if self._stored_at is None or now - self._stored_at >= STORED_EVERY:
            with suppress(Unavailable):
                self._first, self._stored_at = await self.store.show(self.agents, now), now
        first = self._first or {}
        shown = [(one.name, one.version, first.get(one.name, now)) for one in self.agents]
        await self.presence.show(shown, for_s=self.for_s)
