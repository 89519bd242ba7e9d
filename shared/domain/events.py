"""The events of a run's log, one per entry. `log_writer` numbers them.

Events belong to no dialect: the API turns them into a client's frames. An event carries everything that its frame
needs, so that a reader may begin anywhere. `at` is Unix time in milliseconds: two readers of one event see the same
bytes. The first event of every run is `RunCreated`; it is derived from the run and never stored.

Two releases write and read logs side by side during an upgrade. A field may be added when it has a default: readers
ignore fields that they do not know. An event whose meaning changes gets a new type: readers decode a type that they do
not know as `Unknown`, and pass its bytes on unchanged.

The events of items (`Answered`, `ToolStarted`, `ToolEnded`, `CallDecided`) are written for runs whose dialect asks for
them (`RunOptions.item_events`). Every entry has a number, and some readers count numbers. So the logs of other runs
have the entries and the numbers that they would have if these events did not exist.

A fold may rely on these rules, wherever the log begins again, is cut, or ends:

* A piece opens its item: text and reasoning by message and part, a call by its id. `Answered` closes every open item of
  the answer, and names the calls that no piece has shown. It comes before anything else of the same step.
* Where `Answered` is missing, the answer was cut off: its items end with `StepRestarted`, which voids them, or with
  `Ended`. A `LogContinued` with an attempt continues an open text; no answer continues after its `Answered`. A `Gap`
  may have swallowed any event: items that were open before it stay open until one of these events.
* A started tool ends with `ToolEnded`. If its worker was lost, or the run was stopped, it ends with the result in
  `ToolsReturned`, with `StepRestarted`, after which it may be started once more, or with `Ended`.
* Each call of an answer, started or not, has its result in one `ToolsReturned`: of this run, or, if it was parked, of
  its continuation. The continuation's log begins with a `CallDecided` for each call that a person has decided. A parked
  run that is cancelled has no `ToolsReturned`, because its log had ended.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Literal

import msgspec

from shared.domain.approvals import WaitingCalls
from shared.domain.ids import AgentId, ApprovalId, MessageId, RunId, Seq, StepId
from shared.domain.messages import CompactionStats, CompactionTrigger, ToolCall, ToolReturn

FIRST_SEQ = Seq(1)
"""The number of `RunCreated`, which is made from the run when it is read."""


AnsweredBy = Literal["worker", "client", "person"]
"""The actor that gives a call its result: a worker, the client, or a worker once a person has approved the call."""

AnswerReason = Literal["stop", "tool_calls", "length", "content_filter"]
"""Why an answer of the model ends. With the last two, the answer was cut off."""


class RunCreated(msgspec.Struct, frozen=True, tag="created", omit_defaults=True):
    """The run exists. Always event 1."""

    at: int


class StatusChanged(msgspec.Struct, frozen=True, tag="status", omit_defaults=True):
    """The run's status changed. Shown to readers who asked for status events."""

    at: int
    status: str
    cause: str | None = None
    turn: int | None = None
    """The run's turn, when a worker begins it. None: another change, or the event of an older release."""


