"""Tells the workers that a run is to be cancelled.

SQL has the request already when the API announces it here. The publish makes it quick (a millisecond). The flag makes
it certain: a worker looks at the flags of its runs whenever it may have missed a publish.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import structlog

from shared.crash_points import CrashPoint, crash_point
from shared.domain.errors import CancelMode
from shared.domain.ids import RunId
from shared.redis import keys
from shared.redis.channel_listener import ChannelListener
from shared.redis.connection import Redis, redis_answers

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_WAITING = 1000
"""Announcements that may wait for the worker. If there are more, the worker is told to look at the flags instead."""


class Announcements:
    """What a worker hears, in order: the run and the mode of a cancel; or None when it may have missed announcements,
    and has to look at the flags of all its runs (`raised`). An async iterator without an end."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._waiting: asyncio.Queue[tuple[RunId, CancelMode] | None] = asyncio.Queue(max_waiting)

    def __aiter__(self) -> "Announcements":
        return self

    async def __anext__(self) -> tuple[RunId, CancelMode] | None:
        return await self._waiting.get()

    def put(self, announced: tuple[RunId, CancelMode] | None) -> None:
        """Keeps an announcement; when too many wait, all of them become one None."""
        if self._waiting.full():
            while not self._waiting.empty():
                self._waiting.get_nowait()
            announced = None
        self._waiting.put_nowait(announced)


class CancelSignal:
    """Announces cancels and hears them. Raises `Unavailable` when Redis does not answer; a listener tries again by
    itself."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def announce(self, run_id: RunId, mode: CancelMode) -> None:
        """Raises the run's flag and tells every worker."""
        async with redis_answers(), cast("Any", self._redis).pipeline(transaction=False) as pipe:
            pipe.set(keys.cancel_flag(run_id), mode.value, ex=keys.CANCEL_FLAG_TTL_S)
            pipe.publish(keys.CANCELS_CHANNEL, f"{run_id} {mode.value}")
            with crash_point(CrashPoint.ANNOUNCE_CANCEL):
                await pipe.execute()

    async def raised(self, run_ids: Sequence[RunId]) -> dict[RunId, CancelMode]:
        """Those of `run_ids` whose flag is raised."""
        if not run_ids:
            return {}
        async with redis_answers():
            flags: Any = await self._redis.mget([keys.cancel_flag(run_id) for run_id in run_ids])
        return {
            run_id: _mode(flag) or CancelMode.INTERRUPT for run_id, flag in zip(run_ids, flags, strict=True) if flag
        }

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[Announcements]:
        """Listens while the body runs. The first item is None. So is the one after every reconnect, and the one for an
        announcement of a newer release that this release cannot read."""
        heard = Announcements()

        def on_message(_channel: bytes, payload: bytes) -> None:
            run_id, _, word = payload.partition(b" ")
            mode = _mode(word)
            if mode is None:
                log.warning("cancel_announcement_not_understood", payload=payload[:200])
            heard.put(None if mode is None else (RunId(run_id.decode("utf-8", "replace")), mode))

        def on_subscribed(_channel: bytes) -> None:
            heard.put(None)

        listener = ChannelListener(
            self._redis, name="cancel listener", on_message=on_message, on_subscribed=on_subscribed
        )
        listener.add(keys.CANCELS_CHANNEL)
        async with listener.running():
            yield heard


def _mode(word: bytes) -> CancelMode | None:
    """The mode of this name; None for one that this release does not know."""
    try:
        return CancelMode(word.decode("utf-8", "replace"))
    except ValueError:
        return None
