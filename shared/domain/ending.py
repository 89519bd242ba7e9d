"""How every stream ends: why it stopped, what it used, what went wrong, and the end itself. Once.

A cancelled stream says what it used before it says that it was cancelled: on Letta's wire `stop_reason` is the last
message of a cancelled stream, and programs look for it there.
"""

from shared.domain.events import Ended, Event, Failed, StatusChanged, Stopped, UsageReported
from shared.domain.runs import Cause, RunError, Usage


def end_events(
    *,
    at: int,
    status: str,
    cause: Cause | None,
    stop_reason: str,
    error: RunError | None,
    usage: Usage,
    step_count: int,
    status_events: bool,
) -> list[Event]:
    """The last events of a run's log. `at` is Unix time in milliseconds."""
    stopped = Stopped(at=at, reason=stop_reason)
    used = UsageReported(
        at=at,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        context_tokens=usage.context_tokens,
        step_count=step_count,
        estimated=usage.estimated,
    )
    ending: list[Event] = [StatusChanged(at=at, status=status, cause=cause)] if status_events else []
    ending.extend([used, stopped] if stop_reason == "cancelled" else [stopped, used])
    if error is not None:
        ending.append(Failed(at=at, error_type=error.error_type, message=error.message, detail=error.detail))
    ending.append(Ended(at=at))
    return ending
