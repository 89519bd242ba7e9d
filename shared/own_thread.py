"""Work that must go on while the event loop of the process is kept busy: an event loop of its own, in a thread."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


async def on_own_thread(work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
    """Runs `work` on an event loop in a thread of its own until it ends, fails, or this task is cancelled.

    Its failure is raised here. A cancellation reaches `work` as one, and is waited for: nothing of it is left behind.
    """
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    running = asyncio.get_running_loop().run_in_executor(executor, _run, work, began)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        loop, task = began.result()
        with contextlib.suppress(RuntimeError):  # the work has ended by itself, and its loop with it
            loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # it is taken note of: what counts is that we were cancelled
        raise
    finally:
        executor.shutdown(wait=False)


def _run(
    work: Callable[[], Coroutine[Any, Any, None]],
    began: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]",
) -> None:
    with asyncio.Runner() as runner:
        runner.run(_announced(work, began))


async def _announced(
    work: Callable[[], Coroutine[Any, Any, None]],
    began: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]",
) -> None:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a coroutine runs in a task")
    began.set_result((asyncio.get_running_loop(), task))
    await work()
