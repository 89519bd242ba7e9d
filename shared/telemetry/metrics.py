"""What a process counts and measures, in a registry of its own, for Prometheus.

A label's values are a list that the code knows: never an id, a path, an address or a text of anybody. So the number of
series has a bound that no caller can move.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from shared.telemetry.api_metrics import ApiMetrics
from shared.telemetry.worker_metrics import WorkerMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds. A loop that serves tokens should be below 0.01; a lease is lost after some seconds."""


class Metrics:
    """The instruments of one process. Those of the API and those of a worker are there when they are first asked for,
    so that a process shows only what it does."""

    def __init__(self) -> None:
        # It would add a series with a date to every counter and histogram.
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.loop_lag = Histogram(
            "holdfast_event_loop_lag_seconds",
            "How late the event loop woke up a task that had slept.",
            buckets=LAG_BUCKETS,
            registry=self.registry,
        )
        self._connections = Gauge(
            "holdfast_database_connections",
            "Connections of this process's pool, by state: in_use, idle, or free to be opened.",
            ["state"],
            registry=self.registry,
        )
        self._build = Gauge(
            "holdfast_build_info",
            "Always 1: the release, and which parts of the product this process is.",
            ["version", "process"],
            registry=self.registry,
        )

    @cached_property
    def api(self) -> ApiMetrics:
        """What an API process counts."""
        return ApiMetrics(self.registry)

    @cached_property
    def worker(self) -> WorkerMetrics:
        """What a worker counts."""
        return WorkerMetrics(self.registry)

    def describe(self, *, version: str, process: str, connections: Callable[[], Mapping[str, int]]) -> None:
        """Says what this process is. `connections` gives the pool's figures by state, and is asked with each scrape.
        A process that is both API and worker says so twice."""
        self._build.labels(version, process).set(1)
        for state in connections():
            self._connections.labels(state).set_function(_one_of(connections, state))

    def exposition(self) -> bytes:
        """All of it, in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)


def _one_of(figures: Callable[[], Mapping[str, int]], name: str) -> Callable[[], float]:
    return lambda: figures()[name]
