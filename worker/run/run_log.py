"""What an operator sees of a run at DEBUG: its model calls, its tools' calls and its writes, as they begin and end.

It has ids, figures and outcomes. What was asked and answered, and what tools are called, is nobody's in a log.
"""

import structlog

from worker.run.observed import (
    Observed,
    ObservedModelCall,
    ObservedRun,
    ObservedStep,
    ObservedToolCall,
    ObservedWrite,
    RunObserver,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class RunLog(RunObserver):
    """Logs what happens to one run. The ids of the run and the worker are bound to every line."""

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
