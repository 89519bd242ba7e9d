"""Work that runs beside other work: for the length of a block, again and again, or on a thread of its own.

Feeds, lease renewal and watchers run for as long as a block needs them. When one of them breaks, its block is
cancelled: it must not go on as if nothing had happened.
"""

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import signature
from types import TracebackType
from typing import Any, Protocol, TypeVar

import structlog

from shared.domain.errors import Unavailable

# The time, handed in to everything that needs it: tests own their clock, the product uses the system's.


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> datetime:
        """Wall-clock time, aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for durations."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def unix_ms(moment: datetime) -> int:
    """Unix time in milliseconds, as the log's events carry it."""
    return int(moment.timestamp() * 1000)


@asynccontextmanager
async def task_group() -> AsyncGenerator[asyncio.TaskGroup]:
    """A task group whose failure comes out as itself and not in a group, because callers catch domain errors. If
    several fail, the body's failure is raised, or else the last one."""
    here = asyncio.current_task()
    cancelling_before = here.cancelling() if here is not None else 0
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
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


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None], *, name: str) -> AsyncGenerator[None]:
    """Runs `work` beside the body and cancels it when the body ends.

    If `work` fails, the body is cancelled and the failure is raised. If both fail, the body's failure is raised.
    """
    async with task_group() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        finally:
            task.cancel()


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@asynccontextmanager
async def repeating(action: Callable[[], Awaitable[object]], *, every_s: float, name: str) -> AsyncGenerator[None]:
    """Calls `action` at once, and again `every_s` seconds after each call has ended, until the block ends.

    When the block ends in the middle of a call, it waits for that call.
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
        except Unavailable as error:
            log.warning("background_round_put_off", loop=name, reason=error.message)
        except Exception:
            # The background-loop boundary: the next round may find things better, and nobody else would do this work.
            log.exception("background_round_failed", loop=name)
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue


async def on_own_thread(work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
    """Runs `work` on an event loop in a thread of its own until it ends, fails, or this task is cancelled. It has this
    task's context variables, so that what it logs names the same worker.

    A failure of `work` is raised here. A cancellation of this task is passed on to `work` and waited for, so that
    nothing of `work` remains.
    """
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    context = copy_context()
    running = asyncio.get_running_loop().run_in_executor(executor, lambda: context.run(_run, work, began))
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


LATE_S = 1.0
"""An event loop that notices so long afterwards that a time is over has stood still meanwhile."""


class AnswerTimeout:
    """Bounds a wait for a service or a tool, as `asyncio.timeout`. A process that stood still when the time was over,
    as on a virtual machine that was paused, cannot know whether the other side was silent: it waits as long once
    more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self) -> None:
        self._over_at = self._loop.time() + self._seconds
        self._timer = self._loop.call_at(self._over_at, self._is_over)

    def _is_over(self) -> None:
        now = self._loop.time()
        if now - self._over_at > LATE_S:
            self._wait()
        else:
            self._timeout.reschedule(now)


class MovingTimer:
    """One timer for a moment that moves with each event, on the event loop's clock: a timer for each event would be one
    for each token. A moment that moves to later leaves the timer where it is. `look` is then called too early; it
    compares the clock with the moment and calls `look_at` again."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._looks_at = 0.0

    def look_at(self, when: float, look: Callable[[], None]) -> None:
        """Has `look` called at `when` or before, once. While the timer runs, it keeps the `look` that it was given."""
        if self._handle is not None:
            if self._looks_at <= when:
                return
            self._handle.cancel()
        # Asked of the timer, uvloop has no answer when less than half a millisecond was left: it made no timer then.
        self._looks_at = when
        # `look` is an argument and no attribute: the timer of an owner would refer to its owner for ever.
        self._handle = asyncio.get_running_loop().call_at(when, self._call, look)

    def stop(self) -> None:
        """Looks no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, look: Callable[[], None]) -> None:
        self._handle = None
        look()


Result = TypeVar("Result")

PAUSE_S = 0.2

PATIENCE_S = 3.0
"""Seconds for which a write is repeated while a caller waits for it. Its commit may have gone through and only the
answer been lost."""


async def retry_while_unavailable(action: Callable[[bool], Awaitable[Result]], *, for_s: float, clock: Clock) -> Result:
    """Calls `action(is_again)` until a service answers, for `for_s` seconds at most; gives what `action` gave.

    A step costs a model call, and tools that may not be called twice. So a worker does not throw a step away at the
    first write that is refused. `is_again` says that an earlier try may have been stored although its answer was lost.
    Raises what `action` raises, and `Unavailable` when the time is over.
    """
    deadline = clock.monotonic() + for_s
    is_again = False
    while True:
        try:
            return await action(is_again)
        except Unavailable as error:
            if clock.monotonic() + PAUSE_S >= deadline:
                raise
            log.warning("retried_while_unavailable", error=str(error))
        is_again = True
        await asyncio.sleep(PAUSE_S)


Store = TypeVar("Store")


@dataclass(frozen=True)
class Patience:
    """Repeats methods of stores while the database is unavailable, for `for_s` seconds at most.

    `main.py` applies it where it constructs a store, so the store's callers call a method once and know nothing of
    retries. Each method must change nothing when it is called again after its answer was lost.
    """

    for_s: float
    clock: Clock

    def applied_to(self, store: Store, *methods: Callable[..., Awaitable[object]]) -> Store:
        """Returns a copy of the store that repeats these of its methods, as `retry_while_unavailable` does. A method
        that has an argument `again` gets the value of `is_again` in it."""
        patient = copy.copy(store)
        for method in methods:
            name, is_told = method.__name__, "again" in signature(method).parameters
            # Not by `setattr`, which a frozen dataclass refuses.
            vars(patient)[name] = self._repeated(getattr(store, name), is_told=is_told)
        return patient

    def _repeated(self, method: Callable[..., Awaitable[Result]], *, is_told: bool) -> Callable[..., Awaitable[Result]]:
        async def repeated(*args: Any, **named: Any) -> Result:
            def call(is_again: bool) -> Awaitable[Result]:
                return method(*args, **named, again=True) if is_again and is_told else method(*args, **named)

            return await retry_while_unavailable(call, for_s=self.for_s, clock=self.clock)

        return repeated


LONG_DATA = 100_000


async def beside(work: Callable[[], Result], size: int) -> Result:
    """What `work` gives. Where it has much to look through, `size` characters, it does so on a thread: the event loop
    takes turns with it. No single call of it into C may take long, because nothing else runs meanwhile."""
    return await asyncio.to_thread(work) if size > LONG_DATA else work()


async def others_turn(data: Sized) -> None:
    """Lets everything else that is ready run first, if it is much that is to be worked through next.

    A long body is measured, parsed, checked, stored and shown. Each takes tens of milliseconds, and together they would
    be a quarter of a second in which nobody else is served.
    """
    if len(data) > LONG_DATA:
        await asyncio.sleep(0)
