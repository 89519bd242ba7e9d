"""The first span of a run's trace: its submission, whose trace context is stored with the run.

Every process that has to do with the run continues from what is stored, so that one trace shows the run from its
submission to its callback, over all the workers that have it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from api.incoming_traces import bind_trace, incoming_trace
from shared.concurrency import Clock, unix_ms
from shared.domain.runs import Run
from shared.telemetry.run_attributes import of_run
from shared.telemetry.tracer import Span, Tracer


@dataclass(frozen=True, kw_only=True)
class SubmissionTraces:
    """Begins the traces of runs."""

    tracer: Tracer
    clock: Clock

    @contextmanager
    def submitting(self, run: Run) -> Generator[tuple[Run, Span]]:
        """Around what stores the run: the run as it is to be stored, and its span. The trace is the one that the
        request came with, or a new one."""
        incoming = incoming_trace()
        with self.tracer.begin("submit", parent=incoming, kind="server", attributes=of_run(run)) as span:
            bind_trace(span.traceparent)
            yield replace(run, options=replace(run.options, traceparent=span.traceparent)), span

    def decided(self, continuation: Run, began_at: datetime) -> None:
        """A decision has started this run. Its trace is that of the run that asked, which is known once it is stored;
        the trace that the request came with is linked."""
        incoming = incoming_trace()
        traceparent = continuation.options.traceparent
        bind_trace(traceparent)
        self.tracer.begin(
            "decide",
            parent=traceparent,
            kind="server",
            attributes=of_run(continuation),
            links=[] if incoming is None else [incoming],
            at_ms=unix_ms(began_at),
        ).end()
