"""Tests of a lease or a patience of a second, on a real clock, which ends while a machine is paused. Such a test then
tests something else. It is repeated, on an empty Redis, and counts only if the machine was not paused.
"""

import functools
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

from arq.connections import ArqRedis

from tests.kit.services.redis_servers import PrivateRedis, RedisService

TIMES = 5
STANDSTILL_S = 0.4
"""A thread that wants to go on every hundredth of a second and cannot for so long: that is a third of a lease here."""


def told_while_awake(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Repeats a test that failed while the machine was paused. A test that fails on a running machine has failed."""

    @functools.wraps(test)
    async def told(**given: Any) -> None:
        for _ in range(TIMES - 1):
            with _longest_gap() as gap:
                try:
                    return await test(**given)
                except (AssertionError, EOFError, OSError):
                    if gap() < STANDSTILL_S:
                        raise
            await _begin_again(given)
        return await test(**given)

    return told


async def _begin_again(given: dict[str, Any]) -> None:
    for service in given.values():
        if isinstance(service, PrivateRedis) and service.pid is None:
            await service.start()
        if isinstance(service, RedisService):
            await service.empty()
        if isinstance(service, ArqRedis):
            await cast("Any", service).flushdb()


@contextmanager
def _longest_gap() -> Generator[Callable[[], float]]:
    """The longest time for which a thread of this process did not go on in the block."""
    is_over, longest = threading.Event(), [0.0]

    def look() -> None:
        seen = time.monotonic()
        while not is_over.wait(0.01):
            now = time.monotonic()
            longest[0], seen = max(longest[0], now - seen), now

    thread = threading.Thread(target=look, name="standstills")
    thread.start()
    try:
        yield lambda: longest[0]
    finally:
        is_over.set()
        thread.join()
