"""Observers of a run in its worker: metrics, log lines, and spans that continue the trace of the run's submission.

The names are OpenTelemetry's for generative AI where it has one. If a worker dies, its open spans are lost; the spans
of the next worker are in the same trace, with the number of its attempt.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from structlog.contextvars import bind_contextvars, unbind_contextvars

from shared.concurrency import unix_ms
from shared.domain.events import StopReason
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Message,
    MessageBody,
    Summary,
    SystemMessage,
    ToolReturns,
    UserMessage,
    text_with_notes,
)
from shared.domain.runs import Usage
from shared.telemetry.metrics import WorkerMetrics
from shared.telemetry.tracer import Attributes, Span, SpanKind, Tracer, of_run, trace_id_of
from worker.models.provider import AttemptFailed
from worker.run.observation import (
    Observed,
    ObservedModelCall,
    ObservedRun,
    ObservedStep,
    ObservedToolCall,
    ObservedWrite,
    RunObserver,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# The texts of users, models and tools, for spans if the operator enables it: JSON in the shape of OpenTelemetry's
# conventions for generative AI. A note replaces each image.


MOST_CHARACTERS = 64_000
"""The most characters of a history; the newest messages are kept. Each step repeats it, and a receiver may refuse a
long batch."""


def asked_content(what: Observed) -> Attributes:
    """Returns the texts that are known when `what` begins."""
    match what:
        case ObservedModelCall(call=call):
            messages, left_out = _newest(call.history)
            return {
                "gen_ai.system_instructions": _json([{"type": "text", "content": call.system[:MOST_CHARACTERS]}]),
                "gen_ai.input.messages": _json(messages),
                "holdfast.input.left_out": left_out or None,
            }
        case ObservedToolCall(call=call):
            return {"gen_ai.tool.call.arguments": call.arguments[:MOST_CHARACTERS]}
        case _:
            return {}


def answered_content(what: Observed) -> Attributes:
    """Returns the texts that are known when `what` ends."""
    match what:
        case ObservedModelCall(answer=AssistantMessage() as answer):
            shown = [{**one, "finish_reason": what.finish_reason} for one in _messages(answer)]
            return {"gen_ai.output.messages": _json(shown)}
        case ObservedToolCall(returned=returned) if returned is not None:
            return {"gen_ai.tool.call.result": returned.text[:MOST_CHARACTERS]}
        case _:
            return {}


def _newest(history: Sequence[Message]) -> tuple[list[dict[str, Any]], int]:
    """Returns the newest messages that fit, oldest first, and the number of those that do not."""
    kept: list[list[dict[str, Any]]] = []
    room = MOST_CHARACTERS
    for message in reversed(history):
        shown = _messages(message.body)
        room -= len(_json(shown))
        if room < 0:
            break
        kept.append(shown)
    return [one for shown in reversed(kept) for one in shown], len(history) - len(kept)


def _messages(body: MessageBody) -> list[dict[str, Any]]:
    match body:
        case UserMessage():
            text = body.content if isinstance(body.content, str) else text_with_notes(body.content)
            return [_message(body.role, _text(text))]
        case AssistantMessage():
            thought = [{"type": "reasoning", "content": body.reasoning.text}] if body.reasoning else []
            calls = [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
                for call in body.tool_calls
            ]
            return [_message("assistant", [*thought, *_text(body.text), *calls])]
        case ToolReturns():
            results = [
                {"type": "tool_call_response", "id": one.tool_call_id, "response": one.text} for one in body.returns
            ]
            return [_message("tool", results)]
        case Summary():
            return [_message("system", _text(body.text))]
        case SystemMessage() | ApprovalResponse():
            return []  # the call's instructions replace system messages, and the results replace decisions


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "content": text}] if text else []


def _json(value: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(value).decode()


# Counts what happens to runs, for Prometheus.


class RunMetrics(RunObserver):
    """Observes all runs of a worker."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def began(self, what: Observed) -> None:
        if isinstance(what, ObservedRun):
            self._metrics.runs_in_hand.inc()
            if what.queue_wait_s is not None:
                self._metrics.queue_wait.observe(what.queue_wait_s)
        elif isinstance(what, ObservedModelCall):
            self._metrics.model_call_begins(what.provider)

    def ended(self, what: Observed) -> None:
        metrics = self._metrics
        match what:
            case ObservedRun():
                self._run_ended(what)
            case ObservedStep():
                metrics.step_ended(what.outcome)
            case ObservedToolCall():
                metrics.tool_called(what.outcome, what.seconds)
            case ObservedModelCall():
                metrics.model_asked(what.provider, what.outcome, what.seconds, what.usage)
            case ObservedWrite(kind="checkpoint"):
                metrics.checkpoint.observe(what.seconds)
            case ObservedWrite(kind="park" | "settle"):
                metrics.settle.observe(what.seconds)
            case _:
                pass

    def first_piece(self, call: ObservedModelCall) -> None:
        if call.is_first:
            self._metrics.first_token.observe(call.claimed_s + call.first_piece_s)

    def retried(self, call: ObservedModelCall, failure: AttemptFailed) -> None:
        self._metrics.model_retried(call.provider)

    def shown(self, size: int, delay_s: float | None) -> None:
        self._metrics.log_bytes.inc(size)
        if delay_s is not None:
            self._metrics.token_delay.observe(delay_s)

    def restarted(self) -> None:
        self._metrics.step_restarts.inc()

    def log_lost(self) -> None:
        self._metrics.log_gaps.inc()

    def _run_ended(self, run: ObservedRun) -> None:
        metrics = self._metrics
        metrics.runs_in_hand.dec()
        if run.settled is not None:
            metrics.run_ended(run.settled.status, run.settled.stop_reason or "")
        elif run.outcome == "parked":
            metrics.run_ended(RunStatus.AWAITING_APPROVAL, StopReason.PARKED)
        if run.cancelled_after_s is not None:
            metrics.run_cancelled(run.interrupted_in, run.cancelled_after_s)
        if run.outcome in ("lost", "refused"):
            metrics.leases_lost.inc()


