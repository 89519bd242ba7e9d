"""Work that goes on beside a block of code and ends with it.

Feeds, lease renewal and watchers all have this shape: they run while somebody needs them, never longer, and when one
breaks, the block that relies on it must not go on as if nothing had happened.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], *, name: str) -> AsyncGenerator[None]:
    """Runs `work` beside the body and cancels it when the body ends. If `work` fails, the body is cancelled and the
    failure raised. The exception comes out as itself, not in a group, because callers catch domain errors; when both
    fail, it is the body's.
    """
    here = asyncio.current_task()
    cancelling_before = here.cancelling() if here is not None else 0
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name=name)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[-1]  # a task group adds the body's last
    if failure is None:
        return
    if here is not None and here.cancelling() > cancelling_before:
        # Until Python 3.13 a task group that unwinds for an error drops a cancellation that comes meanwhile. Since then
        # it is pending, and is raised at the sleep.
        await asyncio.sleep(0)
        raise asyncio.CancelledError
    raise failure  # outside the except block, so that it keeps the cause and context that it had
