"""The time, handed in to everything that needs it: tests own their clock, the product uses the system's."""

import time
from datetime import UTC, datetime
from typing import Protocol


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
