"""The simulation: runs pass through phases, and each phase makes work for their processes.

A run waits for its model, streams, calls a tool, and so on until its last step; then another one replaces it, so that
the number in flight stays constant. Changes of phases are single events. Tokens are too many for that: a streaming run
adds a rate of work to its worker, its API process and its Redis, and in every tick each process does as much as it can.
A token waits there for as long as the remaining work takes.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from bench.simulation.costs import POOLS, Costs

TICK_S = 0.02

CAPACITY_US = 1e6
"""Microseconds of processor time per process and second."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runs' behaviour. Times and lengths are medians of log-normal distributions with `spread` as their sigma."""

    steps: float = 3.0
    """The mean of a geometric distribution."""
    silence_s: float = 1.5
    """Seconds until the first token of a step."""
    tokens: float = 200.0
    """Tokens per step."""
    tokens_per_s: float = 40.0
    tool_s: float = 1.0
    """Seconds of the tool call between two steps."""
    watched: float = 0.5
    """The share of runs whose stream a client reads."""
    spread: float = 0.6


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of processes of each kind."""

    worker: int
    api: int
    redis: int
    postgres: int = 1


@dataclass
class Pool:
    """The processes of one kind."""

    size: int
    rate_us: list[float] = field(init=False)
    """Microseconds of work per second that streaming runs make for each process."""
    backlog_us: list[float] = field(init=False)
    given_us: float = 0.0
    worked_us: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For each tick and process: the seconds that its work had to wait, and the amount of it."""

    def __post_init__(self) -> None:
        self.rate_us, self.backlog_us = [0.0] * self.size, [0.0] * self.size

    def give(self, place: int, work_us: float) -> None:
        """Adds work to a process."""
        self.backlog_us[place] += work_us
        self.given_us += work_us

    def tick(self) -> None:
        """Works for one tick in each process."""
        able = CAPACITY_US * TICK_S
        for number, rate in enumerate(self.rate_us):
            before, comes = self.backlog_us[number], rate * TICK_S
            after = max(0.0, before + comes - able)
            self.given_us += comes
            self.worked_us += before + comes - after
            self.backlog_us[number] = after
            self.waits.append(((before + after) / 2 / CAPACITY_US, rate))


class PoolFigures(msgspec.Struct, frozen=True):
    """The result for one kind of process."""

    processes: int
    busy: float
    """The used share of their capacity."""
    needed: float
    """The number of processes that the work would keep fully busy."""
    wait_p50_s: float
    wait_p99_s: float
    """The 99th percentile of the seconds that a token waits before it is processed."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a simulation."""

    in_flight: int
    streaming: float
    """The mean number of concurrently streaming runs."""
    tokens_per_s: float
    runs_per_s: float
    pools: dict[str, PoolFigures]


class Simulation:
    """Simulates `in_flight` runs on a fleet. The figures do not include `warm_up_s`."""

    def __init__(self, costs: Costs, fleet: Fleet, work: Workload, *, in_flight: int, seed: int = 1) -> None:
        self._costs, self._work, self._in_flight = costs, work, in_flight
        self._random = random.Random(seed)
        self._pools = {pool: Pool(getattr(fleet, pool)) for pool in POOLS}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._streaming, self._rate = 0, 0.0
        self._ended = 0

    def run(self, *, warm_up_s: float, for_s: float, progress: Callable[[float], None] = lambda _: None) -> Outcome:
        """Simulates. `progress` is called with the seconds that have passed."""
        for _ in range(self._in_flight):
            self._at(self._random.uniform(0, warm_up_s), self._begin_run)
        streaming, tokens, warm_up, ticks = 0, 0.0, round(warm_up_s / TICK_S), round(for_s / TICK_S)
        for number in range(1, warm_up + ticks + 1):
            now = number * TICK_S
            while self._events and self._events[0][0] <= now:
                moment, _, happens = heapq.heappop(self._events)
                happens(moment)
            for pool in self._pools.values():
                pool.tick()
            if number <= warm_up:
                self._forget()
            else:
                streaming, tokens = streaming + self._streaming, tokens + self._rate * TICK_S
            progress(now)
        return Outcome(
            in_flight=self._in_flight,
            streaming=streaming / ticks,
            tokens_per_s=tokens / for_s,
            runs_per_s=self._ended / for_s,
            pools={name: _figures(pool, for_s) for name, pool in self._pools.items()},
        )

    def _forget(self) -> None:
        self._ended = 0
        for pool in self._pools.values():
            pool.given_us = pool.worked_us = 0.0
            pool.waits.clear()

    def _at(self, moment: float, happens: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (moment, self._number, happens))

    def _begin_run(self, now: float) -> None:
        places = {name: self._random.randrange(pool.size) for name, pool in self._pools.items()}
        watched = self._random.random() < self._work.watched
        steps = 1
        while self._random.random() > 1 / self._work.steps:
            steps += 1
        for name, place in places.items():
            self._pools[name].give(place, self._costs.of(name).run)
        self._begin_step(now, places, watched, steps)

    def _begin_step(self, now: float, places: dict[str, int], watched: bool, left: int) -> None:
        self._at(now + self._drawn(self._work.silence_s), lambda at: self._stream(at, places, watched, left))

    def _stream(self, now: float, places: dict[str, int], watched: bool, left: int) -> None:
        rate = self._work.tokens_per_s
        self._add_stream(places, watched, rate)
        lasts = self._drawn(self._work.tokens) / rate
        self._at(now + lasts, lambda at: self._end_step(at, places, watched, left))

    def _end_step(self, now: float, places: dict[str, int], watched: bool, left: int) -> None:
        self._add_stream(places, watched, -self._work.tokens_per_s)
        if left == 1:
            self._ended += 1
            self._begin_run(now)
            return
        for name, place in places.items():
            self._pools[name].give(place, self._costs.of(name).step)
        self._at(now + self._drawn(self._work.tool_s), lambda at: self._begin_step(at, places, watched, left - 1))

    def _add_stream(self, places: dict[str, int], watched: bool, rate: float) -> None:
        self._streaming += 1 if rate > 0 else -1
        self._rate += rate
        for name, place in places.items():
            if name != "api" or watched:
                self._pools[name].rate_us[place] += rate * self._costs.of(name).token

    def _drawn(self, median: float) -> float:
        return median * self._random.lognormvariate(0.0, self._work.spread)


def _figures(pool: Pool, for_s: float) -> PoolFigures:
    whole = sum(weight for _, weight in pool.waits)
    return PoolFigures(
        processes=pool.size,
        needed=pool.given_us / (CAPACITY_US * for_s),
        busy=pool.worked_us / (CAPACITY_US * pool.size * for_s),
        wait_p50_s=_weighted(pool.waits, whole * 0.5),
        wait_p99_s=_weighted(pool.waits, whole * 0.99),
    )


def _weighted(waits: list[tuple[float, float]], until: float) -> float:
    """Returns the wait that `until` of the weight does not exceed."""
    passed = 0.0
    for wait, weight in sorted(waits):
        passed += weight
        if passed >= until:
            return wait
    return 0.0
