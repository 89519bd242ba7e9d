"""Holds somebody to a rate: what a tool may ask of the worker's time in one second, however fast it is."""

import asyncio


class Pace:
    """So many units a second, and as many as `burst` at once after a rest."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._rest_s = burst / per_s
        self._due = 0.0

    def delay(self, amount: float, now: float) -> float:
        """Takes `amount`. Seconds to wait before going on."""
        self._due = max(self._due, now - self._rest_s) + amount / self._per_s
        return max(0.0, self._due - now)

    async def take(self, amount: float) -> None:
        """Waits until it is due."""
        delay = self.delay(amount, asyncio.get_running_loop().time())
        if delay:
            await asyncio.sleep(delay)
