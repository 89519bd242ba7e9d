"""A process's metrics for Prometheus, in a registry of their own.

The code lists the values of each label. A label never contains an id, a path, an address or a user's text. So the
number of series has a limit that no caller can change.
"""

from collections.abc import Callable, Mapping
from functools import cached_property

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from shared.telemetry.api_metrics import ApiMetrics
from shared.telemetry.worker_metrics import WorkerMetrics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds. A loop that sends tokens should stay below 0.01; after some seconds a lease is lost."""


class Metrics:
    """The instruments of one process. Those of the API and of a worker are created at their first use, so that a
    process exports only its own."""

    def __init__(self) -> None:
        # It would add a series with a timestamp to every counter and histogram.
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
