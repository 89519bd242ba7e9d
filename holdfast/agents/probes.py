"""The verdicts of probes: whether a call with a lost result has had its effect."""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.agents.values import plain

TRIES_AFTER_S = (0.0, 0.5, 2.0)
"""Seconds before each try, as for the worker's own agents. A probe that raises is tried again: the service that it asks
may be unavailable for a moment, and a call whose outcome is unknown once stays unknown for ever."""


@dataclass(frozen=True)
class Verdict:
    """A probe's verdict on a call with a lost result."""

    kind: Literal["happened", "did_not_happen", "cannot_tell"]
    value: Any = None


def happened(value: Any = None) -> Verdict:
    """The call had its effect, and this is its result."""
    return Verdict("happened", value)


def did_not_happen() -> Verdict:
    """The call had no effect. It is started again, with the same key."""
    return Verdict("did_not_happen")


def cannot_tell() -> Verdict:
    """The probe does not know, so the body gets `OutcomeUnknown`."""
    return Verdict("cannot_tell")


async def verdict_of(probe: Callable[[], Awaitable[Any]]) -> Verdict:
    """Returns a probe's verdict. A probe that raises until the last try, or returns no verdict, cannot tell; the
    operator's log shows why."""
    for delay_s in TRIES_AFTER_S:
        await asyncio.sleep(delay_s)
        try:
            said = await probe()
        except Exception:  # noqa: BLE001 - whatever it is, the call has an outcome
            traceback.print_exc()
        else:
            return _checked(said)
    return cannot_tell()


def _checked(said: Any) -> Verdict:
    if not isinstance(said, Verdict):
        sys.stderr.write(f"a probe returns happened(…), did_not_happen() or cannot_tell(), and not {said!r:.200}\n")
        return cannot_tell()
    try:
        return Verdict(said.kind, plain(said.value))
    except (TypeError, ValueError) as error:
        sys.stderr.write(f"what a probe says has happened must be JSON: {error}\n")
        return cannot_tell()
