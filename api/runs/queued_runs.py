"""How many runs a project may have waiting. SQL has the truth; it is not asked at every submission."""

import asyncio
from typing import NamedTuple

from shared.concurrency import Clock
from shared.domain.ids import ProjectId
from shared.domain.limits import LimitReached, ProjectLimits
from shared.sql.runs.listing import RunListing

FRESH_S = 1.0
"""For how long a count is gone by."""

PART = 10
"""A process takes this part of what was left at the last count before it counts again, so that several of them go over
the limit by little."""

RETRY_S = 5.0
"""What a client is told to wait when the queue is full: nobody knows how long the runs in front take."""


class _Room(NamedTuple):
    left: int
    until: float


class QueuedRuns:
    """Holds projects to their number of queued runs."""

    def __init__(self, listing: RunListing, limits: ProjectLimits, clock: Clock) -> None:
        self._listing = listing
        self._limits = limits
        self._clock = clock
        self._rooms: dict[ProjectId, _Room] = {}
        self._one_counts = asyncio.Lock()

    async def take_place(self, project_id: ProjectId) -> None:
        """Counts one more submission. Raises `LimitReached`."""
        most = self._limits.of(project_id).queued_runs
        if not most:
            return
        async with self._one_counts:
            now = self._clock.monotonic()
            room = self._rooms.get(project_id)
            if room is None or room.left <= 0 or room.until <= now:
                room = _Room(await self._left(project_id, most) // PART, now + FRESH_S)
            self._rooms[project_id] = room._replace(left=room.left - 1)

    async def _left(self, project_id: ProjectId, most: int) -> int:
        queued = await self._listing.count_queued(project_id, most)
        if queued >= most:
            raise LimitReached(
                f"The project {project_id!r} has {most} runs that wait to be executed",
                setting="HOLDFAST_QUEUED_RUNS",
                retry_after_s=RETRY_S,
            )
        return most - queued
