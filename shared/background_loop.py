"""Work that a process repeats for as long as it lives. One failure never ends it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def repeating(action: Callable[[], Awaitable[object]], *, every_s: float, name: str) -> AsyncGenerator[None]:
    """Calls `action` now and then `every_s` seconds after each call has ended, until the block ends.

    A call that is under way then is waited for, not torn.
    """
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_repeat(action, every_s, name, stop), name=name)
        try:
            yield
        finally:
            stop.set()


async def _repeat(action: Callable[[], Awaitable[object]], every_s: float, name: str, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await action()
        except Exception:
            # The background-loop boundary: the next round may find things better, and nobody else would do this work.
            log.exception("background_round_failed", loop=name)
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue
