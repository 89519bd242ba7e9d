"""Waits until a condition is true, without a guess how long that takes, and runs steps of the event loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

PATIENT_S = 0.1
HANGS_S = 180.0
"""A limit for hangs only. A machine may pause for half a minute, and a busy one is slow."""
LONG_LEASE_S = 50.0
"""A lease that is longer than any pause of the machine: a test ends it (`end_leases`), or the end of its Redis."""


async def wait_until(
    predicate: Callable[[], Any | Awaitable[Any]], *, description: str, timeout: float = HANGS_S, every: float = 0.01
) -> Any:
    """Returns the predicate's first true value. Fails the test, naming `description`, if there is none in `timeout` s.

    A predicate that awaits asks a server or a database, which costs the machine more than the wait costs the test. So
    it is called again after `every` seconds at first, and then less and less often.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        value = predicate()
        is_asked = inspect.isawaitable(value)
        if is_asked:
            value = await value
        if value:
            return value
        if loop.time() > deadline:
            raise AssertionError(f"timed out after {timeout} s waiting for {description}; last value: {value!r}")
        await asyncio.sleep(every)
        if is_asked:
            every = max(every, min(every * 1.5, PATIENT_S))


def after(delay: float = 0.0) -> asyncio.Future[None]:
    """Done `delay` seconds from now; 0 means in the next turn of the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_later(delay, _finish, future)
    return future


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
