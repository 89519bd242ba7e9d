"""A run as spans, in the shape in which Letta's wire has them: rows of OpenTelemetry's table of traces.

They are made from what is stored of the run and its steps, whether or not anything traces. The same run has the same
ids each time. No span has a text of a user, a model or a tool.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any

from api.letta.run_metrics import NS_PER_MS, model_ms, ns_between, step_ms
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import Run, Step, ToolTiming

SERVICE = "holdfast"


@dataclass(frozen=True, kw_only=True)
class _Span:
    """One span; `parent` None: the root."""

    name: str
    of: str
    """What makes its id another one than those of the run's other spans."""
    parent: str | None
    begin: datetime
    duration_ns: int | None
    """None: it has not ended."""
    is_error: bool = False
    message: str = ""
    attributes: dict[str, str]


def wire_trace(run: Run, steps: Sequence[Step], limit: int) -> list[dict[str, Any]]:
    """The first spans of a run: the run itself, `time_to_first_token`, each `agent_step`, its model call and its tool
    calls, by the time at which they began."""
    trace_id = run.trace_id or run.id.removeprefix("run-").replace("-", "")
    spans = [_root(run), *_first_token(run)]
    for step in steps:
        spans.extend(_spans_of_step(step))
    ordered = sorted(spans, key=lambda span: span.begin)
    return [_wire(run, trace_id, span) for span in islice(ordered, limit)]


def _root(run: Run) -> _Span:
    has_ended = run.status in TERMINAL
    return _Span(
        name="run",
        of=run.id,
        parent=None,
        begin=run.created_at,
        duration_ns=ns_between(run.created_at, run.completed_at) if has_ended else None,
        is_error=run.status is RunStatus.FAILED,
        message=run.error.error_type if run.error else "",
        attributes={
            "run.id": run.id,
            "agent.id": run.agent_id,
            "run.status": run.status.value,
            "run.stop_reason": run.stop_reason or "",
            "run.step_count": str(run.step_count),
            "run.queue_wait_ns": str(ns_between(run.created_at, run.started_at) or 0),
        },
    )


def _first_token(run: Run) -> Iterator[_Span]:
    if run.first_token_at is not None:
        yield _Span(
            name="time_to_first_token",
            of=f"{run.id}/first-token",
            parent=run.id,
            begin=run.created_at,
            duration_ns=ns_between(run.created_at, run.first_token_at),
            attributes={"run.id": run.id},
        )


def _spans_of_step(step: Step) -> Iterator[_Span]:
    timing = step.timing
    begin = _moment(timing.asked_at) if timing.asked_at else step.created_at
    whole, asked = step_ms(timing), model_ms(timing)
    attributes = {"step.id": step.id, "run.id": step.run_id, "step.number": str(step.number)}
    usage = {
        "gen_ai.request.model": step.model,
        "gen_ai.usage.input_tokens": str(step.usage.prompt_tokens),
        "gen_ai.usage.output_tokens": str(step.usage.completion_tokens),
    }
    yield _Span(
        name="agent_step",
        of=step.id,
        parent=step.run_id,
        begin=begin,
        duration_ns=None if whole is None else whole * NS_PER_MS,
        is_error=step.status == "failed",
        message=step.error.error_type if step.error else "",
        attributes={**attributes, **usage, "step.status": step.status},
    )
    if asked is not None:
        yield _Span(
            name="llm_request",
            of=f"{step.id}/model",
            parent=step.id,
            begin=begin,
            duration_ns=asked * NS_PER_MS,
            attributes={**attributes, **usage},
        )
    yield from (_tool_call(step, call, attributes) for call in timing.tools)


def _tool_call(step: Step, call: ToolTiming, attributes: dict[str, str]) -> _Span:
    return _Span(
        name="agent._execute_tool",
        of=f"{step.id}/{call.tool_call_id}",
        parent=step.id,
        begin=_moment(call.started_at),
        duration_ns=max(0, call.ended_at - call.started_at) * NS_PER_MS,
        is_error=call.is_error,
        attributes={**attributes, "gen_ai.tool.name": call.tool_name, "gen_ai.tool.call.id": call.tool_call_id},
    )


def _wire(run: Run, trace_id: str, span: _Span) -> dict[str, Any]:
    return {
        "Timestamp": span.begin.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "TraceId": trace_id,
        "SpanId": _span_id(run, span.of),
        "ParentSpanId": "" if span.parent is None else _span_id(run, span.parent),
        "SpanName": span.name,
        "SpanKind": "Server" if span.parent is None else "Internal",
        "ServiceName": SERVICE,
        "SpanAttributes": span.attributes,
        "Duration": span.duration_ns,
        "StatusCode": "Error" if span.is_error else "Unset" if span.duration_ns is None else "Ok",
        "StatusMessage": span.message,
    }


def _span_id(run: Run, of: str) -> str:
    """Sixteen hexadecimal digits."""
    return sha256(f"{run.id} {of}".encode()).hexdigest()[:16]


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
