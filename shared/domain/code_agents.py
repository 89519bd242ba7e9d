"""Agents of operators' own code as workers report them, and the version of an agent that may execute a run.

A run continues in the version in which it began while a worker with that version lives. Code without a declared version
has the empty text as its version, and any worker executes its runs.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from shared.domain.errors import OtherVersion
from shared.domain.runs import Run


class ShownAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a worker has."""

    name: str
    version: str = ""
    """Empty: its code declares none."""
    description: str = ""
    framework: str = "function"


class KnownVersion(NamedTuple):
    """A version that workers have reported."""

    name: str
    """The name of the agent."""
    version: str
    first_seen_at: datetime
    seen_at: datetime
    """When a worker that has it was last seen."""


class OwnVersions(NamedTuple):
    """The versions of agents that one worker may execute."""

    versions: Mapping[str, str] = {}
    """The versions of its agents, by their names."""
    stands_in: bool = False
    """The worker also continues runs that began in other versions, because no worker with those versions lives."""

    def of(self, run: Run) -> str | None:
        """The version in which this worker executes the run; None if the run's agent has no code of its own."""
        return self.versions.get(run.options.code_agent, "") if run.options.code_agent is not None else None

    def refuse_others(self, run: Run) -> None:
        """Raises `OtherVersion` for a run that began in a version that this worker does not have."""
        if run.code_version and run.code_version != self.of(run) and not self.stands_in:
            raise OtherVersion(run.options.code_agent or "", run.code_version, run.fence)


ANY_VERSION = OwnVersions()
