"""Runs without observers of their times."""

from shared.concurrency import SystemClock
from shared.domain.runs import Run
from worker.run.interruption import Interruption
from worker.run.observation import RunObservation


def unobserved(run: Run) -> RunObservation:
    """The observation that a publisher needs, without observers."""
    return RunObservation(run, worker="worker-1", clock=SystemClock(), interruption=Interruption())
