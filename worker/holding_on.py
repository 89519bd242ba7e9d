"""Waiting for a database that is away, for as long as the run is safely ours.

A step costs a model call, and tools that may not be called twice. While the lease is renewed nobody else takes the run,
so its worker does not throw the step away at the first refused write: it tries again for the length of a lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from shared.clock import Clock
from shared.domain.errors import Unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Result = TypeVar("Result")

PAUSE_S = 0.2


async def hold_on(action: Callable[[bool], Awaitable[Result]], *, for_s: float, clock: Clock) -> Result:
    """What `action(is_again)` gives, tried again while the database does not answer, at most for `for_s` seconds.

    `is_again` says that an earlier try may have been stored although its answer was lost. Raises what `action` raises,
    `Unavailable` when the time is over.
    """
    deadline = clock.monotonic() + for_s
    is_again = False
    while True:
        try:
            return await action(is_again)
        except Unavailable as error:
            if clock.monotonic() + PAUSE_S >= deadline:
                raise
            log.warning("run_waits_for_database", error=str(error))
        is_again = True
        await asyncio.sleep(PAUSE_S)
