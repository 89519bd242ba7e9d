"""The metrics of an API process and of the whole deployment."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.domain.lifecycle import ACTIVE, RunStatus
from shared.domain.operations import ServerMemory
from shared.telemetry.worker_metrics import bounded

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
    """Of the running runs; 0 if there is none."""
    redis_memory: Sequence[ServerMemory] = ()
    """For each Redis server, including those of the logs."""


class ApiMetrics:
    """The instruments of an API process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deployment = DeploymentState()
        """Its last known values. The handler of a scrape updates them."""
        self._requests = Counter(
            "holdfast_http_requests",
            "Requests, when their answer has begun.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._request_s = Histogram(
            "holdfast_http_request_seconds",
            "From a request to the beginning of its answer.",
            ["route"],
            buckets=REQUEST_S,
            registry=registry,
        )
        self._submitted = Counter(
            "holdfast_runs_submitted", "Runs that clients have submitted.", ["kind"], registry=registry
        )
        self._cancels = Counter(
            "holdfast_cancels",
            "Cancels that clients have asked for, by the run's status.",
            ["state"],
            registry=registry,
        )
        self._waiting = Gauge(
            "holdfast_submissions_waiting", "Submissions that wait for their turn in this process.", registry=registry
        )
        self._refused = Counter(
            "holdfast_submissions_refused",
            "Submissions that were answered 503, because too many waited or their turn came too late.",
            ["reason"],
            registry=registry,
        )
        for reason in REFUSALS:
            self._refused.labels(reason)
        self._readers = Gauge("holdfast_readers", "Streams that this process has open.", registry=registry)
        self.reader_gaps = Counter(
            "holdfast_reader_gaps",
            "Parts of logs that readers missed, because no store had them any more.",
            registry=registry,
        )
        self._callbacks = Counter(
            "holdfast_callbacks", "Attempts to deliver a callback.", ["outcome"], registry=registry
        )
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
            "What a Redis server uses.",
            {memory.server: memory.used for memory in state.redis_memory},
        )
        yield _by_server(
            "holdfast_redis_memory_limit_bytes",
            "What a Redis server may use.",
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
