"""W3C's trace context, as a request may bring it, and a process that traces nothing."""

import subprocess
import sys

import pytest

from shared.telemetry.tracer import NoTracer, trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GIVEN = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_the_id_is_found_in_a_trace_context() -> None:
    assert trace_id_of(GIVEN) == TRACE
    assert trace_id_of(GIVEN.replace("00-", "cc-", 1)) == TRACE, "a later version has these parts, too"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        TRACE,
        GIVEN.upper(),
        GIVEN.replace("00-", "ff-", 1),
        GIVEN.replace(TRACE, "0" * 32),
        GIVEN.replace("00f067aa0ba902b7", "0" * 16),
        f"{GIVEN}\n",
        f"{GIVEN}-{'x' * 1000}",
    ],
)
def test_what_is_no_trace_context_has_no_id(text: str | None) -> None:
    assert trace_id_of(text) is None


def test_a_process_that_traces_nothing_passes_on_what_came() -> None:
    tracer = NoTracer()
    with tracer.begin("submit", parent=GIVEN) as span:
        assert span.traceparent == GIVEN
        span.set({"holdfast.run.id": "run-1"})
        span.fail("Busy")
        assert not span.takes_content
    assert tracer.begin("submit", parent=None).traceparent is None


def test_the_sdk_is_not_loaded_by_a_process_that_exports_nothing() -> None:
    """It is an extra, and takes a tenth of a second."""
    program = (
        "import sys, tests.kit.model_clients, api.main, worker.main\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
