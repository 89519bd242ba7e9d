"""The state in which the end of a run leaves its conversation: every tool call has a result, and what was shown is
stored.

Pure. The store calls it inside the transaction that settles the run, with the messages that the next turn will send. So
what is repaired here is what the next turn reads.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.approvals import DENIAL
from shared.domain.events import (
    Ended,
    Event,
    Failed,
    StatusChanged,
    Stopped,
    ToolsReturned,
    UsageReported,
)
from shared.domain.ids import BlockId, IdMaker, StepId
from shared.domain.lifecycle import RunStatus, RunTrigger
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    NewMessage,
    ToolCall,
    ToolReturn,
    ToolReturns,
)
from shared.domain.runs import Cause, RunError, Usage

OUTCOME_UNKNOWN = (
    "Error: outcome unknown. The call was interrupted before its result was kept. "
    "It may or may not have had its effects."
)
CANCELLED_WHILE_RUNNING = "Error: the user cancelled the request while the tool was running. It may have had effects."
NEVER_STARTED = "Error: the user cancelled the request before the tool was started."
NO_REASON = "no reason was given"
RUN_FAILED = "Error: the run ended before the tool was started."


class OpenCalls(msgspec.Struct, frozen=True):
    """Tool calls of the last answer that have no result yet."""

    step_id: StepId | None
    calls: list[ToolCall]
    decided: bool
    """The answer's decisions are stored, so no denial has to be added."""
    decisions: list[Decision] = []
    seen_memory: dict[BlockId, int] = {}
    """Versions of the memory blocks that the model was shown when it asked for a block to be written anew."""


def open_calls(history: Sequence[Message]) -> OpenCalls | None:
    """The calls at the end of a history that have no result yet. None: every call has its own."""
    decisions: list[Decision] | None = None
    for message in reversed(history):
        body = message.body
        if isinstance(body, ToolReturns):
            return None
        if isinstance(body, ApprovalResponse):
            decisions = body.decisions
        elif isinstance(body, AssistantMessage):
            if not body.tool_calls:
                return None
            return OpenCalls(
                step_id=message.step_id,
                calls=body.tool_calls,
                decided=decisions is not None,
                decisions=decisions or [],
                seen_memory=body.seen_memory,
            )
    return None


def close_calls(
    open_: OpenCalls,
    *,
    known: dict[str, ToolReturn],
    started: set[str],
    why: Literal["cancel", "error", "denied"],
    reason: str,
    ids: IdMaker,
    now: datetime,
) -> list[NewMessage]:
    """The messages that give every open call a result.

    `known` are results that are already there; `started` the calls whose tools had been started; `reason` is the
    denial's reason for calls that waited for a person.
    """
    waiting = [call for call in open_.calls if call.needs_approval]
    closing: list[NewMessage] = []
    deny_all = bool(waiting) and not open_.decided
    if deny_all:
        decisions = [Decision(tool_call_id=call.id, approve=False, reason=reason) for call in waiting]
        closing.append(NewMessage(id=ids.message(), created_at=now, body=ApprovalResponse(decisions=decisions)))
    decided = {decision.tool_call_id: decision for decision in open_.decisions}
    returns = [
        known.get(call.id)
        or decided_return(call, decided.get(call.id))
        or (_denied(call, reason) if deny_all else unfinished_return(call, was_started=call.id in started, why=why))
        for call in open_.calls
    ]
    closing.append(
        NewMessage(id=ids.message(), created_at=now, body=ToolReturns(returns=returns), step_id=open_.step_id)
    )
    return closing


def decided_return(call: ToolCall, decision: Decision | None) -> ToolReturn | None:
    """The result that the decision itself is: what the client brought, or a denial."""
    if decision is None or (decision.kind == "approval" and decision.approve):
        return None
    if decision.kind == "approval":
        return _denied(call, decision.reason or NO_REASON)
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=decision.status,
        text=decision.tool_return or "",
        stdout=decision.stdout,
        stderr=decision.stderr,
        parts=decision.parts,
    )


def unfinished_return(call: ToolCall, *, was_started: bool, why: Literal["cancel", "error", "denied"]) -> ToolReturn:
    """What is said of a call whose run ended before its result was known."""
    if why == "cancel":
        text = CANCELLED_WHILE_RUNNING if was_started else NEVER_STARTED
    elif was_started:
        return unknown_return(call)
    else:
        text = RUN_FAILED
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


def unknown_return(call: ToolCall) -> ToolReturn:
    """What is said of a call whose tool was started, and may not be started again to learn what came of it."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=OUTCOME_UNKNOWN, is_unknown=True)


def _denied(call: ToolCall, reason: str) -> ToolReturn:
    text = DENIAL.format(reason=reason)
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


def returns_event(message: NewMessage, at: int) -> ToolsReturned | None:
    """The event that shows a message of tool results; None for any other message, and for one that shows nothing."""
    if not isinstance(message.body, ToolReturns):
        return None
    shown = [result for result in message.body.returns if not result.of_speech]
    return ToolsReturned(at=at, step_id=message.step_id, message_id=message.id, returns=shown) if shown else None


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends, or is parked: parking ends its stream as well."""

    trigger: Literal[RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL, RunTrigger.PARK]
    stop_reason: str
    cause: Cause | None = None
    error: RunError | None = None

    @property
    def of_open_calls(self) -> Literal["cancel", "error"]:
        """Why calls have no result that are open when a run ends so."""
        return "cancel" if self.trigger is RunTrigger.CANCEL else "error"


PARKED = RunEnd(trigger=RunTrigger.PARK, stop_reason="requires_approval")


def end_events(
    end: RunEnd, *, at: int, status: RunStatus, usage: Usage, step_count: int, status_events: bool
) -> list[Event]:
    """The last events of a run's log: why it stopped, what it used, what went wrong, and the end itself, once. `at` is
    Unix time in milliseconds, `status` is the run's status from now on.

    The stream of a cancelled run says what it used before it says that it was cancelled: on Letta's wire `stop_reason`
    is the last message of such a stream, and programs look for it there.
    """
    stopped = Stopped(at=at, reason=end.stop_reason)
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
    last: list[Event] = [StatusChanged(at=at, status=status, cause=end.cause)] if status_events else []
    last.extend([used, stopped] if end.stop_reason == "cancelled" else [stopped, used])
    if end.error is not None:
        error = end.error
        last.append(Failed(at, error.error_type, error.message, error.detail, error.waiting))
    last.append(Ended(at=at))
    return last
