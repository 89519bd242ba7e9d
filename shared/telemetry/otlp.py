"""Exports spans over OTLP with OpenTelemetry's SDK. Only processes that export traces import this module.

Each process has a provider of its own instead of OpenTelemetry's global one: a process may have several, and a library
that looks for the global one finds none and traces nothing. A thread of the SDK exports the spans, from a bounded
queue. A full queue drops spans, so that no run ever waits.
"""

import logging
import threading
from asyncio import to_thread
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from shared.domain.model_servers import origin_of
from shared.telemetry.tracer import Attributes, Span, SpanKind, trace_id_of

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_KINDS: dict[SpanKind, trace.SpanKind] = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
}
_NS = 1_000_000
"""Nanoseconds in a millisecond."""

_PATH = "/v1/traces"


@asynccontextmanager
async def exporting(
    endpoint: str, *, sample: float, shows_content: bool, resource: Mapping[str, str], flush_s: float
) -> AsyncGenerator["OtlpTracer"]:
    """Exports to the receiver at `endpoint` for as long as the block lasts, and then the remaining spans, for at most
    `flush_s`.

    `sample` is the share, from 0 to 1, of the traces that begin here; the flags of a trace from outside decide for it.
    `resource` describes this process, where `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` do not.
    """
    exporter = _LogOnce(
        OTLPSpanExporter(endpoint.rstrip("/").removesuffix(_PATH) + _PATH), endpoint=origin_of(endpoint)
    )
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample)),
        resource=Resource.create().merge(Resource(resource)).merge(OTELResourceDetector().detect()),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with exporter.speaking():
        try:
            yield OtlpTracer(provider.get_tracer("holdfast"), shows_content=shows_content)
        finally:
            # A daemon thread of our own, which does not delay the process: the SDK's own deadline is half a minute.
            flush = threading.Thread(target=provider.shutdown, name="flush traces", daemon=True)
            flush.start()
            await to_thread(flush.join, flush_s)
            if flush.is_alive():
                exporter.shutdown()


class OtlpTracer:
    """Creates spans that are exported if their trace is sampled."""

    def __init__(self, tracer: trace.Tracer, *, shows_content: bool) -> None:
        self._tracer = tracer
        self._shows_content = shows_content

    def begin(
        self,
        name: str,
        *,
        parent: str | None,
        kind: SpanKind = "internal",
        attributes: Attributes | None = None,
        links: Sequence[str] = (),
        at_ms: float | None = None,
    ) -> Span:
        """See `Tracer`."""
        linked = [trace.Link(context) for context in map(_context_of, links) if context is not None]
        context = None if parent is None else _context_of(parent)
        # An empty context if there is no parent: the context of the current task must not become the parent.
        begun_in = trace.set_span_in_context(trace.NonRecordingSpan(context or trace.INVALID_SPAN_CONTEXT), Context())
        return _OtlpSpan(
            self._tracer.start_span(
                name,
                begun_in,
                _KINDS[kind],
                {name: value for name, value in (attributes or {}).items() if value is not None},
                linked,
                start_time=_ns(at_ms),
            ),
            shows_content=self._shows_content,
        )


class _OtlpSpan:
    def __init__(self, span: trace.Span, *, shows_content: bool) -> None:
        self._span = span
        self.takes_content = shows_content and span.is_recording()

    @property
    def traceparent(self) -> str | None:
        context = self._span.get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes, *, name: str | None = None) -> None:
        """See `Span`."""
        if name is not None:
            self._span.update_name(name)
        for attribute, value in attributes.items():
            if value is not None:
                self._span.set_attribute(attribute, value)

    def fail(self, error_type: str) -> None:
        """See `Span`."""
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self, at_ms: float | None = None) -> None:
        """See `Span`."""
        self._span.end(_ns(at_ms))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the span."""
        if kind is not None:
            self.fail(kind.__name__)
        self.end()


class _LogOnce(SpanExporter):
    """Logs once that spans cannot be exported, and once that they can again. The SDK would log every batch."""

    def __init__(self, exporter: SpanExporter, *, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports a batch, in the SDK's thread."""
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            log.warning("traces_not_exported", endpoint=self._endpoint, spans=len(spans))
        elif self._fails and not fails:
            log.info("traces_exported_again", endpoint=self._endpoint)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        """Stops retries."""
        self._exporter.shutdown()

    @contextmanager
    def speaking(self) -> Generator[None]:
        """Logs in place of the SDK during the block: the SDK would log every batch, and every span that a full queue
        drops meanwhile. The SDK still logs that a reachable receiver is too slow."""
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        queue = logging.getLogger("opentelemetry.sdk._shared_internal")
        queue.addFilter(self._is_news)
        try:
            yield
        finally:
            queue.removeFilter(self._is_news)

    def _is_news(self, _record: logging.LogRecord) -> bool:
        return not self._fails


def _context_of(traceparent: str) -> trace.SpanContext | None:
    """None: the text is no trace context."""
    if trace_id_of(traceparent) is None:
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))


def _ns(at_ms: float | None) -> int | None:
    return None if at_ms is None else int(at_ms * _NS)
