"""A run as spans, in the form of Letta's wire: rows of OpenTelemetry's table of traces.

The spans are derived from the stored run and its steps, whether or not the process exports traces. A run's spans always
have the same ids. No span contains a text of a user, a model or a tool.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Any

from api.letta.messages import moment_at, wire_stop_reason, wire_time
from shared.concurrency import unix_ms
from shared.domain.approvals import Approval
from shared.domain.lifecycle import TERMINAL, RunStatus
from shared.domain.runs import Run, Step, StepTiming, ToolTiming

# Durations of runs and steps, in nanoseconds on the wire. Unmeasured durations are null. The worker records the times
# of a step in milliseconds.


NS_PER_MS = 1_000_000


def duration_ns(run: Run) -> int | None:
    """Nanoseconds from the run's submission to its end; None if it has not ended."""
    return ns_between(run.created_at, run.completed_at)


def ns_between(begin: datetime, end: datetime | None) -> int | None:
    """The difference; None if one of the times is missing. Never below 0: two machines' clocks may differ."""
    return None if end is None else max(0, round((end - begin).total_seconds() * 1e6) * 1000)


def wire_run_metrics(
    run: Run, tools_used: Sequence[str], steps: Sequence[Step], approvals: Sequence[Approval]
) -> dict[str, Any]:
    """Counts and times of a run. The wire's fields first, then ours."""
    timings = [step.timing for step in steps if step.timing.asked_at]
    return {
        "id": run.id,
        "organization_id": None,
        "agent_id": run.agent_id,
        "project_id": run.project_id,
        "run_start_ns": unix_ns(run.created_at),
        "run_ns": duration_ns(run),
        "num_steps": run.step_count,
        "tools_used": list(tools_used) or None,
        "template_id": None,
        "base_template_id": None,
        "queue_wait_ns": ns_between(run.created_at, run.started_at),
        "ttft_ns": ns_between(run.created_at, run.first_token_at),
        "model_ns": sum(model_ms(timing) or 0 for timing in timings) * NS_PER_MS if timings else None,
        "tokens_per_second": _tokens_per_second(steps),
        "tools": _tools([tool for timing in timings for tool in timing.tools]) if timings else None,
        "waiting_for_approval_ns": _waited_for_approval(approvals),
        "pruned_at": wire_time(run.pruned_at),
    }


def wire_step_metrics(step: Step, project_id: str) -> dict[str, Any]:
    """Times of a step, in the wire's form."""
    timing = step.timing
    asked, whole = model_ms(timing), step_ms(timing)
    return {
        "id": step.id,
        "organization_id": None,
        "provider_id": None,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "step_start_ns": timing.asked_at * NS_PER_MS or None,
        "llm_request_start_ns": timing.asked_at * NS_PER_MS or None,
        "llm_request_ns": None if asked is None else asked * NS_PER_MS,
        "tool_execution_ns": tools_ms(timing.tools) * NS_PER_MS if timing.tools else None,
        "step_ns": None if whole is None else whole * NS_PER_MS,
        "base_template_id": None,
        "template_id": None,
        "project_id": project_id,
    }


def unix_ns(moment: datetime) -> int:
    """Unix time in nanoseconds, exact to the microsecond."""
    return unix_ms(moment) * NS_PER_MS + moment.microsecond % 1000 * 1000


def model_ms(timing: StepTiming) -> int | None:
    """Milliseconds from the question to the complete answer; None without a complete answer."""
    return max(0, timing.answered_at - timing.asked_at) if timing.asked_at and timing.answered_at else None


def tools_ms(tools: Sequence[ToolTiming]) -> int:
    """Milliseconds during which at least one of the calls was running: calls may overlap."""
    total, reached = 0, 0
    for tool in sorted(tools, key=lambda one: one.started_at):
        total += max(0, tool.ended_at - max(reached, tool.started_at))
        reached = max(reached, tool.ended_at)
    return total


def step_ms(timing: StepTiming) -> int | None:
    """Milliseconds from the question to the end of the answer and of its last call."""
    ended_at = max([timing.answered_at, *(tool.ended_at for tool in timing.tools)])
    return max(0, ended_at - timing.asked_at) if timing.asked_at and ended_at else None


def _tokens_per_second(steps: Sequence[Step]) -> float | None:
    """Tokens per second of the answers, from their first piece to their last; None if nothing was measured."""
    measured = [step for step in steps if step.timing.first_token_at and step.timing.answered_at]
    streamed_ms = sum(step.timing.answered_at - step.timing.first_token_at for step in measured)
    tokens = sum(step.usage.completion_tokens for step in measured)
    return round(tokens * 1000 / streamed_ms, 3) if streamed_ms > 0 and tokens else None


def _tools(calls: Sequence[ToolTiming]) -> list[dict[str, Any]]:
    """Each tool with its calls, by name."""
    by_name: dict[str, list[ToolTiming]] = {}
    for call in calls:
        by_name.setdefault(call.tool_name, []).append(call)
    return [
        {
            "name": name,
            "calls": len(some),
            "errors": sum(call.is_error for call in some),
            "total_ns": sum(_call_ms(call) for call in some) * NS_PER_MS,
            "max_ns": max(_call_ms(call) for call in some) * NS_PER_MS,
        }
        for name, some in sorted(by_name.items())
    ]


def _call_ms(call: ToolTiming) -> int:
    return max(0, call.ended_at - call.started_at)


def _waited_for_approval(approvals: Sequence[Approval]) -> int | None:
    """The time from the first approval request to the last decision. None without a request, or while a call waits."""
    decided = [approval.decided_at for approval in approvals if approval.decided_at is not None]
    if not approvals or len(decided) < len(approvals):
        return None
    return ns_between(min(approval.asked_at for approval in approvals), max(decided))


SERVICE = "holdfast"


@dataclass(frozen=True, kw_only=True)
class _Span:
    """One span. `parent` None: the root."""

    name: str
    of: str
    """Distinguishes the span's id from the ids of the run's other spans."""
    parent: str | None
    begin: datetime
    duration_ns: int | None
    """None: the span has not ended."""
    is_error: bool = False
    message: str = ""
    attributes: dict[str, str]


def wire_trace(run: Run, steps: Sequence[Step], limit: int) -> list[dict[str, Any]]:
    """The first spans of a run, ordered by their start: the run itself, `time_to_first_token`, each `agent_step`, its
    model call and its tool calls."""
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
            "run.stop_reason": wire_stop_reason(run.stop_reason) or "",
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
    begin = moment_at(timing.asked_at) if timing.asked_at else step.created_at
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
        begin=moment_at(call.started_at),
        duration_ns=max(0, call.ended_at - call.started_at) * NS_PER_MS,
        is_error=call.is_error,
        attributes={**attributes, "gen_ai.tool.name": call.tool_name, "gen_ai.tool.call.id": call.tool_call_id},
    )


def _wire(run: Run, trace_id: str, span: _Span) -> dict[str, Any]:
    return {
        "Timestamp": wire_time(span.begin),
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
