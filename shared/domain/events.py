"""The events of a run's log, one per entry. `log_writer` says how they are numbered.

Events belong to no dialect: the API turns them into a client's frames. An event carries everything that its frame
needs, so that a reader may begin anywhere. `at` is Unix time in milliseconds: two readers of one event see the same
bytes. The first event of every run is `RunCreated`; it is derived from the run and never stored.

Two releases write and read logs side by side during an upgrade. A field may be added when it has a default: readers
ignore fields that they do not know. An event whose meaning changes gets a new type: readers decode a type that they do
not know as `Unknown`, and pass its bytes on unchanged.
"""

from typing import Literal

import msgspec

from shared.domain.approvals import WaitingCalls
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import CompactionStats, CompactionTrigger, ToolCall, ToolReturn

FIRST_SEQ = Seq(1)
"""The number of `RunCreated`, which is made from the run when it is read."""


class RunCreated(msgspec.Struct, frozen=True, tag="created", omit_defaults=True):
    """The run exists. Always event 1."""

    at: int


class StatusChanged(msgspec.Struct, frozen=True, tag="status", omit_defaults=True):
    """The run's status changed. Shown to readers who asked for status events."""

    at: int
    status: str
    cause: str | None = None


class ReasoningChunk(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """Reasoning of the model: a piece of it in a run made for tokens, else all of it."""

    at: int
    step_id: StepId
    message_id: MessageId
    text: str
    part: int = 0
    signature: str | None = None


class TextChunk(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Text of the model: a piece of it in a run made for tokens, else all of it."""

    at: int
    step_id: StepId
    message_id: MessageId
    text: str
    part: int = 0


class ToolCallChunk(msgspec.Struct, frozen=True, tag="call_chunk", omit_defaults=True):
    """A piece of a tool call (runs made for tokens only): first its name, then its arguments in pieces."""

    at: int
    step_id: StepId
    message_id: MessageId
    call_id: str
    name: str | None = None
    arguments: str | None = None
    part: int = 0
    needs_approval: bool = False


class ToolCalls(msgspec.Struct, frozen=True, tag="calls", omit_defaults=True):
    """Whole tool calls of one answer (runs not made for tokens): those that may start, or those that wait. Or the call
    that a client asked for, which is of no step."""

    at: int
    step_id: StepId | None
    message_id: MessageId
    calls: list[ToolCall]
    part: int = 0
    needs_approval: bool = False


class ToolsReturned(msgspec.Struct, frozen=True, tag="returns", omit_defaults=True):
    """The results of every call of one answer."""

    at: int
    step_id: StepId | None
    message_id: MessageId
    returns: list[ToolReturn]


class InputDelivered(msgspec.Struct, frozen=True, tag="input", omit_defaults=True):
    """A message that was injected into the running run is now in its context."""

    at: int
    message_id: MessageId
    text: str
    otid: str | None = None


class CompactionBegan(msgspec.Struct, frozen=True, tag="compaction", omit_defaults=True):
    """The model's window is full: a summary is about to take the place of old messages."""

    at: int
    trigger: CompactionTrigger
    context_tokens: int
    """Of the request that is too long, as far as it is known."""
    context_window: int


class Compacted(msgspec.Struct, frozen=True, tag="compacted", omit_defaults=True):
    """A summary has taken the place of old messages, and the step goes on."""

    at: int
    message_id: MessageId
    text: str
    stats: CompactionStats


class StepRestarted(msgspec.Struct, frozen=True, tag="restarted", omit_defaults=True, kw_only=True):
    """A worker continues a run that another one began, and begins its step again: what was streamed of these messages
    is void. The first event of that worker, or a later one when the model could not go on with what was shown."""

    at: int
    attempt: int
    void_message_ids: list[MessageId] = []
    follows: Seq
    """The last number before this one that counts; what a reader has seen after it is void."""
    lost_call: bool = False
    """The owner before was lost, and so was its call of the model, whether or not anything was shown of the answer."""


class LogContinued(msgspec.Struct, frozen=True, tag="continued", omit_defaults=True):
    """The log continues under another fence, and nothing that was shown is void. Always the first event under that
    fence: a worker goes on with an answer that another one began to show, a process ends a run whose worker is gone, or
    a worker has used up the numbers of its fence."""

    at: int
    follows: Seq
    """As in `StepRestarted`."""
    attempt: int = 0
    """Fence of the worker that goes on with the answer; 0 where no model is asked again."""
    lost_call: bool = False
    """As in `StepRestarted`."""


class Gap(msgspec.Struct, frozen=True, tag="gap", omit_defaults=True):
    """Events that are truly gone: everything from `first_missing` up to this entry's own number."""

    at: int
    first_missing: Seq


class Stopped(msgspec.Struct, frozen=True, tag="stop", omit_defaults=True):
    """Why the run stopped, in the wire's words (`end_turn`, `cancelled`, `max_steps` …)."""

    at: int
    reason: str


class UsageReported(msgspec.Struct, frozen=True, tag="usage", omit_defaults=True):
    """Tokens of the whole run. `estimated`: a call was cut off, so part of it was counted by us."""

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
    """What the run's thread waited for, when that is why it failed."""


class Ended(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The last event of every log."""

    at: int


class Unknown(msgspec.Struct, frozen=True):
    """An event of a newer release. This release knows only its time, and never writes one."""

    at: int = 0


Event = (
    RunCreated
    | StatusChanged
    | ReasoningChunk
    | TextChunk
    | ToolCallChunk
    | ToolCalls
    | ToolsReturned
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

StopReason = Literal[
    "end_turn", "error", "llm_api_error", "invalid_llm_response", "max_steps", "max_tokens_exceeded", "tool_rule",
    "cancelled", "requires_approval", "context_window_overflow_in_system_prompt",
]  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_unknown_decoder = msgspec.json.Decoder(Unknown)


def encode(event: Event) -> bytes:
    """One log entry. JSON without line breaks, so that entries can be joined by them."""
    return _encoder.encode(event)


def decode(entry: bytes) -> Event | Unknown:
    """The event of a log entry. Raises nothing: an entry that this release cannot read must not end a run or a
    stream."""
    for decoder in (_decoder, _unknown_decoder):
        try:
            return decoder.decode(entry)
        except ValueError:  # msgspec's own, and that of bytes that are no text
            continue
    return Unknown()


def is_end(entry: bytes) -> bool:
    """Whether a log ends with this entry."""
    # Asked of every batch, and true of one entry per log: most are not worth decoding.
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
