"""Background work: for the length of a block, periodically, or on a thread of its own.

Feeds, lease renewal and watchers run for as long as a block needs them. If such work fails, its block is cancelled,
because the block must not continue without the work.
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
from math import ceil
from types import TracebackType
from typing import Any, Protocol, TypeVar

import structlog

from shared.domain.errors import Unavailable

Result = TypeVar("Result")

# The clock is injected everywhere: tests control their clock, the product uses the system's.


class Clock(Protocol):
    """A source of time."""

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
    """Unix time in milliseconds, the form in the log's events."""
    return int(moment.timestamp() * 1000)


@asynccontextmanager
async def task_group() -> AsyncGenerator[asyncio.TaskGroup]:
    """A task group that raises its failure itself, not in an exception group, because callers catch domain errors. If
    several tasks fail, it raises the body's failure, or else the last failure."""
    here = asyncio.current_task()
    cancelling_before = here.cancelling() if here is not None else 0
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        failure = failures.exceptions[-1]  # a task group lists the body's error last
    if failure is None:
        return
    if here is not None and here.cancelling() > cancelling_before:
        # Until Python 3.13 a task group that unwinds after an error drops a cancellation that arrives meanwhile. Since
        # then the cancellation is pending, and the sleep raises it.
        await asyncio.sleep(0)
        raise asyncio.CancelledError
    raise failure  # outside the except block, so that it keeps its original cause and context


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
async def repeating(
    action: Callable[[], Awaitable[object]], *, every_s: float, name: str, after_first: bool = False, end_s: float = 2.0
) -> AsyncGenerator[None]:
    """Calls `action` at once, and again `every_s` seconds after each call has ended, until the block ends.

    With `after_first` the block begins when the first call has ended, or failed. When the block ends during a call, it
    waits `end_s` seconds for that call, and then cancels it, because a database that does not answer must not keep a
    process from ending: a worker ends several loops, and has 20 seconds between SIGTERM and SIGKILL.
    """
    stop, called = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_repeat(action, every_s, name, stop, called), name=name)
        try:
            if after_first:
                await called.wait()
            yield
        finally:
            stop.set()
            timer = asyncio.get_running_loop().call_later(end_s, _cut_off, task)
            task.add_done_callback(lambda _: timer.cancel())


def _cut_off(task: asyncio.Task[None]) -> None:
    log.warning("background_round_cut_off", loop=task.get_name())
    task.cancel()


