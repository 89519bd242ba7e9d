"""Draws the schedule of faults from the seed before anything starts, so that the seed reproduces them."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from shared.crash_points import SIDES, CrashPoint


class FaultKind(StrEnum):
    """The kinds of faults."""

    KILL_WORKER = "kill -9 a worker"
    END_WORKER = "SIGTERM a worker"
    FREEZE_WORKER = "SIGSTOP a worker beyond its lease"
    CRASH_WORKER = "kill -9 a worker at a write, or lose the write's answer"
    KILL_API = "kill -9 an API"
    END_API = "SIGTERM an API"
    KILL_REDIS = "kill -9 Redis, restarted empty"
    FLUSH_REDIS = "FLUSHALL"
    FREEZE_REDIS = "SIGSTOP Redis"
    CUT_REDIS = "Redis connections cut"
    REFUSE_REDIS = "Redis refused"
    READONLY_REDIS = "Redis read-only"
    FAIL_OVER_REDIS = "Redis failed over to a replica that lags"
    CUT_SUBSCRIBERS = "pub/sub connections cut"
    CUT_POSTGRES = "Postgres connections cut"
    REFUSE_POSTGRES = "Postgres refused"
    STALL_POSTGRES = "Postgres stalled"
    KILL_MCP_SERVER = "kill -9 an MCP server"
    END_MCP_SERVER = "SIGTERM an MCP server"
    FREEZE_MCP_SERVER = "SIGSTOP an MCP server"


LOSES_WORKER = frozenset({FaultKind.KILL_WORKER, FaultKind.FREEZE_WORKER})
LOSES_REDIS = frozenset({FaultKind.KILL_REDIS, FaultKind.FLUSH_REDIS, FaultKind.FAIL_OVER_REDIS})
STOPS_REDIS = frozenset({FaultKind.FREEZE_REDIS, FaultKind.READONLY_REDIS, FaultKind.REFUSE_REDIS})
"""Redis keeps its data, and takes no writes."""

_IN_A_DECK = {
    FaultKind.KILL_WORKER: 5,
    FaultKind.END_WORKER: 3,
    FaultKind.FREEZE_WORKER: 1,
    FaultKind.KILL_API: 2,
    FaultKind.END_API: 1,
    FaultKind.KILL_MCP_SERVER: 2,
    FaultKind.CRASH_WORKER: 0,
}
"""How often a kind is in a deck of faults; other kinds are in it once."""

_OF_WORKERS = {
    FaultKind.KILL_WORKER: 4,
    FaultKind.END_WORKER: 3,
    FaultKind.FREEZE_WORKER: 1,
    FaultKind.CRASH_WORKER: 4,
}
"""The deck of faults that affect only workers."""

_MOST_PASSES = {
    CrashPoint.CLAIM: 12,
    CrashPoint.OPEN_LOG: 12,
    CrashPoint.APPEND: 60,
    CrashPoint.CHECKPOINT: 40,
    CrashPoint.INTENT: 5,
    CrashPoint.EDIT_MEMORY: 12,
    CrashPoint.REMEMBER: 3,
    CrashPoint.COMPACT: 2,
    CrashPoint.SETTLE: 12,
    CrashPoint.FINISH_JOB: 12,
}
"""The writes at which a worker dies, and the highest number of its passes: about as many as in some seconds."""

DIES_WITHIN_S = 20.0
"""Seconds after which a worker that has not reached its write is killed."""

_LASTS_S = {
    FaultKind.KILL_REDIS: (0.0, 1.5),
    FaultKind.FREEZE_REDIS: (1.0, 4.0),
    FaultKind.REFUSE_REDIS: (1.0, 5.0),
    FaultKind.READONLY_REDIS: (1.0, 4.0),
    FaultKind.FAIL_OVER_REDIS: (0.1, 2.0),
    FaultKind.REFUSE_POSTGRES: (1.0, 5.0),
    FaultKind.STALL_POSTGRES: (1.0, 3.0),
    FaultKind.KILL_MCP_SERVER: (0.0, 3.0),
    FaultKind.END_MCP_SERVER: (0.0, 1.0),
    FaultKind.FREEZE_MCP_SERVER: (1.0, 4.0),
}

_TWO_AT_ONCE = 0.15
_CLEAN_KILLS = 0.6
"""The share of kills without further faults until the recovery, so that it can be measured by itself."""


@dataclass(frozen=True)
class Fault:
    """One fault: its begin (seconds from the start), its target and its duration."""

    at_s: float
    kind: FaultKind
    target: int
    lasts_s: float
    is_alone: bool = False
    """Whether it waits for earlier faults to end, so that its cost can be measured by itself."""
    crash_at: str = ""
    """The write at which a worker dies, in the form of `HOLDFAST_CRASH_AT`."""

    def __str__(self) -> str:
        alone = ", alone" if self.is_alone else ""
        where = f" at {self.crash_at}" if self.crash_at else ""
        return f"{self.at_s:6.1f} s  {self.kind} #{self.target}{where} for {self.lasts_s:.1f} s{alone}"


def draw_schedule(seed: int, seconds: float, lease_s: float, kinds: Collection[FaultKind] = ()) -> list[Fault]:
    """Draws the faults of this many seconds, in order. Every kind occurs before any exceeds its share. `kinds`: the
    only ones, in equal shares; empty: all kinds."""
    dice = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    deck: list[FaultKind] = []
    at_s = dice.uniform(2.0, 4.0)
    while at_s < seconds:
        deck = deck or _shuffled(dice, kinds)
        kind = deck.pop()
        quiet = kind in (FaultKind.KILL_WORKER, FaultKind.END_WORKER) and dice.random() < _CLEAN_KILLS
        if quiet and faults:
            at_s = max(at_s, faults[-1].at_s + faults[-1].lasts_s + 2.0)
        faults.append(replace(_fault(dice, at_s, kind, lease_s), is_alone=quiet))
        if not quiet and deck and deck[-1] is not kind and dice.random() < _TWO_AT_ONCE:
            faults.append(_fault(dice, at_s, deck.pop(), lease_s))
        at_s += dice.uniform(2.0, 6.0)
        if quiet and kind is FaultKind.KILL_WORKER:
            at_s = max(at_s, faults[-1].at_s + lease_s + 3.0)
    return faults


def draw_worker_faults(seed: int, every_s: float, lease_s: float) -> Iterator[Fault]:
    """Draws faults that affect only workers, without end: one every `every_s` seconds on average."""
    dice = random.Random(f"workers {seed}")
    at_s = 0.0
    while True:
        deck = [kind for kind, times in _OF_WORKERS.items() for _ in range(times)]
        dice.shuffle(deck)
        for kind in deck:
            at_s += dice.uniform(0.2, 1.8) * every_s
            yield _fault(dice, at_s, kind, lease_s)


def _shuffled(dice: random.Random, kinds: Collection[FaultKind]) -> list[FaultKind]:
    deck = list(kinds) or [kind for kind in FaultKind for _ in range(_IN_A_DECK.get(kind, 1))]
    dice.shuffle(deck)
    return deck


def _fault(dice: random.Random, at_s: float, kind: FaultKind, lease_s: float) -> Fault:
    target = dice.randrange(1000)
    shortest, longest = _LASTS_S.get(kind, (0.0, 0.0))
    if kind is FaultKind.FREEZE_WORKER:
        shortest, longest = lease_s + 1.0, lease_s + 4.0
    if kind is FaultKind.CRASH_WORKER:
        point = dice.choice(list(_MOST_PASSES))
        where = f"{point}:{dice.choice(SIDES)}:{dice.randint(1, _MOST_PASSES[point])}"
        return Fault(at_s, kind, target, DIES_WITHIN_S, crash_at=where)
    return Fault(at_s, kind, target, dice.uniform(shortest, longest))