class ReasoningChunk(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """Reasoning of the model: a piece of it in a run that streams tokens, otherwise all of it."""

    at: int
    step_id: StepId
    message_id: MessageId
    text: str
    part: int = 0
    signature: str | None = None


class TextChunk(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Text of the model: a piece of it in a run that streams tokens, otherwise all of it."""

    at: int
    step_id: StepId
    message_id: MessageId
    text: str
    part: int = 0


class DataPart(msgspec.Struct, frozen=True, tag="data"):
    """Data that the code of an agent shows beside its answer. It enters no history. If the answer begins again, the
    data is void and is emitted once more."""

    at: int
    step_id: StepId
    message_id: MessageId
    name: str
    value: Any


class ToolCallChunk(msgspec.Struct, frozen=True, tag="call_chunk", omit_defaults=True):
    """A piece of a tool call (only in runs that stream tokens): first its name, then its arguments in pieces. A
    provider may send both at once."""

    at: int
    step_id: StepId
    message_id: MessageId
    call_id: str
    name: str | None = None
    arguments: str | None = None
    part: int = 0
    needs_approval: bool = False
    answered_by: AnsweredBy | None = None
    """Set in the piece with the call's name, unless the worker answers. Always None in older logs, where
    `needs_approval` and the run's `client_tools` decide it."""


class ToolCalls(msgspec.Struct, frozen=True, tag="calls", omit_defaults=True):
    """Whole tool calls of one answer (in runs that do not stream tokens): those that may start, or those that wait. Or
    the call that a client requested, which belongs to no step."""

    at: int
    step_id: StepId | None
    message_id: MessageId
    calls: list[ToolCall]
    part: int = 0
    needs_approval: bool = False
    answered_by: dict[str, AnsweredBy] = {}
    """By the ids of the calls that the worker does not answer; as in `ToolCallChunk`."""


class AnsweredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a complete answer."""

    call_id: str
    name: str
    arguments: str | None = None
    """The final arguments as JSON. None: they equal the joined pieces that were shown."""
    answered_by: AnsweredBy = "worker"


class Answered(msgspec.Struct, frozen=True, tag="answered", omit_defaults=True):
    """An answer of the model is complete, which ends each of its items. Its text and reasoning equal the joined pieces
    that were shown, so the event does not repeat them."""

    at: int
    step_id: StepId
    message_id: MessageId
    reason: AnswerReason
    calls: list[AnsweredCall] = []
    """All calls except `send_message`, in the model's order. The worker makes none if the answer was cut off."""
    sibling_id: MessageId | None = None
    """The answer's second message, as in `AssistantMessage`."""
    signature: str | None = None
    """The signature of the reasoning. It goes back to the provider unchanged."""


class ToolStarted(msgspec.Struct, frozen=True, tag="tool_started", omit_defaults=True):
    """The tool of a call starts now, with arguments that fit its schema. A call that is refused has no such event."""

    at: int
    step_id: StepId | None
    call_id: str
    name: str
    arguments: str = ""
    """Only for a call that a continuation makes, because the answer with the call is in the parked run's log."""


SHORT_RESULT = 1_000
"""Characters of a result that `ToolEnded` repeats. A result keeps at least as many when an answer's results are too
long together, so that both events have one text."""


class ToolEnded(msgspec.Struct, frozen=True, tag="tool_ended", omit_defaults=True):
    """The tool of a call has ended. Its result is in `ToolsReturned`, which is written when all calls of the answer
    have results. A short result is here as well; a long one is not stored twice."""

    at: int
    step_id: StepId | None
    call_id: str
    status: Literal["success", "error"]
    characters: int = 0
    """The length of the result."""
    text: str | None = None
    """The result. None: it has more than `SHORT_RESULT` characters, or parts beside its text."""


class CallDecided(msgspec.Struct, frozen=True, tag="decided", omit_defaults=True):
    """The decision of a person, or of the clock, about a call of the run that this run continues. These are the first
    events of the continuation; a result from a client has no such event, because `ToolsReturned` shows it."""

    at: int
    step_id: StepId | None
    call_id: str
    name: str
    verdict: Literal["approved", "edited", "denied"]
    """`edited`: approved with arguments that differ from the requested ones."""
    arguments: str = ""
    """The arguments with which the call is made, after the person's edits. Empty when it was denied."""
    approval_id: ApprovalId | None = None
    decided_by: str | None = None
    """The actor, as stored in the approval."""
    reason: str | None = None


class ToolsReturned(msgspec.Struct, frozen=True, tag="returns", omit_defaults=True):
    """The results of every call of one answer."""

    at: int
    step_id: StepId | None
    message_id: MessageId
    returns: list[ToolReturn]


class ChildStarted(msgspec.Struct, frozen=True, tag="child_started", omit_defaults=True):
    """A call has started a run of an agent, a child of this run."""

    at: int
    call_id: str
    run_id: RunId
    agent_id: AgentId
    awaited: bool = True
    """The call's result is the answer of that run."""


class ChildWaits(msgspec.Struct, frozen=True, tag="child_waits", omit_defaults=True):
    """A child of this run waits for a person, and so does this run."""

    at: int
    call_id: str
    waiting: WaitingCalls


class InputDelivered(msgspec.Struct, frozen=True, tag="input", omit_defaults=True):
    """A message that was injected into the running run is now in its context."""

    at: int
    message_id: MessageId
    text: str
    otid: str | None = None
    role: str = "user"
    """The role of the message. No stream shows messages of the application (`system`), which are for the model."""


class CompactionBegan(msgspec.Struct, frozen=True, tag="compaction", omit_defaults=True):
    """The model's window is full: a summary is about to replace old messages."""

    at: int
    trigger: CompactionTrigger
    context_tokens: int
    """The tokens of the request that is too long, as far as they are known."""
    context_window: int


class Compacted(msgspec.Struct, frozen=True, tag="compacted", omit_defaults=True):
    """A summary has replaced old messages, and the step continues."""

    at: int
    message_id: MessageId
    text: str
    stats: CompactionStats


class StepRestarted(msgspec.Struct, frozen=True, tag="restarted", omit_defaults=True, kw_only=True):
    """A worker continues another worker's run, and begins its step again: the streamed parts of these messages are
    void. It is the first event of that worker, or a later one if the model could not continue the shown text."""

    at: int
    attempt: int
    void_message_ids: list[MessageId] = []
    follows: Seq
    """The last valid number before this one; events after it that a reader has seen are void."""
    lost_call: bool = False
    """The previous owner was lost with its model call, whether or not readers have seen any of the answer."""
    lost_events: bool = False
    """The previous owner was lost, and so was the log in Redis: readers may have seen events after `follows` that no
    store has."""


class LogContinued(msgspec.Struct, frozen=True, tag="continued", omit_defaults=True):
    """The log continues under another fence, and nothing that was shown is void. Always the first event under that
    fence: a worker continues an answer that another worker began to show, a process ends a run whose worker is gone, or
    a worker has used up the numbers of its fence."""

    at: int
    follows: Seq
    """As in `StepRestarted`."""
    attempt: int = 0
    """Fence of the worker that continues the answer; 0 if no model is called again."""
    lost_call: bool = False
    """As in `StepRestarted`."""
    lost_events: bool = False
    """As in `StepRestarted`."""


class Gap(msgspec.Struct, frozen=True, tag="gap", omit_defaults=True):
    """Events that are truly gone: everything from `first_missing` up to this entry's own number."""

    at: int
    first_missing: Seq


class StopReason(StrEnum):
    """Why a run stopped. Rows and logs contain these values, the words of the first dialect: other words would cost a
    migration of every row and log, for no gain. Each dialect has its own words for its clients."""

    ANSWERED = "end_turn"
    ENDED_BY_RULE = "tool_rule"
    STEPS_USED_UP = "max_steps"
    TOKENS_USED_UP = "max_tokens_exceeded"
    """The tokens of the answer, or of a budget, are used up."""
    PARKED = "requires_approval"
    CANCELLED = "cancelled"
    FAILED = "error"
    MODEL_FAILED = "llm_api_error"
    INSTRUCTIONS_TOO_LONG = "context_window_overflow_in_system_prompt"


class Stopped(msgspec.Struct, frozen=True, tag="stop", omit_defaults=True):
    """Why the run stopped: a `StopReason`, or one of a newer release."""

    at: int
    reason: str


class UsageReported(msgspec.Struct, frozen=True, tag="usage", omit_defaults=True):
    """Tokens of the whole run. `estimated`: a call was cut off, so Holdfast counted a part of it."""

    at: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    context_tokens: int = 0
    step_count: int = 0
    estimated: bool = False


class Failed(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    """The run failed."""

    at: int
    error_type: str
    message: str
    detail: str | None = None
    waiting: WaitingCalls | None = None
    """The calls that the run's thread waited for, if the run failed because of them."""


class Ended(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The last event of every log."""

    at: int


class Unknown(msgspec.Struct, frozen=True):
    """An event of a newer release. This release knows only its time, and never writes one."""

    at: int = 0


ItemEvent = Answered | ToolStarted | ToolEnded | CallDecided
"""The events that only the logs of runs with `item_events` have."""

Event = (
    RunCreated
    | StatusChanged
    | ReasoningChunk
    | TextChunk
    | DataPart
    | ToolCallChunk
    | ToolCalls
    | ToolsReturned
    | ItemEvent
    | ChildStarted
    | ChildWaits
    | InputDelivered
    | CompactionBegan
    | Compacted
    | StepRestarted
    | LogContinued
    | Gap
    | Stopped
    | UsageReported
    | Failed
    | Ended
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_unknown_decoder = msgspec.json.Decoder(Unknown)


def encode(event: Event) -> bytes:
    """One log entry. JSON without line breaks, so that entries can be joined by them."""
    return _encoder.encode(event)


def answerer(of_client: Collection[str], name: str, *, asks: bool) -> AnsweredBy:
    """The actor that answers a call, where none is recorded. `of_client` has the names of the client's own tools;
    `asks`: the call needs an approval."""
    if name in of_client:
        return "client"
    return "person" if asks else "worker"


def decode(entry: bytes) -> Event | Unknown:
    """The event of a log entry. Raises nothing: an entry that this release cannot read must not end a run or a
    stream."""
    for decoder in (_decoder, _unknown_decoder):
        try:
            return decoder.decode(entry)
        except ValueError:  # msgspec's error, and that of bytes that are not UTF-8
            continue
    return Unknown()


def is_end(entry: bytes) -> bool:
    """Whether a log ends with this entry."""
    # Every batch is checked, and one entry per log is the end: most entries need no decoding.
    return b'"end"' in entry and isinstance(decode(entry), Ended)


def follows_of(event: Event | Unknown) -> Seq | None:
    """The number that the first event of an owner follows; None for every other event."""
    match event:
        case StepRestarted() | LogContinued():
            return event.follows
        case Gap():
            return Seq(event.first_missing - 1)
        case _:
            return None


def child_key(event: ChildStarted | ChildWaits) -> str:
    """Equal for two events that report the same state of a child."""
    if isinstance(event, ChildStarted):
        return f"started {event.run_id}"
    return f"waits {event.waiting.run_id}"


def tool_ended(result: ToolReturn, step_id: StepId | None, at: int) -> ToolEnded:
    """The event of a tool that has ended with this result."""
    is_short = len(result.text) <= SHORT_RESULT and result.parts is None
    text = result.text if is_short else None
    return ToolEnded(at, step_id, result.tool_call_id, result.status, len(result.text), text)
