"""The port of bodies: a body does the work of a run between its claim and its end. A table maps kinds of runs to them.

The worker claims a run, adopts its log, watches for cancels and stores its end in the same way for an agent's loop, a
compaction and an agent of another framework. The body does everything between.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from shared.domain.errors import CancelMode
from shared.domain.messages import NewMessage
from shared.domain.runs import Compaction, Run, RunKind, Usage
from shared.domain.settling import RunEnd
from worker.run.run_handle import AwaitsRuns, Parked, RunHandle


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a body ended its run, and what the worker still has to store."""

    end: RunEnd
    messages: list[NewMessage] = []
    """The final answer."""
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """The change of the thread, when the run compacts it."""
    is_answer: bool = False
    """The run has answered every message that was sent to it. A message that arrives meanwhile causes one more step."""


class Sleeps(msgspec.Struct, frozen=True):
    """The run has nothing to do until then. Another claim continues it."""

    until: datetime


class Body:
    """Does the work of runs of one kind. A body overrides `execute`, and the other methods if it needs them."""

    continues_answers = False
    """Whether the body can continue an answer that another worker began to show. If not, the worker publishes that the
    answer is void."""
    model = ""
    """Handle of the model whose answer the end of the run cuts off."""

    async def loaded(self, handle: RunHandle) -> "Body":
        """Loads what the run needs and returns the body for this one run. A worker loads few runs at a time.

        Raises `NotFound` and `UnreadableSecret` if the run cannot start: it fails before it has shown anything.
        """
        return self

    async def execute(self, handle: RunHandle) -> Outcome | Parked | AwaitsRuns | Sleeps:
        """Does the run's work, from where its last checkpoint left it.

        Raises `ModelError`, `BudgetExceeded` and `UnreadableSecret`, with which the run fails or waits. It does not
        catch what interrupts a run. Any other exception is a defect and fails the run.
        """
        raise NotImplementedError

    async def lost_calls(self, handle: RunHandle) -> Usage:
        """Called when the run failed or was cancelled, before its end is stored. Returns an estimate of calls of models
        that were lost with earlier workers and are not in the run's usage. By default there are none."""
        return Usage()


class Bodies:
    """The bodies of a worker, by kind of run."""

    def __init__(self, bodies: Mapping[RunKind, Body]) -> None:
        self._bodies = bodies

    def of(self, run: Run) -> Body:
        """The body that does the work of this run."""
        return self._bodies[run.kind]
