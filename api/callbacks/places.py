"""Who may deliver how much at once: one project's silent receivers must not keep another project's callbacks back."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from shared.concurrency import Clock
from shared.domain.ids import ProjectId

PLACES = 8
"""Callbacks that one process delivers at once."""

OF_A_PROJECT = 6
"""Of them, how many may be one project's."""

REST = timedelta(seconds=5)
"""For how long a receiver that was silent is left alone, whichever callback was the one."""

RESTING_AT_MOST = 10_000


class DeliveryPlaces:
    """What is on its way in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_use = Counter[ProjectId]()
        self._freed = asyncio.Event()
        self._resting: dict[str, datetime] = {}

    def full(self) -> list[ProjectId]:
        """The projects that may not begin another delivery now."""
        return [project_id for project_id, count in self._in_use.items() if count >= OF_A_PROJECT]

    @property
    def are_all_in_use(self) -> bool:
        return self._in_use.total() >= PLACES

    def enter(self, project_id: ProjectId) -> None:
        """A delivery begins."""
        self._in_use[project_id] += 1

    def leave(self, project_id: ProjectId) -> None:
        """A delivery has ended."""
        self._in_use[project_id] -= 1
        if not self._in_use[project_id]:
            del self._in_use[project_id]
        self._freed.set()

    async def wait(self, for_s: float) -> None:
        """Waits until a delivery ends, and not longer than this."""
        self._freed.clear()
        try:
            async with asyncio.timeout(for_s):
                await self._freed.wait()
        except TimeoutError:
            pass  # the caller looks again

    def was_silent(self, url: str) -> None:
        """The receiver has let an attempt time out."""
        now = self._clock.now()
        if len(self._resting) >= RESTING_AT_MOST:
            self._resting = {name: until for name, until in self._resting.items() if until > now}
        self._resting[_receiver(url)] = now + REST

    def rests_until(self, url: str) -> datetime | None:
        """When the receiver may be tried again, if it has been silent a moment ago."""
        until = self._resting.get(_receiver(url))
        return until if until is not None and until > self._clock.now() else None


def _receiver(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return url
