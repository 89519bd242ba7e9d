"""Spans: what happened to a run or a request and how long it took, each a part of one trace across processes.

The parent of a span is named by its W3C trace context, a text that travels in a header and is stored with a run. So a
span never needs its parent to be alive, or to be in the same process. Nothing here exports anything: `NoTracer` is what
a process has that exports nothing, and `otlp` has the other one.
"""

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

from shared.domain.runs import Run

AttributeValue = str | bool | int | float | Sequence[str]

Attributes = Mapping[str, AttributeValue | None]
"""By their names; what is None is left out."""

SpanKind = Literal["internal", "server", "client"]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """Something that takes time. As a context manager it ends with its block, and an error that leaves the block is its
    error; the error's text stays out of it."""

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context in which its children are; None: there is no trace."""
        ...

    @property
    def takes_content(self) -> bool:
        """Whether the operator wants to have in it what users, models and tools said."""
        ...

    def set(self, attributes: Attributes, *, name: str | None = None) -> None:
        """Says more of it; `name` takes the place of the name that it began with."""
        ...

    def fail(self, error_type: str) -> None:
        """It ended in an error of this kind: a short word of a small set, no text."""
        ...

    def end(self, at_ms: float | None = None) -> None:
        """It is over: now, or at that Unix time in milliseconds."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Tracer(Protocol):
    """Makes spans."""

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
        `links` are trace contexts of other traces that have to do with it."""
        ...


class NoTracer:
    """Makes spans that nobody sees. A trace context that came from outside is passed on: those who asked and those who
    are called may be part of a trace although this process is not."""

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
        """A span that says nothing."""
        del name, kind, attributes, links, at_ms
        return _NoSpan(parent)


class _NoSpan:
    takes_content = False

    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent

    def set(self, attributes: Attributes, *, name: str | None = None) -> None:
        """Nobody hears of it."""

    def fail(self, error_type: str) -> None:
        """Nobody hears of it."""

    def end(self, at_ms: float | None = None) -> None:
        """Nobody hears of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nobody hears of it."""


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace's id, 32 hexadecimal digits, of a W3C trace context; None for a text that is none."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    return None if found is None else found[1]


def of_run(run: Run) -> Attributes:
    """By these the spans of a run, an agent or a conversation are found."""
    return {
        "gen_ai.agent.id": run.agent_id,
        "gen_ai.conversation.id": run.thread_id,
        "holdfast.project": run.project_id,
        "holdfast.run.id": run.id,
        "holdfast.run.type": run.options.run_type,
        "holdfast.run.continues": run.continues,
    }
