"""The order of a thread's runs: turns, and the legs of a turn. And runs at a glance.

A turn begins with the run that answers its messages. If that run waits for a decision, the run that continues it is the
turn's next leg, and so on. No run ever changes its place.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.domain.ids import AgentId, ConversationId, ProjectId, RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run


class Leg(NamedTuple):
    """A run of a thread, with its place in the order of the thread's runs."""

    turn: int
    number: int
    """0 for the run that begins the turn, and one more for each continuation."""
    run: Run


def legs_of(found: Sequence[Run]) -> Iterator[Leg]:
    """The legs of one turn, of its runs in the order of their submission.

    A run knows its own number, so that it keeps it when an earlier leg is deleted. Runs of older releases do not.
    """
    last = -1
    for run in found:
        last = max(run.options.leg, last + 1)
        yield Leg(run.turn or 0, last, run)


def has_begun(run: Run) -> bool:
    """Whether the run has a log to show. A continuation has its turn before a worker claims it."""
    return run.started_at is not None or run.status is not RunStatus.CREATED


# What dashboards see: many runs, and of each no more than what it does.


class RunScope(NamedTuple):
    """All runs of a project, or of one of its agents."""

    project_id: ProjectId
    agent_id: AgentId | None = None


class RunGlance(NamedTuple):
    """A run as a dashboard sees it."""

    id: RunId
    number: int
    agent_id: AgentId
    conversation_id: ConversationId | None
    status: RunStatus
    stop_reason: str | None
    waiting: int = 0
    """Its calls that wait for a decision or a result."""
