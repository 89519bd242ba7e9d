"""Spans: the parts of a run or a request and their durations. Together they form one trace across processes.

A span refers to its parent by a W3C trace context, a text that a header carries and that is stored with a run. So the
parent need not be alive, nor in the same process. This module exports nothing. A process without export uses
`NoTracer`; `otlp` has the other tracer.
"""

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from shared.domain.runs import Run

AttributeValue = str | bool | int | float | Sequence[str]

Attributes = Mapping[str, AttributeValue | None]
"""By name. None values are left out."""

SpanKind = Literal["internal", "server", "client"]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """An operation with a duration. As a context manager it ends with its block. An error that leaves the block marks
    the span as failed, without the error's text."""

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context for its children. None: there is no trace."""
        ...

    @property
    def takes_content(self) -> bool:
        """Whether the operator wants the texts of users, models and tools in spans."""
        ...

    def set(self, attributes: Attributes, *, name: str | None = None) -> None:
        """Adds attributes; `name` replaces the span's first name."""
        ...

    def fail(self, error_type: str) -> None:
        """Marks the span as failed with this kind of error: a short word from a small set, no text."""
        ...

    def end(self, at_ms: float | None = None) -> None:
        """Ends the span: now, or at that Unix time in milliseconds."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Tracer(Protocol):
    """Creates spans."""

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
        """A span that begins now, or began at that Unix time in milliseconds. Without a parent it begins a trace.
        `links` are contexts of other, related traces."""
        ...


class NoTracer:
    """Creates spans that are not exported. It passes on trace contexts from outside: callers and called servers may
    take part in a trace although this process does not."""

    def begin(self, name: str, *, parent: str | None, **_: object) -> Span:
        """A span that records nothing."""
        del name
        return _NoSpan(parent)


class _NoSpan:
    takes_content = False

    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent

    def set(self, attributes: Attributes, *, name: str | None = None) -> None:
        """Does nothing."""

    def fail(self, error_type: str) -> None:
        """Does nothing."""

    def end(self, at_ms: float | None = None) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing."""


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace's id, 32 hexadecimal digits, of a W3C trace context. None: the text is no trace context."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    return None if found is None else found[1]


def of_run(run: Run) -> Attributes:
    """The attributes by which operators find the spans of a run, an agent or a conversation."""
    return {
        "gen_ai.agent.id": run.agent_id,
        "gen_ai.conversation.id": run.thread_id,
        "holdfast.project": run.project_id,
        "holdfast.run.id": run.id,
        "holdfast.run.type": run.options.run_type,
        "holdfast.run.continues": run.continues,
    }
