"""A worker's metrics. All methods are called on the event loop. `docs/operations/metrics.md` explains each
instrument."""

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.domain.events import StopReason
from shared.domain.lifecycle import RunStatus
from shared.domain.models import PROVIDERS
from shared.domain.runs import Usage

OTHER = "other"
"""Replaces label values that are not in the label's list."""

STOP_REASONS = tuple(StopReason)

INTERRUPTS = ("cancelled", "timed_out", "budget", "handed_over", "lost", "put_off", "interrupted")
"""Outcomes of interrupted operations: see `worker.run.observation.Observed`."""

STEP_OUTCOMES = ("success", "parked", "failed", *INTERRUPTS)
TOOL_OUTCOMES = ("success", "error", *INTERRUPTS)
MODEL_OUTCOMES = (
    "success", "error", "llm_rate_limit", "llm_authentication", "llm_timeout", "llm_bad_request",
    "context_window_exceeded", "context_window_overflow_in_system_prompt", "llm_error", *INTERRUPTS,
)  # fmt: skip

CUT_OFF = ("model", "tool", "between")
"""The operation that a cancel interrupts."""

FOUND_BECAUSE = ("worker_lost", "not_dispatched", "waited")
"""Why the sweeper dispatched a run again: see `worker.sweeper.Reason`."""

_TOKEN_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""A token reaches Redis within a millisecond. Seconds mean that Redis or SQL was away."""

_WRITE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_ANSWER_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Models begin to answer after a fraction of a second, reasoning models after many seconds."""

_WORK_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""Calls of tools and models, from a process that starts in milliseconds to half an hour."""

_QUEUE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_CANCEL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60)


def bounded(value: str, known: Collection[str]) -> str:
    """The value of a label if the code knows it, else `OTHER`."""
    return value if value in known else OTHER


class WorkerMetrics:
    """The instruments of a worker.

    Prometheus sees no increase in a series that begins at 1. So the series that alerts watch begin at 0: at the start
    of the process, and for a provider at its first call, because few workers use more than two providers.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._known_providers = set[str]()
        self._runs_ended = self._counter(
            "runs_ended", "Runs that this worker brought to an end.", "status", "stop_reason"
        )
        self.runs_in_hand = self._gauge("runs_in_hand", "Runs that this worker executes now.")
        self._body_silence = self._gauge(
            "body_silent_seconds", "The longest time for which the process of an agent of own code has said nothing."
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "From the submission of a run to its first claim.", _QUEUE_S
        )
        self.first_token = self._histogram(
            "claim_to_first_token_seconds", "From a claim of a run to the first piece of its model's answer.", _ANSWER_S
        )
        self.token_delay = self._histogram(
            "token_delay_seconds",
            "From an event, mostly a token, to its being shown; the oldest of each batch.",
            _TOKEN_S,
        )
        self._steps = self._counter("steps", "Steps that this worker made or went on with.", "status")
        self._tool_calls = self._counter("tool_calls", "Calls of tools.", "outcome")
        self._tool_call_s = self._histogram("tool_call_seconds", "How long calls of tools took.", _WORK_S, "outcome")
        self._model_calls = self._counter(
            "model_calls", "Calls of models, without their retries.", "provider", "outcome"
        )
        self._model_call_s = self._histogram(
            "model_call_seconds", "How long calls of models took, with their retries.", _WORK_S, "provider"
        )
        self._model_retries = self._counter("model_retries", "Calls of models that were tried again.", "provider")
        self._model_tokens = self._counter("model_tokens", "Tokens, as providers report them.", "provider", "direction")
        self._cancel_latency = self._histogram(
            "cancel_latency_seconds", "From a client's wish to cancel to the end of the run.", _CANCEL_S, "state"
        )
        self.leases_lost = self._counter("leases_lost", "Runs that another worker has, or may have soon.")
        self.step_restarts = self._counter("step_restarts", "Steps of which readers had seen what then was void.")
        self.log_gaps = self._counter("log_gaps", "Logs of which Redis had lost a part, and was sent it again.")
        self._sweeper_found = self._counter(
            "sweeper_found", "Runs that no worker had, and that were dispatched again.", "reason"
        )
        self.log_bytes = self._counter("log_bytes", "Bytes of events that were shown.")
        self.checkpoint = self._histogram("checkpoint_seconds", "How long storing a checkpoint took.", _WRITE_S)
        self.settle = self._histogram("settle_seconds", "How long storing the end of a run took.", _WRITE_S)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        for reason in STOP_REASONS:
            self._runs_ended.labels(RunStatus.FAILED, reason)
        for outcome in TOOL_OUTCOMES:
            self._tool_calls.labels(outcome)
        for state in CUT_OFF:
            self._cancel_latency.labels(state)
        for reason in FOUND_BECAUSE:
            self._sweeper_found.labels(reason)

    def watch_bodies(self, silence: Callable[[], float]) -> None:
        """`silence` returns seconds. Each scrape calls it."""
        self._body_silence.set_function(silence)

    def run_ended(self, status: str, stop_reason: str) -> None:
        self._runs_ended.labels(bounded(status, tuple(RunStatus)), bounded(stop_reason, STOP_REASONS)).inc()

    def step_ended(self, status: str) -> None:
        """A step with a failed model call has the error's type as its outcome, and the label `failed`."""
        self._steps.labels(status if status in STEP_OUTCOMES else "failed").inc()

    def tool_called(self, outcome: str, seconds: float) -> None:
        outcome = bounded(outcome, TOOL_OUTCOMES)
        self._tool_calls.labels(outcome).inc()
        self._tool_call_s.labels(outcome).observe(seconds)

    def model_call_begins(self, provider: str) -> None:
        """Called before the first answer or failure is counted."""
        provider = bounded(provider, PROVIDERS)
        if provider not in self._known_providers:
            self._known_providers.add(provider)
            self._model_retries.labels(provider)
            for outcome in MODEL_OUTCOMES:
                self._model_calls.labels(provider, outcome)

    def model_asked(self, provider: str, outcome: str, seconds: float, usage: Usage | None) -> None:
        """`usage` is None for a call that did not end."""
        provider = bounded(provider, PROVIDERS)
        self._model_calls.labels(provider, bounded(outcome, MODEL_OUTCOMES)).inc()
        self._model_call_s.labels(provider).observe(seconds)
        if usage is not None:
            self._model_tokens.labels(provider, "in").inc(usage.prompt_tokens)
            self._model_tokens.labels(provider, "out").inc(usage.completion_tokens)

    def model_retried(self, provider: str) -> None:
        self._model_retries.labels(bounded(provider, PROVIDERS)).inc()

    def run_cancelled(self, state: str, seconds: float) -> None:
        """`state`: the operation that the cancel interrupted."""
        self._cancel_latency.labels(bounded(state, CUT_OFF)).observe(seconds)

    def runs_found(self, reason: str, count: int) -> None:
        """The number of runs that the sweeper has dispatched again."""
        self._sweeper_found.labels(bounded(reason, FOUND_BECAUSE)).inc(count)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"holdfast_{name}", meaning, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"holdfast_{name}", meaning, labels, buckets=buckets, registry=self._registry)
