"""A process's metrics for Prometheus, in a registry of their own.

The code lists the values of each label. A label never contains an id, a path, an address or a user's text. So the
number of series has a limit that no caller can change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.domain.events import StopReason
from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.models import PROVIDERS
from shared.domain.operations import ServerMemory
from shared.domain.runs import Usage

# The metrics of an API process and of the whole deployment.


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
KINDS = ("message", "decision", "compaction", "tool", "generation")
REFUSALS = ("full", "late")
CALLBACK_OUTCOMES = ("delivered", "failed", "given_up")

REQUEST_S = (0.005, 0.025, 0.1, 0.25, 1, 2.5, 10, 60, 300)
"""Reads take milliseconds; an answer that is not streamed begins when its run has ended. Few buckets, since every route
has all of them."""


@dataclass(frozen=True)
class DeploymentState:
    """The deployment's state in SQL and Redis. None: the service that has the value does not answer."""

    runs: dict[str, int] | None = None
    """Active runs by status."""
    callbacks_waiting: int | None = None
    queue_waiting: int | None = None
    oldest_wait_s: float | None = None
    """0 if no run waits."""
    longest_silence_s: float | None = None
    """The longest silence of a running run; 0 without running runs."""
    redis_memory: Sequence[ServerMemory] = ()
    """For each Redis server, including those of the logs."""


class _Instruments:
    """Makes instruments in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"holdfast_{name}", meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"holdfast_{name}", meaning, labels, registry=self._registry)

    def histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"holdfast_{name}", meaning, labels, buckets=buckets, registry=self._registry)


class ApiMetrics:
    """The instruments of an API process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deployment = DeploymentState()
        """Its last known values. The handler of a scrape updates them."""
        make = _Instruments(registry)
        self._requests = make.counter(
            "http_requests", "Requests, when their answer has begun.", "method", "route", "status"
        )
        self._request_s = make.histogram(
            "http_request_seconds", "From a request to the beginning of its answer.", REQUEST_S, "route"
        )
        self._submitted = make.counter("runs_submitted", "Runs that clients have submitted.", "kind")
        self._cancels = make.counter("cancels", "Cancels that clients have asked for, by the run's status.", "state")
        self._waiting = make.gauge("submissions_waiting", "Submissions that wait for their turn in this process.")
        self._refused = make.counter(
            "submissions_refused",
            "Submissions that were answered 503, because too many waited or their turn came too late.",
            "reason",
        )
        for reason in REFUSALS:
            self._refused.labels(reason)
        self._readers = make.gauge("readers", "Streams that this process has open.")
        self.reader_gaps = make.counter(
            "reader_gaps", "Parts of logs that readers missed, because no store had them any more."
        )
        self._callbacks = make.counter("callbacks", "Attempts to deliver a callback.", "outcome")
        for outcome in CALLBACK_OUTCOMES:
            # Prometheus sees no increase in a series that begins at 1, so an alert would miss the first event.
            self._callbacks.labels(outcome)
        registry.register(_DeploymentGauges(self))

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is a path's template, never the path."""
        self._requests.labels(bounded(method, METHODS), route, str(status)).inc()
        self._request_s.labels(route).observe(seconds)

    def run_submitted(self, kind: str) -> None:
        self._submitted.labels(bounded(kind, KINDS)).inc()

    def cancel_asked(self, state: RunStatus) -> None:
        self._cancels.labels(state.value).inc()

    def callback_attempted(self, outcome: str) -> None:
        self._callbacks.labels(bounded(outcome, CALLBACK_OUTCOMES)).inc()

    def submission_refused(self, reason: str) -> None:
        self._refused.labels(bounded(reason, REFUSALS)).inc()

    def watch_submissions(self, count: Callable[[], int]) -> None:
        """`count` returns the number of waiting submissions. Each scrape calls it."""
        self._waiting.set_function(count)

    def watch_readers(self, count: Callable[[], int]) -> None:
        """`count` returns the number of open streams. Each scrape calls it."""
        self._readers.set_function(count)


