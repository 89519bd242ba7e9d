"""How a conversation is left when a run ends: no tool call without a result, nothing that was shown forgotten.

Pure. The store calls it inside the transaction that settles, with the messages that the next turn will send, so that
what is repaired is what will be read.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.approvals import DENIAL
from shared.domain.events import (
    Event,
    ReasoningChunk,
    StepRestarted,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
)
from shared.domain.ids import IdMaker, MessageId, StepId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    Message,
    NewMessage,
    Reasoning,
    ToolCall,
    ToolReturn,
    ToolReturns,
)

OUTCOME_UNKNOWN = (
    "Error: outcome unknown. The tool was started, but the worker that ran it was lost before the result was kept. "
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


def open_calls(history: Sequence[Message]) -> OpenCalls | None:
    """The calls at the end of a history that still want results. None: every call has its own."""
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
                step_id=message.step_id, calls=body.tool_calls, decided=decisions is not None, decisions=decisions or []
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
        or ToolReturn(
            tool_call_id=call.id,
            tool_name=call.name,
            status="error",
            text=DENIAL.format(reason=reason) if deny_all else _why_no_result(call.id in started, why),
        )
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
        text = DENIAL.format(reason=decision.reason or NO_REASON)
        return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=decision.status,
        text=decision.tool_return or "",
        stdout=decision.stdout,
        stderr=decision.stderr,
    )


def _why_no_result(was_started: bool, why: Literal["cancel", "error", "denied"]) -> str:
    if why == "cancel":
        return CANCELLED_WHILE_RUNNING if was_started else NEVER_STARTED
    return OUTCOME_UNKNOWN if was_started else RUN_FAILED


def partial_answer(
    events: Sequence[Event], *, cut_by: Literal["cancel", "error"], model: str, now: datetime
) -> NewMessage | None:
    """The answer that was being streamed when the run was cut off, from its events since the last checkpoint.

    None when no text was shown: reasoning that was cut off cannot go back to any provider, and calls that were still
    being written were never run. The run's log has them.
    """
    text: list[str] = []
    thought: list[str] = []
    calls: dict[str, tuple[str, list[str]]] = {}
    message_id: MessageId | None = None
    step_id: StepId | None = None
    for event in events:
        match event:
            case TextChunk():
                text.append(event.text)
            case ReasoningChunk():
                thought.append(event.text)
            case ToolCallChunk():
                name, pieces = calls.setdefault(event.call_id, (event.name or "", []))
                calls[event.call_id] = (event.name or name, pieces)
                pieces.append(event.arguments or "")
            case ToolCalls():
                calls.update({call.id: (call.name, [call.arguments]) for call in event.calls})
            case StepRestarted():
                text, thought, calls, message_id = [], [], {}, None
                continue
            case _:
                continue
        if message_id is None or isinstance(event, TextChunk | ReasoningChunk):
            message_id, step_id = event.message_id, event.step_id
    if message_id is None or not text:
        return None
    return NewMessage(
        id=message_id,
        created_at=now,
        step_id=step_id,
        body=AssistantMessage(
            text="".join(text),
            reasoning=Reasoning("".join(thought)) if thought else None,
            partial=True,
            cut_by=cut_by,
            unfinished_calls=[ToolCall(id=i, name=name, arguments="".join(args)) for i, (name, args) in calls.items()],
            model=model,
        ),
    )


def shown_text(events: Sequence[Event]) -> str:
    """Everything that was shown of an answer, reasoning and calls included: to count its tokens by."""
    shown: list[str] = []
    for event in events:
        match event:
            case TextChunk() | ReasoningChunk():
                shown.append(event.text)
            case ToolCallChunk():
                shown.append((event.name or "") + (event.arguments or ""))
            case ToolCalls():
                shown.extend(call.name + call.arguments for call in event.calls)
            case _:
                continue
    return "".join(shown)


def returns_event(message: NewMessage, at: int) -> ToolsReturned | None:
    """The event that shows a message of tool results; None for any other message."""
    if not isinstance(message.body, ToolReturns):
        return None
    return ToolsReturned(at=at, step_id=message.step_id, message_id=message.id, returns=message.body.returns)
