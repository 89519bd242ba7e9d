"""The state in which the end of a run leaves its conversation: every tool call has a result, and the shown text is
stored.

Pure. The store calls it inside the transaction that settles the run, with the messages that the next turn will send. So
the next turn reads the repaired messages.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.approvals import DENIAL
from shared.domain.events import (
    Answered,
    CallDecided,
    ChildStarted,
    ChildWaits,
    Compacted,
    DataPart,
    Ended,
    Event,
    Failed,
    InputDelivered,
    LogContinued,
    ReasoningChunk,
    StatusChanged,
    StepRestarted,
    Stopped,
    StopReason,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
    Unknown,
    UsageReported,
    child_key,
)
from shared.domain.ids import AgentId, BlockId, IdMaker, MessageId, StepId
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
    estimate_tokens,
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
    """Versions of the memory blocks that the model saw when it called for a rewrite of a block."""


def open_calls(history: Sequence[Message]) -> OpenCalls | None:
    """The calls at the end of a history that have no result yet. None: every call has one."""
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
    """Returns the result that a decision itself contains: the client's result, or a denial."""
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
        is_plain=decision.is_plain,
    )


def unfinished_return(call: ToolCall, *, was_started: bool, why: Literal["cancel", "error", "denied"]) -> ToolReturn:
    """The result for a call whose run ended before the call's result was known."""
    if why == "cancel":
        text = CANCELLED_WHILE_RUNNING if was_started else NEVER_STARTED
    elif was_started:
        return unknown_return(call)
    else:
        text = RUN_FAILED
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


def unknown_return(call: ToolCall) -> ToolReturn:
    """The result for a call whose tool was started and must not be started again."""
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=OUTCOME_UNKNOWN, is_unknown=True)


def _denied(call: ToolCall, reason: str) -> ToolReturn:
    text = DENIAL.format(reason=reason)
    return ToolReturn(tool_call_id=call.id, tool_name=call.name, status="error", text=text)


def returns_event(message: NewMessage, at: int) -> ToolsReturned | None:
    """The event that shows a message of tool results; None for other messages, and for one without shown results."""
    if not isinstance(message.body, ToolReturns):
        return None
    shown = [result for result in message.body.returns if not result.of_speech]
    return ToolsReturned(at=at, step_id=message.step_id, message_id=message.id, returns=shown) if shown else None


RunOutcome = Literal["completed", "failed", "cancelled", "incomplete"]
"""The outcome of a run for webhook endpoints. `incomplete`: the run ended by itself, and its answer was cut off."""

_CUT_OFF = (StopReason.STEPS_USED_UP, StopReason.TOKENS_USED_UP)


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ends, or is parked: parking ends its stream as well."""

    trigger: Literal[RunTrigger.COMPLETE, RunTrigger.FAIL, RunTrigger.CANCEL, RunTrigger.PARK]
    stop_reason: str
    cause: Cause | None = None
    error: RunError | None = None

    @property
    def of_open_calls(self) -> Literal["cancel", "error"]:
        """The reason for the missing results of calls that are open at such an end."""
        return "cancel" if self.trigger is RunTrigger.CANCEL else "error"

    @property
    def outcome(self) -> RunOutcome:
        """The outcome of the run. A parked run counts as completed, because its continuation is another run."""
        match self.trigger:
            case RunTrigger.FAIL:
                return "failed"
            case RunTrigger.CANCEL:
                return "cancelled"
            case RunTrigger.COMPLETE | RunTrigger.PARK:
                return "incomplete" if self.stop_reason in _CUT_OFF else "completed"


PARKED = RunEnd(trigger=RunTrigger.PARK, stop_reason=StopReason.PARKED)


def end_events(
    end: RunEnd, *, at: int, status: RunStatus, usage: Usage, step_count: int, status_events: bool
) -> list[Event]:
    """The last events of a run's log: the stop reason, the usage, the error, and the end itself, once. `at` is Unix
    time in milliseconds, `status` is the run's status from now on.

    The stream of a cancelled run has the usage before the cancel, because programs look for the cancel in the last
    message of such a stream.
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
    last.extend([used, stopped] if end.stop_reason == StopReason.CANCELLED else [stopped, used])
    if end.error is not None:
        error = end.error
        last.append(Failed(at, error.error_type, error.message, error.detail, error.waiting))
    last.append(Ended(at=at))
    return last


# The shown part of the current step, folded from the events of its log. Pure.


class BegunAnswer(msgspec.Struct, frozen=True):
    """An answer whose beginning readers have seen, and that a model may continue."""

    message_id: MessageId
    step_id: StepId
    text: str


