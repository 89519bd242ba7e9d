"""What the deployment does and how it is: gathered from the database, Redis and what processes show of themselves.

A service that is away costs its own fields and nothing else. It is when something is away that people look here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from api.deployment_figures import DeploymentFigures
from api.letta.admin import OperationsView
from shared.concurrency import Clock
from shared.domain.errors import Unavailable
from shared.domain.ids import ProjectId
from shared.process.version import VERSION
from shared.redis.connection import greet
from shared.redis.process_presence import ProcessPresence, RedisServers, ToolPresence
from shared.redis.queue import RunQueue
from shared.sql.engine import Database
from shared.sql.runs.callbacks import CallbackStore
from shared.sql.runs.figures import RunFigureStore

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Looks at the deployment."""

    database: Database
    redis: RedisServers
    presence: ProcessPresence
    tool_presence: ToolPresence
    """What living workers show of the walls around their tools."""
    queue: RunQueue
    figures: RunFigureStore
    callbacks: CallbackStore
    clock: Clock
    deployment_figures: DeploymentFigures
    """What a scrape says of the deployment."""

    async def look(self, project_id: ProjectId, services: Mapping[str, bool | None]) -> OperationsView:
        """The deployment, with this project's runs and callbacks. `services` says which of what it needs answers."""
        # What is away is not asked: each question would be waited for.
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
            runs=await self._unless_away(lambda: self.figures.of_runs(project_id, now), has_database),
            callbacks=await self._unless_away(lambda: self.figures.of_callbacks(project_id), has_database),
        )

    async def _answers_ms(self, ask: Callable[[], Awaitable[None]], is_there: bool) -> float | None:
        """The milliseconds that a service takes to answer the smallest question."""
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
