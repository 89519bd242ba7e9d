"""The spans of a run in its worker, as an observer: they continue the trace that began with the run's submission.

The names are OpenTelemetry's for generative AI where it has one. A span that another worker had in hand when it died is
lost; what this worker does is beside it in the same trace, with the number of its attempt.
"""

from structlog.contextvars import bind_contextvars, unbind_contextvars

from shared.concurrency import unix_ms
from shared.domain.runs import Usage
from shared.telemetry.run_attributes import of_run
from shared.telemetry.tracer import Attributes, Span, SpanKind, Tracer, trace_id_of
from worker.run.observed import (
    Observed,
    ObservedModelCall,
    ObservedRun,
    ObservedStep,
    ObservedToolCall,
    ObservedWrite,
    RunObserver,
)
from worker.run.trace_content import answered_content, asked_content

PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "google_ai": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Our providers that the conventions call by another name."""

NO_FAILURES = frozenset(
    {"success", "completed", "cancelled", "parked", "waits", "refused", "handed_over", "interrupted"}
)
"""Outcomes of which nobody has to be told that something is amiss."""

_OPERATION = "gen_ai.operation.name"


class RunTraces(RunObserver):
    """The spans of one claim of a run."""

    def __init__(self, tracer: Tracer, run: ObservedRun) -> None:
        self._tracer = tracer
        self._run = run
        self._about = of_run(run.run)
        self._spans: dict[Observed, Span] = {}

    def began(self, what: Observed) -> None:
        if isinstance(what, ObservedRun):
            self._begin_run(what)
            return
        name, kind, attributes = _begun(what)
        parent = self._spans.get(what.parent or self._run)
        self._spans[what] = span = self._tracer.begin(
            name,
            parent=None if parent is None else parent.traceparent,
            kind=kind,
            attributes={**self._about, **attributes},
            at_ms=what.began_at,
        )
        if span.takes_content:
            span.set(asked_content(what))

    def ended(self, what: Observed) -> None:
        span = self._spans.pop(what, None)
        if span is None:
            return
        name, attributes = _ended(what)
        span.set({"holdfast.outcome": what.outcome, **attributes}, name=name)
        if span.takes_content:
            span.set(answered_content(what))
        if what.outcome not in NO_FAILURES:
            span.fail(_error_type(what))
        # By the clock that never goes back, and finer than a millisecond.
        span.end(at_ms=what.began_at + what.seconds * 1000)
        if what is self._run:
            unbind_contextvars("trace_id")

    def restarted(self) -> None:
        if self._run in self._spans:
            self._spans[self._run].set({"holdfast.restarted": True})

    def _begin_run(self, what: ObservedRun) -> None:
        run = what.run
        attributes: Attributes = {
            _OPERATION: "invoke_agent",
            "holdfast.attempt": int(run.fence),
            "holdfast.worker": what.worker,
        }
        began_in = run.options.traceparent
        self._spans[what] = span = self._tracer.begin(
            "invoke_agent", parent=began_in, attributes={**self._about, **attributes}, at_ms=what.began_at
        )
        trace_id = trace_id_of(span.traceparent)
        if trace_id is not None:
            bind_contextvars(trace_id=trace_id)
        if what.queue_wait_s is None or run.started_at is None:
            return
        # What came before is known now. A run that was submitted without a trace has this worker's.
        parent, submitted, claimed = began_in or span.traceparent, unix_ms(run.created_at), unix_ms(run.started_at)
        self._tracer.begin("wait", parent=parent, attributes=self._about, at_ms=submitted).end(at_ms=claimed)
        self._tracer.begin("claim", parent=parent, attributes=self._about, at_ms=claimed).end(at_ms=what.began_at)


def _begun(what: Observed) -> tuple[str, SpanKind, Attributes]:
    match what:
        case ObservedStep():
            return "step", "internal", {"holdfast.step.number": what.number, "holdfast.step.goes_on": what.goes_on}
        case ObservedModelCall():
            return f"chat {what.model}", "client", _of_call(what)
        case ObservedToolCall():
            named = {"gen_ai.tool.name": what.call.name, "gen_ai.tool.call.id": what.call.id}
            return f"execute_tool {what.call.name}", "internal", {_OPERATION: "execute_tool", **named}
        case ObservedWrite():
            return what.kind, "internal", {}
        case _:
            return type(what).__name__, "internal", {}


def _of_call(what: ObservedModelCall) -> Attributes:
    options = what.call.options
    return {
        _OPERATION: "chat",
        "gen_ai.provider.name": PROVIDERS.get(what.provider, what.provider),
        "gen_ai.request.model": what.model,
        "gen_ai.request.max_tokens": options.max_output_tokens,
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.stream": True,
        "holdfast.step.id": None if what.step is None else what.step.id,
        "holdfast.summary": True if what.step is None else None,
    }


def _ended(what: Observed) -> tuple[str | None, Attributes]:
    """The name that is known at the end, and what is known then."""
    match what:
        case ObservedModelCall():
            return None, {
                **_of_usage(what.usage),
                "gen_ai.response.finish_reasons": [what.finish_reason] if what.finish_reason else None,
                "gen_ai.response.time_to_first_chunk": None if what.is_silent else what.first_piece_s,
                "holdfast.model.retries": what.retries,
            }
        case ObservedRun():
            name = f"invoke_agent {what.agent_name}" if what.agent_name else None
            return name, {"gen_ai.agent.name": what.agent_name or None, **_of_end(what)}
        case _:
            return None, {}


def _of_end(what: ObservedRun) -> Attributes:
    run = what.settled
    if run is None:
        return {}
    return {
        **_of_usage(run.usage),
        "holdfast.run.status": run.status.value,
        "holdfast.run.stop_reason": run.stop_reason,
        "holdfast.run.cause": run.cause,
        "holdfast.run.steps": run.step_count,
    }


def _of_usage(usage: Usage | None) -> Attributes:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _error_type(what: Observed) -> str:
    """A short word for what went wrong, never a text."""
    if isinstance(what, ObservedRun) and what.settled is not None and what.settled.error is not None:
        return what.settled.error.error_type
    if what.outcome == "error":
        return "tool_error" if what.error is None else type(what.error).__name__
    return what.outcome
