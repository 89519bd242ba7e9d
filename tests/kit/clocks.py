"""Clocks that a test sets: one that stands still until it is put forward, and one that runs on ahead of the system's.

What expires in a lease or a log expires by Redis' own time, so that is what a test has to play: `TIME` in the scripts
and the expiry of keys in the embedded server, and the clock of those who dispatch. Nothing of ours is replaced.
"""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from pytest import MonkeyPatch

from shared.clock import SystemClock

START_MS = 1_800_000_000_000

SERVER_CLOCKS = (
    "fakeredis._socket._base.time",
    "fakeredis._helpers.time",
    "fakeredis.commands_mixins.server_mixin.time",
    "fakeredis.model._stream.time",
)
"""Where the embedded server asks for the time: each is the module `time`."""

ENQUEUER_CLOCK = "arq.utils.time"
"""Where arq asks for the time of a dispatch: the function `time`."""


class FrozenClock:
    """Milliseconds that pass only by `advance`."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.enqueuer_ahead_ms: int = 0
        """By how much the clocks of those who dispatch run ahead of Redis' own."""

    def reset(self) -> None:
        self.ms = START_MS

    def advance(self, ms: int) -> None:
        self.ms += ms

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.ms / 1000, UTC)

    def monotonic(self) -> float:
        return self.ms / 1000

    def time(self) -> float:
        """The time that Redis tells."""
        return self.ms / 1000

    def enqueuer_time(self) -> float:
        """The time that somebody believes who dispatches."""
        return (self.ms + self.enqueuer_ahead_ms) / 1000


class SettableClock(SystemClock):
    """Runs on by itself; `advance` makes hours pass at once. Durations stay real."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self._ahead

    def advance(self, **by: float) -> None:
        """`by` as for a timedelta: `hours=3`."""
        self._ahead += timedelta(**by)


@contextmanager
def embedded_redis_follows(clock: FrozenClock) -> Generator[None]:
    """While the block lasts, every Redis inside this process has the time of `clock`."""
    with MonkeyPatch.context() as patch:
        for place in SERVER_CLOCKS:
            patch.setattr(place, clock)
        patch.setattr(ENQUEUER_CLOCK, clock.enqueuer_time)
        yield
