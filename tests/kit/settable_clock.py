"""A clock that a test can put forward: the system's, plus what was added."""

from datetime import datetime, timedelta

from shared.clock import SystemClock


class SettableClock(SystemClock):
    """Runs on by itself; `advance` makes hours pass at once. Durations stay real."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self._ahead

    def advance(self, **by: float) -> None:
        """`by` as for a timedelta: `hours=3`."""
        self._ahead += timedelta(**by)
