"""Where a test may have this process die: before and after every durable write of a run's life.

What must survive any crash is shown by crashing everywhere. `HOLDFAST_CRASH_AT=settle:after` ends the process, as `kill
-9` would, when it gets there; `settle:after:2` when it gets there for the second time. Without the setting nothing here
does anything.
"""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from shared.domain.errors import InvalidRequest


class DurableWrite(StrEnum):
    """The writes that a run's life consists of."""

    SUBMIT = "submit"
    RING = "ring"
    CLAIM = "claim"
    OPEN_LOG = "open_log"
    RESERVE = "reserve"
    APPEND = "append"
    DELIVER = "deliver"
    CHECKPOINT = "checkpoint"
    INTENT = "intent"
    PARK = "park"
    DECIDE = "decide"
    SETTLE = "settle"
    FINISH_JOB = "finish_job"
    CANCEL = "cancel"
    ANNOUNCE_CANCEL = "announce_cancel"
    INJECT = "inject"
    RING_AGAIN = "ring_again"


class _Armed:
    """This process's point, and how often it is still to be passed. Of the process, because a crash is."""

    point: ClassVar[str] = ""
    passes: ClassVar[int] = 0


def arm(setting: str) -> None:
    """Sets the point of `HOLDFAST_CRASH_AT`. Raises `InvalidRequest` when there is no such point."""
    write, _, rest = setting.partition(":")
    side, _, times = rest.partition(":")
    if write not in set(DurableWrite) or side not in ("before", "after") or not (times or "1").isdecimal():
        raise InvalidRequest(
            f"HOLDFAST_CRASH_AT={setting!r}: use <write>:before or <write>:after with a write of "
            f"{', '.join(DurableWrite)}"
        )
    _Armed.point, _Armed.passes = f"{write}:{side}", int(times or "1")


def reach(write: DurableWrite | None, side: str) -> None:
    """Ends the process if it is to end here."""
    if not _Armed.point or write is None or f"{write}:{side}" != _Armed.point:
        return
    _Armed.passes -= 1
    if _Armed.passes == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def durable(write: DurableWrite) -> Generator[None]:
    """Surrounds a write to Redis; those to SQL name theirs when they begin their transaction."""
    reach(write, "before")
    yield
    reach(write, "after")
