"""A receiver of traces: a local HTTP server that accepts OTLP and stores the spans.

async with TraceReceiver() as traces:
    …                                   # a product with `otlp_endpoint=traces.url`
    submit = traces.one("submit")
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.kit.model_server.http_exchange import HttpRequest, read_request, write_json
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span. Ids are in hexadecimal digits, times in nanoseconds."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    """The ids of the traces that it names."""
    began_at: int
    ended_at: int
    has_failed: bool
    said: str
    """The message of its status."""
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return self.resource["service.name"]


@dataclass
class TraceReceiver:
    """Receives while its `async with` block is open. Answers 200 unless a test sets another status; 0: never."""

    spans: list[ReceivedSpan] = field(default_factory=list[ReceivedSpan])
    requests: list[HttpRequest] = field(default_factory=list[HttpRequest])
    answer: int = 200
    _port: int = 0
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self._port = await self._stack.enter_async_context(stream_server(self._serve))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def named(self, name: str) -> list[ReceivedSpan]:
        """Returns the spans of this name, in the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_at)

    def one(self, name: str) -> ReceivedSpan:
        """Returns the only span of this name."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans are called {name!r}: {sorted(span.name for span in self.spans)}"
        return found[0]

    def children(self, parent: ReceivedSpan) -> list[str]:
        """Returns the names of the spans under this one, in the order in which they began."""
        return [
            span.name
            for span in sorted(self.spans, key=lambda span: (span.began_at, span.ended_at))
            if span.parent_id == parent.span_id
        ]

    async def came(self, name: str, times: int = 1) -> ReceivedSpan:
        """Waits until this many spans of this name have arrived. Returns the last of them."""
        await wait_until(lambda: len(self.named(name)) >= times, description=f"span {name!r} number {times}")
        return self.named(name)[times - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                if not self.answer:
                    await asyncio.Event().wait()
                if self.answer == 200:
                    self.spans += _spans_in(request.content)
                write_json(writer, self.answer, {}, {})
                await writer.drain()
        except ConnectionError:
            pass  # the sender has closed the connection
        finally:
            writer.close()


def _spans_in(content: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(content)
    return [
        _span(span, _values(of_resource.resource.attributes))
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _span(span: trace_pb2.Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        links=tuple(link.trace_id.hex() for link in span.links),
        began_at=span.start_time_unix_nano,
        ended_at=span.end_time_unix_nano,
        has_failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        said=span.status.message,
        attributes=_values(span.attributes),
        resource=resource,
    )


def _values(pairs: Any) -> dict[str, Any]:
    given: list[KeyValue] = list(pairs)
    return {pair.key: _value(pair.value) for pair in given}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
