"""Waiting for something to become true, without guessing how long it takes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


async def wait_until(
    predicate: Callable[[], Any | Awaitable[Any]], *, description: str, timeout: float = 15.0, every: float = 0.01
) -> Any:
    """The predicate's first true value. Fails the test, naming `description`, when it stays false for `timeout` s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() > deadline:
            raise AssertionError(f"timed out after {timeout} s waiting for {description}; last value: {value!r}")
        await asyncio.sleep(every)
