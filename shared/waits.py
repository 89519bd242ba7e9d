"""Waits of thousands: what each costs while nothing happens is what a process of idle readers costs."""

import asyncio
from math import ceil

TICK_S, LONG_S, TICKS_OF_LONG = 0.05, 4.0, 10
"""A wait may end this many seconds late, because waits that end at nearly the same time share a timer; one of at least
`LONG_S` seconds so many times as late."""


class LeanEvent:
    """As `asyncio.Event`, which takes most of a kilobyte before anybody waits for it."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wakes everybody who waits, and lets later ones pass."""
        self._is_set = True
        for waiting in self._waiting or ():
            if not waiting.done():
                waiting.set_result(None)

    def clear(self) -> None:
        """Makes later ones wait."""
        self._is_set = False

    async def wait(self) -> bool:
        """Waits until it is set."""
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
    """The timers of many waits. Those that end within one tick share one timer of the event loop."""

    def __init__(self) -> None:
        self._waits: dict[int, set[NewsWait]] = {}

    def look_at(self, when: float, wait: "NewsWait") -> None:
        """Calls the wait's `look` once, by the event loop's clock: somewhat late, or before, if an earlier call is due
        already."""
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
        """Calls `look` no more."""
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
        """The tick at which the timers call `look`. It is theirs."""

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
        """The reader waits no more."""
        self._timers.forget(self)

    def tell(self) -> None:
        """There is news."""
        self._has_news = True
        self._wake()

    def forget_news(self) -> None:
        """The reader takes all news now, and waits for what comes from here on."""
        self._has_news = False

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
