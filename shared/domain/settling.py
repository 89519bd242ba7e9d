"""The state in which the end of a run leaves its conversation: every tool call has a result, and what was shown is
stored.

Pure. The store calls it inside the transaction that settles the run, with the messages that the next turn will send. So
what is repaired here is what the next turn reads.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.approvals import DENIAL
from shared.domain.events import (
    Ended,
    Event,
    Failed,
    InputDelivered,
    ReasoningChunk,
    StatusChanged,
    StepRestarted,
    Stopped,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
    Unknown,
    UsageReported,
)
from shared.domain.ids import BlockId, IdMaker, MessageId, StepId
from shared.domain.lifecycle import RunStatus, RunTrigger
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
        parts=decision.parts,
    )


def _why_no_result(was_started: bool, why: Literal["cancel", "error", "denied"]) -> str:
    if why == "cancel":
        return CANCELLED_WHILE_RUNNING if was_started else NEVER_STARTED
    return OUTCOME_UNKNOWN if was_started else RUN_FAILED


class ShownStep:
    """What readers have been shown of the step in hand, folded from its events.

    The store keeps an answer that was cut off as it was shown, and counts its tokens by it. A worker that begins the
    step again says which messages are void.
    """

    def __init__(self, events: Iterable[Event | Unknown] = ()) -> None:
        self.message_ids: dict[MessageId, None] = {}
        """Messages of which something was shown, in order, those of lost workers included."""
        self.input_ids: set[MessageId] = set()
        """Injected messages that were shown."""
        self.lost_calls = 0
        """Model calls that had shown something when their workers died."""
        self.lost_text = ""
        """What those calls had shown."""
        self._begin()
        for event in events:
            self.take(event)

    def take(self, event: Event | Unknown) -> None:
        """Adds the next event of the log."""
        match event:
            case TextChunk():
                self._text.append(event.text)
                self._note(event)
            case ReasoningChunk():
                self._thought.append(event.text)
                self._note(event)
            case ToolCallChunk():
                name, pieces = self._calls.setdefault(event.call_id, (event.name or "", []))
                self._calls[event.call_id] = (event.name or name, pieces)
                pieces.append(event.arguments or "")
                self._note_call(event)
            case ToolCalls():
                self._calls.update({call.id: (call.name, [call.arguments]) for call in event.calls})
                self._note_call(event)
            case InputDelivered():
                self.input_ids.add(event.message_id)
            case StepRestarted():
                self.lose()
            case _:
                return

    def lose(self) -> None:
        """The worker that has shown this is gone: all of it is void."""
        text = self.text
        self.lost_calls += bool(text)
        self.lost_text += text
        self._begin()

    def forget_lost(self) -> None:
        """The caller has counted what lost workers had shown."""
        self.lost_calls, self.lost_text = 0, ""

    @property
    def text(self) -> str:
        """Everything that was shown of the answer, reasoning and calls included; its tokens are counted by it."""
        calls = [name + "".join(pieces) for name, pieces in self._calls.values()]
        return "".join([*self._thought, *self._text, *calls])

    def partial_answer(self, *, cut_by: Literal["cancel", "error"], model: str, now: datetime) -> NewMessage | None:
        """The answer that was being streamed when the run was cut off.

        None when no text was shown: no provider takes reasoning back that was cut off, and calls that the model was
        still writing never ran. The run's log has them.
        """
        if self._message_id is None or not self._text:
            return None
        return NewMessage(
            id=self._message_id,
            created_at=now,
            step_id=self._step_id,
            body=AssistantMessage(
                text="".join(self._text),
                reasoning=Reasoning("".join(self._thought)) if self._thought else None,
                partial=True,
                cut_by=cut_by,
                model=model,
            ),
        )

    def _begin(self) -> None:
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self._message_id: MessageId | None = None
        self._step_id: StepId | None = None

    def _note(self, event: TextChunk | ReasoningChunk) -> None:
        """Text and reasoning have the answer's own id; a call may have that of its second part."""
        self._message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None

    def _note_call(self, event: ToolCallChunk | ToolCalls) -> None:
        if self._message_id is None:
            self._message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None


def returns_event(message: NewMessage, at: int) -> ToolsReturned | None:
    """The event that shows a message of tool results; None for any other message."""
    if not isinstance(message.body, ToolReturns):
        return None
    return ToolsReturned(at=at, step_id=message.step_id, message_id=message.id, returns=message.body.returns)


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends, or is parked: parking ends its stream as well."""

    trigger: Literal[RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL, RunTrigger.PARK]
    stop_reason: str
    cause: Cause | None = None
    error: RunError | None = None


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
        last.append(Failed(at=at, error_type=error.error_type, message=error.message, detail=error.detail))
    last.append(Ended(at=at))
    return last
