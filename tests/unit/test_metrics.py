"""Every instrument counts, its labels take no value that the code does not know, and the documents name all of them."""

import re
from collections import defaultdict

import pytest

from shared.domain.events import StopReason
from shared.domain.lifecycle import RunStatus
from shared.domain.operations import ServerMemory
from shared.domain.runs import Usage
from shared.telemetry.metrics import DeploymentState, Metrics
from tests.kit.exposition import Figures
from tests.kit.project.source_tree import ROOT

TABLE = ROOT / "docs" / "operations" / "metrics.md"
ROW = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)

Described = dict[str, tuple[str, frozenset[str]]]
"""Type and labels, by name."""


@pytest.fixture
def metrics() -> Metrics:
    """Those of a process that has done one of each."""
    metrics = Metrics()
    metrics.describe(version="1.2.3", process="api", connections=lambda: {"in_use": 2, "idle": 1, "free": 17})
    api, worker = metrics.api, metrics.worker
    api.request_answered("GET", "/v1/runs/{run_id}", 200, 0.01)
    api.run_submitted("message")
    api.cancel_asked(RunStatus.RUNNING)
    api.callback_attempted("delivered")
    api.watch_readers(lambda: 3)
    api.deployment = DeploymentState(
        runs={"running": 4},
        callbacks_waiting=5,
        queue_waiting=6,
        oldest_wait_s=7.5,
        longest_silence_s=2.5,
        redis_memory=[
            ServerMemory(server="a:6379", used=8, limit=9),
            ServerMemory(server="b:6379", used=10),
            ServerMemory(server="c:6379"),
        ],
    )
    worker.run_ended("completed", "end_turn")
    worker.step_ended("success")
    worker.tool_called("success", 0.1)
    worker.model_call_begins("openai")
    worker.model_asked("openai", "success", 1.5, Usage(prompt_tokens=10, completion_tokens=20))
    worker.model_retried("openai")
    worker.run_cancelled("model", 0.2)
    return metrics


def documented() -> Described:
    rows = ROW.findall(TABLE.read_text(encoding="utf-8"))
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def built(metrics: Metrics) -> Described:
    found: Described = {}
    for family in metrics.registry.collect():
        if family.name.startswith("holdfast_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = (family.type, frozenset(labels))
    return found


def test_the_table_of_metrics_is_that_of_the_code(metrics: Metrics) -> None:
    assert documented() == built(metrics)


def test_what_was_done_is_shown(metrics: Metrics) -> None:
    figures = Figures(metrics.exposition().decode())

    assert figures.of("build_info", version="1.2.3", process="api") == 1
    assert figures.of("database_connections", state="free") == 17
    assert figures.of("readers") == 3
    assert (figures.of("runs", status="running"), figures.of("runs", status="created")) == (4, 0)
    assert (figures.of("queue_waiting"), figures.of("queue_oldest_wait_seconds")) == (6, 7.5)
    assert figures.of("callbacks_waiting") == 5
    assert figures.of("redis_memory_used_bytes", server="b:6379") == 10
    assert figures.labels("redis_memory_used_bytes") == {"a:6379", "b:6379"}, "what is away would look empty"
    assert figures.labels("redis_memory_limit_bytes") == {"a:6379"}, "no limit would look full"
    assert figures.of("model_tokens_total", provider="openai", direction="out") == 20
    assert figures.of("tool_call_seconds_sum", outcome="success") == pytest.approx(0.1)


@pytest.mark.parametrize("stop_reason", StopReason)
def test_a_run_that_a_tool_rule_ended_was_counted_under_another_reason(metrics: Metrics, stop_reason: str) -> None:
    """Its reason was missing from a list of metrics' own."""
    metrics.worker.run_ended("cancelled", stop_reason)

    figures = Figures(metrics.exposition().decode())
    assert figures.of("runs_ended_total", status="cancelled", stop_reason=stop_reason) == 1


def test_what_nobody_knows_is_left_out(metrics: Metrics) -> None:
    """A gauge at 0 would say that the queue is empty while Redis is away."""
    metrics.api.deployment = DeploymentState(runs={})
    figures = Figures(metrics.exposition().decode())

    assert figures.has("runs")
    assert not any(map(figures.has, ("queue_waiting", "queue_oldest_wait_seconds", "callbacks_waiting")))


def test_foreign_words_become_no_series(metrics: Metrics) -> None:
    """Names that come from requests, models and later releases would fill Prometheus' memory."""
    api, worker = metrics.api, metrics.worker
    worker.model_call_begins("provider")  # `other`, as every provider, has its outcomes from its first call on
    before = _series(metrics)
    for number in range(100):
        api.request_answered(f"VERB{number}", "/v1/runs/{run_id}", 200, 0.01)
        api.run_submitted(f"kind {number}")
        api.callback_attempted(f"outcome {number}")
        worker.run_ended(f"status {number}", f"reason {number}")
        worker.step_ended(f"status {number}")
        worker.tool_called(f"outcome {number}", 0.1)
        worker.model_asked(f"provider-{number}", f"outcome {number}", 0.1, None)
        worker.model_retried(f"provider-{number}")
        worker.run_cancelled(f"state {number}", 0.1)
        worker.model_call_begins(f"provider-{number}")
        worker.runs_found(f"reason {number}", 1)

    after = _series(metrics)

    assert all(after[name] <= before[name] + 1 for name in after), after
    assert Figures(metrics.exposition().decode()).of("steps_total", status="failed") == 100


def _series(metrics: Metrics) -> dict[str, int]:
    counted = defaultdict[str, int](int)
    for family in metrics.registry.collect():
        names = {tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le")) for sample in family.samples}
        counted[family.name] = len(names)
    return counted


def test_a_process_shows_only_what_it_does() -> None:
    """A worker without requests must not look like an API that nobody asks."""
    metrics = Metrics()
    assert metrics.worker is metrics.worker

    names = set(built(metrics))

    assert "holdfast_runs_in_hand" in names
    assert "holdfast_http_requests_total" not in names