class _DeploymentGauges(Collector):
    """The deployment's values. Unknown ones are left out, so that they never look like 0."""

    def __init__(self, metrics: ApiMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        state = self._metrics.deployment
        runs = GaugeMetricFamily("holdfast_runs", "Runs that have not ended, of the deployment.", labels=["status"])
        for status in sorted(ACTIVE) if state.runs is not None else ():
            runs.add_metric([status], (state.runs or {}).get(status, 0))
        yield runs
        yield _gauge("holdfast_queue_waiting", "Runs that wait for a worker.", state.queue_waiting)
        yield _gauge(
            "holdfast_queue_oldest_wait_seconds", "How long the oldest of them has waited.", state.oldest_wait_s
        )
        yield _gauge(
            "holdfast_running_silence_seconds",
            "How long the most silent of the running runs has shown no event.",
            state.longest_silence_s,
        )
        yield _gauge("holdfast_callbacks_waiting", "Callbacks to be delivered.", state.callbacks_waiting)
        yield _by_server(
            "holdfast_redis_memory_used_bytes",
            "The memory that a Redis server uses.",
            {memory.server: memory.used for memory in state.redis_memory},
        )
        yield _by_server(
            "holdfast_redis_memory_limit_bytes",
            "The memory that a Redis server may use.",
            {memory.server: memory.limit for memory in state.redis_memory},
        )


def _by_server(name: str, meaning: str, values: Mapping[str, int | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=["server"])
    for server, value in values.items():
        if value is not None:
            family.add_metric([server], value)
    return family


def _gauge(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning)
    if value is not None:
        family.add_metric([], value)
    return family


# A worker's metrics. All methods are called on the event loop. `docs/operations/metrics.md` explains each instrument.


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
"""Why the sweeper dispatched a run again: see `worker.maintenance.Reason`."""

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
        make = _Instruments(registry)
        self._known_providers = set[str]()
        self._runs_ended = make.counter(
            "runs_ended", "Runs that this worker brought to an end.", "status", "stop_reason"
        )
        self.runs_in_hand = make.gauge("runs_in_hand", "Runs that this worker executes now.")
        self._body_silence = make.gauge(
            "body_silent_seconds", "The longest time for which the process of an agent of own code has said nothing."
        )
        self.queue_wait = make.histogram(
            "queue_wait_seconds", "From the submission of a run to its first claim.", _QUEUE_S
        )
        self.first_token = make.histogram(
            "claim_to_first_token_seconds", "From a claim of a run to the first piece of its model's answer.", _ANSWER_S
        )
        self.token_delay = make.histogram(
            "token_delay_seconds",
            "From an event, mostly a token, to its being shown; the oldest of each batch.",
            _TOKEN_S,
        )
        self._steps = make.counter("steps", "Steps that this worker made or went on with.", "status")
        self._tool_calls = make.counter("tool_calls", "Calls of tools.", "outcome")
        self._tool_call_s = make.histogram("tool_call_seconds", "How long calls of tools took.", _WORK_S, "outcome")
        self._model_calls = make.counter(
            "model_calls", "Calls of models, without their retries.", "provider", "outcome"
        )
        self._model_call_s = make.histogram(
            "model_call_seconds", "How long calls of models took, with their retries.", _WORK_S, "provider"
        )
        self._model_retries = make.counter("model_retries", "Calls of models that were tried again.", "provider")
        self._model_tokens = make.counter("model_tokens", "Tokens, as providers report them.", "provider", "direction")
        self._cancel_latency = make.histogram(
            "cancel_latency_seconds", "From a client's request to cancel to the end of the run.", _CANCEL_S, "state"
        )
        self.leases_lost = make.counter("leases_lost", "Runs that another worker has, or may have soon.")
        self.step_restarts = make.counter("step_restarts", "Steps whose restart voided events that readers had seen.")
        self.log_gaps = make.counter("log_gaps", "Logs of which Redis had lost a part, which a worker sent again.")
        self._sweeper_found = make.counter(
            "sweeper_found", "Runs that no worker had, and that were dispatched again.", "reason"
        )
        self.log_bytes = make.counter("log_bytes", "Bytes of events that were shown.")
        self.checkpoint = make.histogram("checkpoint_seconds", "How long storing a checkpoint took.", _WRITE_S)
        self.settle = make.histogram("settle_seconds", "How long storing the end of a run took.", _WRITE_S)
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


# The metrics of one process: of its part of the API or of a worker, and those that every process has.


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds. A loop that sends tokens should stay below 0.01; after some seconds a lease is lost."""


class Metrics:
    """The instruments of one process. Those of the API and of a worker are created at their first use, so that a
    process exports only its own."""

    def __init__(self) -> None:
        # Otherwise every counter and histogram would have another series with a timestamp.
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        make = _Instruments(self.registry)
        self.loop_lag = make.histogram(
            "event_loop_lag_seconds", "How late the event loop woke up a task that had slept.", LAG_BUCKETS
        )
        self._connections = make.gauge(
            "database_connections",
            "Connections of this process's pool, by state: in_use, idle, or free to be opened.",
            "state",
        )
        self._build = make.gauge(
            "build_info", "Always 1: the release, and which parts of the product this process is.", "version", "process"
        )

    @cached_property
    def api(self) -> ApiMetrics:
        """The API's instruments."""
        return ApiMetrics(self.registry)

    @cached_property
    def worker(self) -> WorkerMetrics:
        """The worker's instruments."""
        return WorkerMetrics(self.registry)

    def describe(self, *, version: str, process: str, connections: Callable[[], Mapping[str, int]]) -> None:
        """Describes this process. `connections` returns the pool's figures by state; each scrape calls it. A process
        that is both API and worker calls this twice."""
        self._build.labels(version, process).set(1)
        for state in connections():
            self._connections.labels(state).set_function(_one_of(connections, state))

    def exposition(self) -> bytes:
        """All metrics, in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)


def _one_of(figures: Callable[[], Mapping[str, int]], name: str) -> Callable[[], float]:
    return lambda: figures()[name]