# The log lines of a run at DEBUG: its model calls, tool calls and writes, as they begin and end.
#
# The lines contain ids, figures and outcomes, but no prompts, answers or tool names: those do not belong in a log.


class RunLog(RunObserver):
    """Logs what happens to one run. Every line has the ids of the run and the worker."""

    def began(self, what: Observed) -> None:
        match what:
            case ObservedStep():
                log.debug("step_began", number=what.number, goes_on=what.goes_on)
            case ObservedModelCall():
                log.debug("model_call_began", provider=what.provider, is_summary=what.step is None)
            case _:
                pass

    def ended(self, what: Observed) -> None:
        took_ms = round(what.seconds * 1000)
        match what:
            case ObservedStep():
                log.debug("step_ended", number=what.number, outcome=what.outcome, took_ms=took_ms)
            case ObservedModelCall():
                self._model_call_ended(what, took_ms)
            case ObservedToolCall():
                log.debug("tool_call_ended", outcome=what.outcome, took_ms=took_ms)
            case ObservedWrite():
                log.debug("run_written", kind=what.kind, outcome=what.outcome, took_ms=took_ms)
            case ObservedRun():
                log.debug("run_left", outcome=what.outcome, took_ms=took_ms)
            case _:
                pass

    def first_piece(self, call: ObservedModelCall) -> None:
        log.debug("model_answers", provider=call.provider, after_ms=round(call.first_piece_s * 1000))

    def log_lost(self) -> None:
        log.warning("log_sent_again")

    def _model_call_ended(self, what: ObservedModelCall, took_ms: int) -> None:
        log.debug(
            "model_call_ended",
            provider=what.provider,
            outcome=what.outcome,
            took_ms=took_ms,
            retries=what.retries,
            tokens_in=None if what.usage is None else what.usage.prompt_tokens,
            tokens_out=None if what.usage is None else what.usage.completion_tokens,
        )


PROVIDERS = {
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "google_ai": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""Holdfast's providers that have another name in the conventions."""

NO_FAILURES = frozenset(
    {"success", "completed", "cancelled", "parked", "waits", "refused", "handed_over", "interrupted"}
)
"""Outcomes that do not mark a span as failed."""

_OPERATION = "gen_ai.operation.name"


class TracedRuns(RunObserver):
    """Makes the spans of every run of a worker."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def for_run(self, run: ObservedRun) -> RunObserver:
        return RunTraces(self._tracer, run)


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
        # By the monotonic clock, which is finer than a millisecond.
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
        # The spans before the claim are known only now. A run that was submitted without a trace gets this worker's.
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
    """Returns the name and the attributes that are known at the end."""
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
    """Returns a short type of the error, never a text."""
    if isinstance(what, ObservedRun) and what.settled is not None and what.settled.error is not None:
        return what.settled.error.error_type
    if what.outcome == "error":
        return "tool_error" if what.error is None else type(what.error).__name__
    return what.outcome
