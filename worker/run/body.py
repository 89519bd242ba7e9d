"""The port of bodies: what a run does between its claim and its end, and the table that says which body does it.

Whoever executes a run claims it, adopts its log, watches for cancels, and stores its end. All of that is the same for
an agent's loop, a compaction, and an agent of another framework; what lies between is a body's.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec

from shared.domain.errors import CancelMode
from shared.domain.messages import NewMessage
from shared.domain.runs import Compaction, Run, RunKind
from shared.domain.settling import RunEnd
from worker.run.run_handle import Parked, RunHandle


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a body ended its run, and what is not stored yet."""

    end: RunEnd
    messages: list[NewMessage] = []
    """The final answer."""
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """The change of the thread, when the run compacts it."""
    is_answer: bool = False
    """The run has answered every message that it was sent. A message that comes meanwhile wants one more step."""


class Body:
    """What runs of one kind do. A body overrides `execute`, and the others where it needs them."""

    continues_answers = False
    """Whether the body can go on with an answer that another worker has begun to show. If not, readers are told that it
    is void."""
    model = ""
    """Handle of the model that an answer is from which the run's end cuts off."""

    def holding(self, run: Run) -> AbstractAsyncContextManager[object]:
        """What the run has in this worker from its claim until its end is stored. Nothing, by itself."""
        return nullcontext()

    async def loaded(self, handle: RunHandle) -> "Body":
        """The body for this one run, with what it needs to begin. Few runs of a worker load at a time.

        Raises `NotFound` and `UnreadableSecret` for a run that cannot start: it fails before it has shown anything.
        """
        return self

    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        """Does the run's work, from where its last checkpoint left it.

        Raises `ModelError`, `BudgetExceeded` and `UnreadableSecret`, with which the run fails or waits, and lets pass
        what interrupts a run. Any other exception is a defect, and fails the run.
        """
        raise NotImplementedError

    async def before_cut_off(self, handle: RunHandle) -> None:
        """The run has failed or was cancelled, and its end is stored next: counts what was asked of models and is not
        counted yet. Nothing, by itself."""


class Bodies:
    """The bodies of a worker, by the kind of run."""

    def __init__(self, bodies: Mapping[RunKind, Body]) -> None:
        self._bodies = bodies

    def of(self, run: Run) -> Body:
        """What this run does."""
        return self._bodies[run.kind]
