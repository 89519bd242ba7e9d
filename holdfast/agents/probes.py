"""What probes answer: whether a call whose result was lost has had its effect."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Verdict:
    """What a probe says of a call whose result was lost."""

    kind: Literal["happened", "did_not_happen", "cannot_tell"]
    value: Any = None


def happened(value: Any = None) -> Verdict:
    """The call had its effect, and this is its result."""
    return Verdict("happened", value)


def did_not_happen() -> Verdict:
    """The call had no effect: it is started again, with the same key."""
    return Verdict("did_not_happen")


def cannot_tell() -> Verdict:
    """The probe does not know, so the body gets `OutcomeUnknown`."""
    return Verdict("cannot_tell")
