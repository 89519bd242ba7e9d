"""Clocks that a test sets: one stands still until the test advances it, and one runs ahead of the system's clock.

Leases and logs expire by the time of Redis. So a test sets the time of the embedded server (`TIME` in the scripts, and
the expiry of keys) and of the event loop. It replaces none of the product's classes.
"""

import asyncio
import types
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from pytest import MonkeyPatch

from shared.concurrency import SystemClock

START_MS = 1_800_000_000_000

STEP_S = 0.005
"""A step of `AwakeTime`, however late the loop takes it."""

SERVER_CLOCKS = (
    "fakeredis._socket._base.time",
    "fakeredis._helpers.time",
    "fakeredis.commands_mixins.server_mixin.time",
    "fakeredis.model._stream.time",
)
"""The places where the embedded server and its scripts read the time: each is the module `time`."""


class FrozenClock:
    """Milliseconds that pass only by `advance`."""

    def __init__(self) -> None:
        self.ms = START_MS

    def reset(self) -> None:
        self.ms = START_MS

    def advance(self, ms: int) -> None:
        self.ms += ms

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.ms / 1000, UTC)

    def monotonic(self) -> float:
        return self.ms / 1000

    def time(self) -> float:
        """Returns the time of Redis."""
        return self.ms / 1000


class PlayedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow a clock that a test sets."""

    def __init__(self, clock: FrozenClock) -> None:
        super().__init__()
        self._clock = clock
        # A float as large as today's time cannot represent asyncio's nanosecond, so a timer that is due now would never
        # run.
        self._clock_resolution = 0.0005

    def time(self) -> float:
        return self._clock.monotonic()

    async def until_quiet(self) -> None:
        """Returns when every other task waits, for a later time or for something from outside."""
        await _next_round()
        await _next_round()  # a timer that is due becomes ready in the first one
        while cast("Any", self)._ready:
            await _next_round()


@types.coroutine
def _next_round() -> Generator[None]:
    yield


class AwakeTime:
    """Seconds in which this process's event loop ran: a paused machine adds nothing to them, and a busy one little. For
    limits on durations that must hold however busy the machine is."""

    def __init__(self) -> None:
        self._steps = 0
        self._next: asyncio.TimerHandle | None = None

    def __enter__(self) -> "AwakeTime":
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()

    def seconds(self) -> float:
        return self._steps * STEP_S

    def _wait(self) -> None:
        self._next = asyncio.get_running_loop().call_later(STEP_S, self._step)

    def _step(self) -> None:
        self._steps += 1
        self._wait()


class SettableClock(SystemClock):
    """Runs on by itself; `advance` makes hours pass at once. Durations stay real."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self._ahead

    def advance(self, **by: float) -> None:
        """Advances the clock. `by` is as for a timedelta: `hours=3`."""
        self._ahead += timedelta(**by)


@contextmanager
def embedded_redis_follows(clock: FrozenClock) -> Generator[None]:
    """While the block lasts, every Redis inside this process has the time of `clock`."""
    with MonkeyPatch.context() as patch:
        for place in SERVER_CLOCKS:
            patch.setattr(place, clock)
        yield
