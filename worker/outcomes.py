"""What ended a run from outside or by an error, in the wire's words. The cause is what was raised, never a guess."""

from shared.domain.errors import BudgetExceeded, CancelRequested, ModelError, ModelErrorType
from shared.domain.lifecycle import RunTrigger
from shared.domain.runs import Run, RunError
from worker.run_work import Outcome

MODEL_ERROR_MESSAGES = {
    ModelErrorType.RATE_LIMIT: "Rate limit exceeded for the LLM model provider.",
    ModelErrorType.AUTHENTICATION: "Authentication failed with the LLM model provider.",
    ModelErrorType.TIMEOUT: "The LLM request timed out.",
    ModelErrorType.BAD_REQUEST: "The request to the LLM model provider was invalid.",
    ModelErrorType.CONTEXT_WINDOW: "The conversation no longer fits into the model's context window.",
    ModelErrorType.ERROR: "An error occurred with the LLM request.",
}


def cancelled(request: CancelRequested) -> Outcome:
    """Somebody asked for it."""
    return Outcome(trigger=RunTrigger.CANCEL, stop_reason="cancelled", cause="user", mode=request.mode)


def failed_by_model(error: ModelError, run: Run) -> Outcome:
    """A model call failed, after the retries that it was worth."""
    detail = error.message
    if error.error_type is ModelErrorType.CONTEXT_WINDOW and run.options.compaction is None:
        detail = f"{detail} POST {_compaction_path(run)} makes room: it puts a summary in the place of old messages."
    shown = RunError(error.error_type, MODEL_ERROR_MESSAGES[error.error_type], detail)
    return Outcome(trigger=RunTrigger.FAIL, stop_reason="llm_api_error", cause="model_error", error=shown)


def _compaction_path(run: Run) -> str:
    if run.conversation_id is None:
        return f"/v1/agents/{run.agent_id}/summarize"
    return f"/v1/conversations/{run.conversation_id}/compact"


def failed_by_timeout(timeout_s: float) -> Outcome:
    """The run used up its time."""
    shown = RunError("run_timeout", f"The run took longer than the {timeout_s:g} s that one run may take.")
    return Outcome(trigger=RunTrigger.FAIL, stop_reason="error", cause="timeout", error=shown)


def failed_by_budget(error: BudgetExceeded) -> Outcome:
    """The run used up its tokens."""
    shown = RunError("budget_exceeded", "The run has used up its budget.", error.message)
    return Outcome(trigger=RunTrigger.FAIL, stop_reason="max_tokens_exceeded", cause="budget", error=shown)


def failed_by_defect(error: Exception) -> Outcome:
    """Something that nobody foresaw."""
    shown = RunError("internal_error", "An error occurred during agent execution.", f"{type(error).__name__}: {error}")
    return Outcome(trigger=RunTrigger.FAIL, stop_reason="error", cause="internal_error", error=shown)


def stalled(run: Run) -> Outcome:
    """Worker after worker was lost with this run before any of them finished a step."""
    detail = f"{run.stalled_claims - 1} workers were lost before a step was finished; the run may be what ends them"
    shown = RunError("worker_lost", "The run was given up after several workers were lost with it.", detail)
    return Outcome(trigger=RunTrigger.FAIL, stop_reason="error", cause="worker_lost", error=shown)
