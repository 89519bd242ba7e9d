"""Counts what happens to runs, for Prometheus."""

from shared.telemetry.worker_metrics import WorkerMetrics
from worker.models.provider import AttemptFailed
from worker.run.observed import (
    Observed,
    ObservedModelCall,
    ObservedRun,
    ObservedStep,
    ObservedToolCall,
    ObservedWrite,
    RunObserver,
)


class RunMetrics(RunObserver):
    """An observer of all runs of a worker."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def began(self, what: Observed) -> None:
        if isinstance(what, ObservedRun):
            self._metrics.runs_in_hand.inc()
            if what.queue_wait_s is not None:
                self._metrics.queue_wait.observe(what.queue_wait_s)
        elif isinstance(what, ObservedModelCall):
            self._metrics.model_call_begins(what.provider)

    def ended(self, what: Observed) -> None:
        metrics = self._metrics
        match what:
            case ObservedRun():
                self._run_ended(what)
            case ObservedStep():
                metrics.step_ended(what.outcome)
            case ObservedToolCall():
                metrics.tool_called(what.outcome, what.seconds)
            case ObservedModelCall():
                metrics.model_asked(what.provider, what.outcome, what.seconds, what.usage)
            case ObservedWrite(kind="checkpoint"):
                metrics.checkpoint.observe(what.seconds)
            case ObservedWrite(kind="park" | "settle"):
                metrics.settle.observe(what.seconds)
            case _:
                pass

    def first_piece(self, call: ObservedModelCall) -> None:
        if call.is_first:
            self._metrics.first_token.observe(call.claimed_s + call.first_piece_s)

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        self._metrics.model_retried(call.provider)

    def shown(self, size: int, delay_s: float | None) -> None:
        self._metrics.log_bytes.inc(size)
        if delay_s is not None:
            self._metrics.token_delay.observe(delay_s)

    def restarted(self) -> None:
        self._metrics.step_restarts.inc()

    def log_lost(self) -> None:
        self._metrics.log_gaps.inc()

    def _run_ended(self, run: ObservedRun) -> None:
        metrics = self._metrics
        metrics.runs_in_hand.dec()
        if run.settled is not None:
            metrics.run_ended(run.settled.status, run.settled.stop_reason or "")
        elif run.outcome == "parked":
            metrics.run_ended("awaiting_approval", "requires_approval")
        if run.cancelled_after_s is not None:
            metrics.run_cancelled(run.interrupted_in, run.cancelled_after_s)
        if run.outcome in ("lost", "refused"):
            metrics.leases_lost.inc()
