"""Trees of runs: an agent's call of another agent starts a run of that agent, which is a child of the calling run."""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import msgspec

from shared.domain.ids import RunId


class ParentCall(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The call that started a run."""

    run_id: RunId
    """The run that made the call."""
    call_id: str
    root_id: RunId
    """The run at the top of the tree: a client submitted it."""
    depth: int
    """Calls between the top and this run: 1 for a child of the root."""
    awaited: bool = True
    """The result of the call is the run's answer. False: the call only starts the run."""


class SeenChild(NamedTuple):
    """The state of a child as its parent last saw it."""

    run_id: RunId
    is_parked: bool
    """It waits for a person."""


class CallWaits(Exception):
    """A call's result is the answer of other runs. The caller lets its run wait, without a worker, until the state of
    one of these children differs from `seen`, or `wait` is over; then it makes the call again."""

    def __init__(self, seen: Iterable[SeenChild], wait: timedelta) -> None:
        super().__init__("the call waits for other runs")
        self.seen = frozenset(seen)
        self.wait = wait


class TreeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tree."""

    depth: int
    """The most levels below the root."""
    runs: int
    """The most runs below the root."""
    wait: timedelta
    """How long a call waits for its answer."""
