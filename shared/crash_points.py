"""Points around every durable write of a run at which a test can end this process, or lose an answer.

Tests prove that a run survives any crash by crashing at every point. `HOLDFAST_CRASH_AT=settle:after` ends the process
there, as `kill -9` would; `settle:after:2` ends it at the second pass. `settle:lost` performs the write and then loses
its answer, as a broken connection does; `settle:lost:1:2` loses the first two. Without the setting this module does
nothing.
"""

import os
import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

import structlog

from shared.domain.errors import InvalidRequest, Unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CrashPoint(StrEnum):
    """The durable writes of a run."""

    SUBMIT = "submit"
    SUBMIT_REFUSED = "submit_refused"
    DISPATCH = "dispatch"
    CLAIM = "claim"
    OPEN_LOG = "open_log"
    ADOPT = "adopt"
    APPEND = "append"
    SPILL = "spill"
    NEW_FENCE = "new_fence"
    DELIVER = "deliver"
    CHECKPOINT = "checkpoint"
    COMPACT = "compact"
    INTENT = "intent"
    RESULT = "result"
    JOURNAL = "journal"
    EDIT_MEMORY = "edit_memory"
    REMEMBER = "remember"
    HAND_OVER = "hand_over"
    LET_WAIT = "let_wait"
    WAKE = "wake"
    PARK = "park"
    DECIDE = "decide"
    SETTLE = "settle"
    SETTLE_EFFECT = "settle_effect"
    FINISH_JOB = "finish_job"
    CANCEL = "cancel"
    ANNOUNCE_CANCEL = "announce_cancel"
    TAKE_OVER = "take_over"
    INJECT = "inject"
    DISPATCH_AGAIN = "dispatch_again"
    COUNT_TURNS = "count_turns"
    TURNS_DELIVERED = "turns_delivered"


SIDES = ("before", "after", "lost")

_SETTING = re.compile(rf"(\w+):({'|'.join(SIDES)})(?::(\d+))?(?::(\d+))?")
"""The write, the side, the pass at which the point acts first, and how often it then acts."""


class _Armed:
    """The point of this process, the number of passes before it acts, and how often it then acts. A module-level value,
    because a crash concerns the process."""

    point: ClassVar[str] = ""
    passes: ClassVar[int] = 0
    times: ClassVar[int] = 0


def arm(setting: str) -> None:
    """Sets the point of `HOLDFAST_CRASH_AT`, or none for an empty text. Raises `InvalidRequest` if the point does not
    exist."""
    if not setting:
        _Armed.point = ""
        return
    found = _SETTING.fullmatch(setting)
    if found is None or found[1] not in set(CrashPoint):
        raise InvalidRequest(
            f"HOLDFAST_CRASH_AT={setting!r}: use <write>:<side>, with a side of {', '.join(SIDES)} and a write of "
            f"{', '.join(CrashPoint)}"
        )
    _Armed.point, _Armed.passes, _Armed.times = f"{found[1]}:{found[2]}", int(found[3] or 1), int(found[4] or 1)


def reach(point: CrashPoint | None, side: str) -> None:
    """Ends the process if this is its point. At `after`, raises `Unavailable` if the answer is to be lost."""
    if not _Armed.point or point is None:
        return
    if _is_due(f"{point}:{side}"):
        os.kill(os.getpid(), signal.SIGKILL)
    if side == "after" and _is_due(f"{point}:lost"):
        log.warning("answer_lost_on_purpose", point=str(point))
        raise Unavailable(f"the answer to {point} was lost on purpose")


def _is_due(name: str) -> bool:
    if name != _Armed.point:
        return False
    _Armed.passes -= 1
    return -_Armed.times < _Armed.passes <= 0


@contextmanager
def crash_point(point: CrashPoint) -> Generator[None]:
    """Encloses a write to Redis. A write to SQL names its point when it begins its transaction."""
    reach(point, "before")
    yield
    reach(point, "after")
