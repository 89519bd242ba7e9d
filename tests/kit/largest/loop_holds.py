"""Measures how long an event loop is held, in processor time of its thread, which other work does not change.

The unit is a handle, which the loop runs without a break: meanwhile it serves no other request.
"""

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

LIMIT_S = 0.25
"""How long one request may hold the loop, on a machine that makes the turns of `calibrate` in `REFERENCE_S`."""

REFERENCE_S = 0.05
_TURNS = 1_000_000


class LoopHolds:
    """The longest hold of the loop since `begin`. Written by the loop's thread, read by any."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.longest_s = 0.0
        self.where = ""
        """The code that the loop ran then."""

    def begin(self) -> None:
        """Forgets the measurements so far."""
        self.longest_s, self.where = 0.0, ""

    def note(self, handle: asyncio.Handle, took_s: float) -> None:
        """A handle was run to its end."""
        if took_s > self.longest_s and threading.get_ident() == self._thread:
            self.longest_s = took_s
            self.where = repr(handle)[:500] if took_s > LIMIT_S / 2 else ""


@contextmanager
def measured_loop() -> Generator[LoopHolds]:
    """Measures the loop of this thread for the block. The loop is asyncio's own, whose handles are Python."""
    holds = LoopHolds()
    handles: Any = asyncio.Handle
    run = handles._run  # every loop of asyncio runs its handles by this method

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        holds.note(handle, time.thread_time() - began)

    handles._run = measured
    try:
        yield holds
    finally:
        handles._run = run


def calibrate() -> float:
    """How many times slower than the machine of the limit this one is now; at least 1.

    Two programs on one core's two threads, or on one cache, slow each other down in processor time as well.
    """
    began = time.thread_time()
    total = 0
    for number in range(_TURNS):
        total += number % 7
    return max(1.0, (time.thread_time() - began) / REFERENCE_S)