class ShownStep:
    """The shown part of the current step, folded from its events.

    The store keeps a cut-off answer as it was shown, and counts its tokens from that text. The next worker continues it
    if the model can; otherwise it begins the step again and records which messages are void.
    """

    def __init__(self, events: Iterable[Event | Unknown] = ()) -> None:
        self.message_ids: dict[MessageId, None] = {}
        """Messages that were shown at least in part, in order, including those of lost workers."""
        self.input_ids: set[MessageId] = set()
        """Injected messages that were shown."""
        self.decided_calls: set[str] = set()
        """Calls whose decisions were shown."""
        self.started_agents: dict[str, set[AgentId]] = defaultdict(set)
        """The agents whose runs a call has started, by the id of the call."""
        self.shown_children: set[str] = set()
        """Keys of the events about children that were shown (`child_key`)."""
        self.lost_calls = 0
        """Model calls whose workers died."""
        self.lost_text = ""
        """The text that those calls had shown."""
        self.first_piece_at = 0
        """When the first piece of an answer was shown, even if it is void since. Unix milliseconds; 0: never."""
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
            case DataPart():
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
                self._is_interrupted = self.message_id is not None
            case Compacted():
                self.message_ids[event.message_id] = None
            case StepRestarted():
                self._count_lost(event)
                self._begin()
            case LogContinued() if event.attempt:
                self._count_lost(event)
                self._earlier = len(self._text)
            case _:
                self._take_item(event)

    def _take_item(self, event: Event | Unknown) -> None:
        match event:
            case Answered():
                # Readers know that the answer is complete, so a model must not continue it.
                self._is_interrupted = True
            case CallDecided():
                self.decided_calls.add(event.call_id)
            case ChildStarted() | ChildWaits():
                self.shown_children.add(child_key(event))
                if isinstance(event, ChildStarted):
                    self.started_agents[event.call_id].add(event.agent_id)
            case _:
                return

    def forget_lost(self) -> None:
        """Forgets the text of lost workers, which the caller has counted."""
        self.lost_calls, self.lost_text = 0, ""

    @property
    def text(self) -> str:
        """Everything that the run's present owner has shown of the answer, reasoning and calls included, to count its
        tokens."""
        calls = [name + "".join(pieces) for name, pieces in self._calls.values()]
        return "".join([*self._thought, *self._text[self._earlier :], *calls])

    @property
    def beginning(self) -> BegunAnswer | None:
        """The shown part of the answer, if a model can continue it: it is text alone, and nothing has entered the
        conversation since."""
        if self.message_id is None or self._step_id is None or self._is_interrupted:
            return None
        text = "".join(self._text)
        is_text_alone = text.strip() and not self._thought and not self._calls
        return BegunAnswer(self.message_id, self._step_id, text) if is_text_alone else None

    def partial_answer(self, *, cut_by: Literal["cancel", "error"], model: str, now: datetime) -> NewMessage | None:
        """The answer that was being streamed when the run was cut off.

        None when no text was shown: no provider accepts truncated reasoning, and calls that the model was still writing
        never ran. The run's log has them.
        """
        if self.message_id is None or not self._text:
            return None
        return NewMessage(
            id=self.message_id,
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

    def _count_lost(self, event: StepRestarted | LogContinued) -> None:
        """The worker that showed this was lost with its model call. A worker that showed nothing counts as having made
        a call, too, because only moments lie between a claim or a checkpoint and the next model call."""
        text = self.text
        self.lost_calls += event.lost_call or bool(text)
        self.lost_text += text

    def _begin(self) -> None:
        self._text: list[str] = []
        self._earlier = 0
        self._is_interrupted = False
        self._thought: list[str] = []
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self.message_id: MessageId | None = None
        """The answer's id, if a valid part of it was shown."""
        self._step_id: StepId | None = None

    def _note(self, event: TextChunk | ReasoningChunk | DataPart) -> None:
        """Text and reasoning have the answer's own id; a call may have the id of its second part."""
        self.message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None
        self.first_piece_at = self.first_piece_at or event.at

    def _note_call(self, event: ToolCallChunk | ToolCalls) -> None:
        if event.step_id is not None:  # else the call is a client's, not a model's
            self.first_piece_at = self.first_piece_at or event.at
        if self.message_id is None:
            self.message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None


def lost_usage(calls: int, asked: str, shown: str) -> Usage:
    """Estimates the usage of calls whose worker died, because the provider charges for them too. The prompt of each was
    about `asked`, the prompt of the next call."""
    if not calls:
        return Usage()
    prompt = estimate_tokens(asked)
    completion = estimate_tokens(shown)
    return Usage(
        prompt_tokens=calls * prompt, completion_tokens=completion, context_tokens=prompt + completion, estimated=True
    )
