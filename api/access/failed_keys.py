"""Wrong keys, counted by the address that they come from, in this process.

An address that sends many is told to slow down. That must not lock out others who share it, behind one proxy: a key
that nobody can guess is let in all the same, and nothing would be gained by refusing it. A short key might be found by
trying. So it has to have been used from that address before the wrong ones came.
"""

import math
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from shared.concurrency import Clock

BURST = 30
"""Wrong keys that an address may send at once."""
PER_SECOND = 0.5
"""And then so many, on and on."""
MOST_COUNTED = 2 * BURST
"""More are not counted, so that an address which stops is free again after a minute."""

MOST_ADDRESSES = 10_000
KNOWN_FOR_S = 3600.0
"""Seconds for which a short key that was right stays known to be used from an address."""


class FailedKeys:
    """Counts wrong keys. Its memory is bounded, whoever sends what."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: how many, and when they were."""
        self._known: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By address and key: when the key was right."""

    def note(self, address: str) -> int | None:
        """Counts a wrong key; the seconds to wait for, if there were too many."""
        address = network_of(address)
        count = min(self._count(address) + 1, MOST_COUNTED)
        _put(self._counts, address, (count, self._clock.monotonic()))
        return _wait(count)

    def wait_for(self, address: str, key_id: str) -> int | None:
        """The seconds for which this short key, which is right, has to wait; None if it is let in."""
        address = network_of(address)
        known, now = self._known.get((address, key_id)), self._clock.monotonic()
        wait = _wait(self._count(address))
        if wait is not None and (known is None or now - known > KNOWN_FOR_S):
            return wait
        _put(self._known, (address, key_id), now)
        return None

    def _count(self, address: str) -> float:
        count, at = self._counts.get(address, (0.0, 0.0))
        return max(0.0, count - (self._clock.monotonic() - at) * PER_SECOND)


def _wait(count: float) -> int | None:
    return math.ceil((count - BURST) / PER_SECOND) if count > BURST else None


Name = TypeVar("Name")
Value = TypeVar("Value")


def _put(kept: OrderedDict[Name, Value], name: Name, value: Value) -> None:
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > MOST_ADDRESSES:
        kept.popitem(last=False)


def network_of(address: str) -> str:
    """What one machine may choose its addresses from: of IPv6, the first half."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(IPv6Address(int(parsed) >> 64 << 64)) if isinstance(parsed, IPv6Address) else address