async def _repeat(
    action: Callable[[], Awaitable[object]], every_s: float, name: str, stop: asyncio.Event, called: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            await action()
        except Unavailable as error:
            log.warning("background_round_put_off", loop=name, reason=error.message)
        except Exception:
            # The background-loop boundary: the next round may succeed, and no other code does this work.
            log.exception("background_round_failed", loop=name)
        called.set()
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue


async def whole(work: Awaitable[Result]) -> Result:
    """Returns the result of work that must not stop half-way. A cancellation of the caller is raised when the work has
    ended."""
    ending = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None and not ending.cancelled():
        raise cancellation from ending.exception()
    return ending.result()


async def on_own_thread(work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
    """Runs `work` on an event loop in its own thread until it ends, fails, or this task is cancelled. The work inherits
    this task's context variables, so that its log lines name the same worker.

    A failure of `work` is raised here. A cancellation of this task is passed on to `work`. This function then waits
    until `work` has ended completely.
    """
    began: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    context = copy_context()
    running = asyncio.get_running_loop().run_in_executor(
        executor, lambda: context.run(asyncio.run, _announced(work, began))
    )
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        loop, task = began.result()
        with contextlib.suppress(RuntimeError):  # the work has ended by itself, and its loop with it
            loop.call_soon_threadsafe(task.cancel)
        # This task may be cancelled again meanwhile. A failure of the work matters less than the cancellation.
        await whole(asyncio.gather(running, return_exceptions=True))
        raise
    finally:
        executor.shutdown(wait=False)


async def _announced(
    work: Callable[[], Coroutine[Any, Any, None]], began: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]"
) -> None:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a coroutine runs in a task")
    began.set_result((asyncio.get_running_loop(), task))
    await work()


LATE_S = 1.0
"""An event loop that notices a timeout this many seconds late has stood still meanwhile."""


async def lines_of(stream: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The lines of a stream. A line that is longer than the stream's buffer comes in pieces."""
    while not stream.at_eof():
        try:
            yield await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            yield error.partial
        except asyncio.LimitOverrunError as error:
            yield await stream.read(error.consumed)


class AnswerTimeout:
    """Limits a wait for a service or a tool, like `asyncio.timeout`. If the process stood still when the time ran out,
    as on a paused virtual machine, the other side may have answered. The wait then starts once more."""

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
    """One timer for a time that every event moves, on the event loop's clock: otherwise each token would create a
    timer. A later time leaves the timer unchanged. `look` is then called too early; it compares the clock with its time
    and calls `look_at` again."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._looks_at = 0.0

    def look_at(self, when: float, look: Callable[[], None]) -> None:
        """Calls `look` once, at `when` or before. While the timer runs, it keeps its first `look`."""
        if self._handle is not None:
            if self._looks_at <= when:
                return
            self._handle.cancel()
        # The time is stored here: uvloop's timer returns none if less than half a millisecond was left, because it then
        # creates no timer.
        self._looks_at = when
        # `look` is an argument and not an attribute: otherwise the timer and its owner would refer to each other for
        # ever.
        self._handle = asyncio.get_running_loop().call_at(when, self._call, look)

    def stop(self) -> None:
        """Stops the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, look: Callable[[], None]) -> None:
        self._handle = None
        look()


PAUSE_S = 0.2

PATIENCE_S = 3.0
"""Seconds for which a write is retried while a caller waits. The commit may have succeeded although its answer was
lost."""


async def retry_while_unavailable(action: Callable[[bool], Awaitable[Result]], *, for_s: float, clock: Clock) -> Result:
    """Calls `action(is_again)` until a service answers, for at most `for_s` seconds, and returns its result.

    A step costs a model call, and tools that may not be called twice, so a worker does not discard a step after one
    failed write. `is_again` means that an earlier attempt may have been stored although its answer was lost. Raises the
    errors of `action`, and `Unavailable` after the time limit.
    """
    deadline = clock.monotonic() + for_s
    is_again = False
    while True:
        try:
            return await action(is_again)
        except Unavailable as error:
            if clock.monotonic() + PAUSE_S >= deadline:
                raise
            if not is_again:  # a run tries five times a second
                log.warning("retried_while_unavailable", error=str(error))
        is_again = True
        await asyncio.sleep(PAUSE_S)


Store = TypeVar("Store")


@dataclass(frozen=True)
class Patience:
    """Retries methods of stores while the database is unavailable, for at most `for_s` seconds.

    `main.py` applies it where it constructs a store, so the store's callers need no retries. Each method must be
    idempotent: a second call after a lost answer must change nothing.
    """

    for_s: float
    clock: Clock

    def applied_to(self, store: Store, *methods: Callable[..., Awaitable[object]]) -> Store:
        """A copy of the store that retries these methods, as `retry_while_unavailable` does. A method with a parameter
        `again` gets the value of `is_again` in it."""
        patient = copy.copy(store)
        for method in methods:
            name, takes_again = method.__name__, "again" in signature(method).parameters
            # Not by `setattr`, which a frozen dataclass refuses.
            vars(patient)[name] = self._repeated(getattr(store, name), takes_again=takes_again)
        return patient

    def _repeated(
        self, method: Callable[..., Awaitable[Result]], *, takes_again: bool
    ) -> Callable[..., Awaitable[Result]]:
        async def repeated(*args: Any, **named: Any) -> Result:
            def call(is_again: bool) -> Awaitable[Result]:
                return method(*args, **named, again=True) if is_again and takes_again else method(*args, **named)

            return await retry_while_unavailable(call, for_s=self.for_s, clock=self.clock)

        return repeated


LONG_DATA = 100_000


async def beside(work: Callable[[], Result], size: int) -> Result:
    """The result of `work`. If `size`, in characters, is large, `work` runs on a thread and takes turns with the event
    loop. It must make no long call into C, which would block both."""
    return await asyncio.to_thread(work) if size > LONG_DATA else work()


async def others_turn(data: Sized) -> None:
    """Lets other ready tasks run first, if the data to process next is large.

    A long body is measured, parsed, checked, stored and shown. Each takes tens of milliseconds. Together they would
    block all other requests for a quarter of a second.
    """
    if len(data) > LONG_DATA:
        await asyncio.sleep(0)


# Waits of thousands of readers: the cost of a process with idle readers is that of their waits.


TICK_S, LONG_S, TICKS_OF_LONG = 0.05, 4.0, 10
"""A wait may end `TICK_S` seconds late, because waits that end at nearly the same time share a timer; a wait of at
least `LONG_S` seconds `TICKS_OF_LONG` times as late."""


class LeanEvent:
    """As `asyncio.Event`, which takes most of a kilobyte before any task waits for it."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Wakes all waiting tasks, and lets later ones pass."""
        self._is_set = True
        for waiting in self._waiting or ():
            if not waiting.done():
                waiting.set_result(None)

    def clear(self) -> None:
        """Makes later tasks wait."""
        self._is_set = False

    async def wait(self) -> bool:
        """Waits until the event is set."""
        if self._is_set:
            return True
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [*(self._waiting or ()), waiting]
        try:
            await waiting
        finally:
            self._waiting = [one for one in self._waiting if one is not waiting] or None
        return True


class RoughTimers:
    """The timers of many waits. Waits that end within one tick share one timer of the event loop."""

    def __init__(self) -> None:
        self._waits: dict[int, set[NewsWait]] = {}

    def look_at(self, when: float, wait: "NewsWait") -> None:
        """Calls the wait's `look` once, by the event loop's clock: somewhat late, or earlier, if an earlier call is
        already due."""
        tick, loop = ceil(when / TICK_S), asyncio.get_running_loop()
        if when - loop.time() >= LONG_S:
            tick += -tick % TICKS_OF_LONG
        if wait.looks_at is not None:
            if wait.looks_at <= tick:
                return
            self.forget(wait)
        waits = self._waits.get(tick)
        if waits is None:
            waits = self._waits[tick] = set()
            loop.call_at(tick * TICK_S, self._look, tick)
        waits.add(wait)
        wait.looks_at = tick

    def forget(self, wait: "NewsWait") -> None:
        """Stops calling the wait's `look`."""
        if wait.looks_at is not None and (waits := self._waits.get(wait.looks_at)) is not None:
            waits.discard(wait)
        wait.looks_at = None

    def _look(self, tick: int) -> None:
        for wait in self._waits.pop(tick, ()):
            wait.looks_at = None
            wait.look()


class NewsWait:
    """One reader's wait for news. It needs no task of its own, and no timer: an event and a timeout around it cost
    several times as much, for each reader and for each piece of news."""

    __slots__ = ("_has_news", "_timers", "_until", "_waiting", "looks_at")

    def __init__(self, timers: RoughTimers, *, has_news: bool = False) -> None:
        self._timers = timers
        self._has_news = has_news
        self._waiting: asyncio.Future[None] | None = None
        self._until = 0.0
        """When the wait ends, by the event loop's clock."""
        self.looks_at: int | None = None
        """The tick at which the timers call `look`. Only they write it."""

    @property
    def is_waiting(self) -> bool:
        """Whether the reader has taken all news and waits for more."""
        return self._waiting is not None

    async def wait(self, within: float) -> bool:
        """Waits until there is news. Returns False if there is none for `within` seconds."""
        if self._has_news:
            return True
        loop = asyncio.get_running_loop()
        self._until = loop.time() + within
        self._timers.look_at(self._until, self)
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
        return self._has_news

    def look(self) -> None:
        """Ends the wait if its time is over. The timers call it."""
        if self._waiting is not None and asyncio.get_running_loop().time() < self._until:
            self._timers.look_at(self._until, self)
        else:
            self._wake()

    def stop_waiting(self) -> None:
        """Removes the wait's timer, because the reader does not wait any more."""
        self._timers.forget(self)

    def tell(self) -> None:
        """Wakes the reader, because there is news."""
        self._has_news = True
        self._wake()

    def forget_news(self) -> None:
        """Forgets earlier news, because the reader takes all of it now and waits for later news."""
        self._has_news = False

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
