"""The interface of a body, which does a run's work between its claim and its end, and the table of bodies by run kind.

The executor claims a run, adopts its log, watches for cancels, and stores its end. That is the same for an agent's
loop, a compaction, and an agent of another framework; the body does the rest.
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
    """How a body ended its run, with what is not stored yet."""

    end: RunEnd
    messages: list[NewMessage] = []
    """The final answer."""
    mode: CancelMode | None = None
    compaction: Compaction | None = None
    """The change of the thread, if the run compacts it."""
    is_answer: bool = False
    """Whether the run has answered all its messages. A message that arrives before the end requires one more step."""


class Body:
    """Does the work of one kind of run. A subclass overrides `execute`, and the other methods if it needs them."""

    continues_answers = False
    """Whether the body can continue an answer that another worker has begun to show. If not, it becomes void."""
    model = ""
    """Handle of the model whose answer the run's end cuts off."""

    def holding(self, run: Run) -> AbstractAsyncContextManager[object]:
        """What the run occupies in this worker from its claim until its end is stored. The default is nothing."""
        return nullcontext()

    async def loaded(self, handle: RunHandle) -> "Body":
        """Returns the body for this run, with what it needs to begin. A worker loads few runs at a time.

        Raises `NotFound` or `UnreadableSecret` if the run cannot start: it then fails before it shows anything.
        """
        return self

    async def execute(self, handle: RunHandle) -> Outcome | Parked:
        """Does the run's work, from its last checkpoint on.

        Raises `ModelError`, `BudgetExceeded` or `UnreadableSecret`, after which the run fails or waits. A body does not
        catch a `RunInterrupted`. Any other exception is a defect, and fails the run.
        """
        raise NotImplementedError

    async def before_cut_off(self, handle: RunHandle) -> None:
        """Counts the model calls that are not counted yet, before the end of a failed or cancelled run is stored. The
        default does nothing."""


class Bodies:
    """The bodies of a worker, by run kind."""

    def __init__(self, bodies: Mapping[RunKind, Body]) -> None:
        self._bodies = bodies

    def of(self, run: Run) -> Body:
        """Returns the body of this run."""
        return self._bodies[run.kind]
