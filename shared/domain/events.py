"""What a run's log says: one event per entry, numbered 1, 2, 3 …

Dialect-free: the API turns events into a client's frames. An event carries everything that its frame needs, so that a
reader may begin anywhere. `at` is Unix time in milliseconds: two readers of one event see the same bytes.
The first event of every run is `RunCreated`; it is derived from the run itself and never stored.
"""

from typing import Literal

import msgspec

from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import ToolCall, ToolReturn

LOG_VERSION = 1
"""Version of the entries. A reader refuses entries of a version that it does not know."""

FIRST_STORED_SEQ = Seq(2)
"""Event 1 is `RunCreated`, made from the run when it is read."""


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
    """Whole tool calls of one answer (runs not made for tokens): those that may start, or those that wait."""

    at: int
    step_id: StepId
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


class StepRestarted(msgspec.Struct, frozen=True, tag="restarted", omit_defaults=True):
    """The step begins again on another worker: what was streamed of these messages is void."""

    at: int
    attempt: int
    void_message_ids: list[MessageId] = []


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


class Ended(msgspec.Struct, frozen=True, tag="end", omit_defaults=True):
    """The last event of every log."""

    at: int


Event = (
    RunCreated
    | StatusChanged
    | ReasoningChunk
    | TextChunk
    | ToolCallChunk
    | ToolCalls
    | ToolsReturned
    | InputDelivered
    | StepRestarted
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


def encode(event: Event) -> bytes:
    """One log entry. JSON without line breaks, so that entries can be joined by them."""
    return _encoder.encode(event)


def decode(entry: bytes) -> Event:
    """The event of a log entry. Raises `msgspec.ValidationError` on an entry of another version."""
    return _decoder.decode(entry)
