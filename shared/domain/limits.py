"""How much one project, and one key of it, may ask of a deployment that others use too.

A limit of 0 is none. What a limit refuses is told which one it was, what sets it and when to come again.
"""

from collections.abc import Mapping
from math import ceil
from typing import Annotated

import msgspec

from shared.domain.errors import HoldfastError
from shared.domain.ids import ProjectId

BURST_S = 2.0
"""Requests that come together are let through up to what so many seconds allow."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class LimitReached(HoldfastError):
    """A limit is used up for now. `what` says whose, with its number; `setting` is the variable that sets it."""

    def __init__(self, what: str, *, setting: str, retry_after_s: float) -> None:
        self.retry_after_s = max(1, ceil(retry_after_s))
        super().__init__(f"{what} ({setting}). Come again in {self.retry_after_s} s.")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one project."""

    requests_per_s: float = 0
    key_requests_per_s: float = 0
    """Of each of its keys."""
    runs_in_flight: int = 0
    queued_runs: int = 0
    readers: int = 0
    """Streams that are open at once."""
    key_readers: int = 0
    """Of each of its keys."""


class OwnLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a project that differ from everybody's."""

    requests_per_s: _Rate | None = None
    key_requests_per_s: _Rate | None = None
    runs_in_flight: _Count | None = None
    queued_runs: _Count | None = None
    readers: _Count | None = None
    key_readers: _Count | None = None


class ProjectLimits:
    """The limits of every project."""

    def __init__(self, each: Limits, own: Mapping[ProjectId, OwnLimits]) -> None:
        self._each = each
        self._own = {project: _with_own(each, differing) for project, differing in own.items()}

    def of(self, project_id: ProjectId) -> Limits:
        """The limits of this project."""
        return self._own.get(project_id, self._each)

    def own_in_flight(self) -> dict[str, int]:
        """How many runs those projects that have limits of their own may have in flight."""
        return {project: limits.runs_in_flight for project, limits in self._own.items()}


def parse_own_limits(text: str) -> dict[ProjectId, OwnLimits]:
    """Reads `{"project": {"readers": 10}}`. Raises `ValueError` with what is wrong."""
    try:
        return msgspec.json.decode(text, type=dict[ProjectId, OwnLimits]) if text.strip() else {}
    except msgspec.MsgspecError as error:
        names = ", ".join(OwnLimits.__struct_fields__)
        raise ValueError(f'write it as {{"project": {{"readers": 10}}}}, with {names}: {error}') from error


def _with_own(each: Limits, own: OwnLimits) -> Limits:
    said = {name: value for name, value in msgspec.structs.asdict(own).items() if value is not None}
    return msgspec.structs.replace(each, **said)
