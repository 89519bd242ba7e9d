"""The events of a run's log, one per entry. `log_writer` says how they are numbered.

Events belong to no dialect: the API turns them into a client's frames. An event carries everything that its frame
needs, so that a reader may begin anywhere. `at` is Unix time in milliseconds: two readers of one event see the same
bytes. The first event of every run is `RunCreated`; it is derived from the run and never stored.

Two releases write and read logs side by side during an upgrade. A field may be added when it has a default: readers
ignore fields that they do not know. An event whose meaning changes gets a new type: readers decode a type that they do
not know as `Unknown`, and pass its bytes on unchanged.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.approvals import WaitingCalls
from shared.domain.ids import MessageId, Seq, StepId
from shared.domain.messages import (
    AssistantMessage,
    CompactionStats,
    CompactionTrigger,
    NewMessage,
    Reasoning,
    ToolCall,
    ToolReturn,
    estimate_tokens,
)
from shared.domain.runs import Usage

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


# What readers have been shown of the step in hand, folded from the events of its log. Pure.


class BegunAnswer(msgspec.Struct, frozen=True):
    """An answer that readers have seen the beginning of, and that a model may go on with."""

    message_id: MessageId
    step_id: StepId
    text: str


class ShownStep:
    """What readers have been shown of the step in hand, folded from its events.

    The store keeps an answer that was cut off as it was shown, and counts its tokens by it. The next worker goes on
    with it where the model can, and says which messages are void where it begins the step again.
    """

    def __init__(self, events: Iterable[Event | Unknown] = ()) -> None:
        self.message_ids: dict[MessageId, None] = {}
        """Messages of which something was shown, in order, those of lost workers included."""
        self.input_ids: set[MessageId] = set()
        """Injected messages that were shown."""
        self.lost_calls = 0
        """Model calls whose workers died."""
        self.lost_text = ""
        """What those calls had shown."""
        self.first_piece_at = 0
        """When the first piece of an answer was shown, be it void since; Unix milliseconds, 0: none was."""
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
                return

    def forget_lost(self) -> None:
        """The caller has counted what lost workers had shown."""
        self.lost_calls, self.lost_text = 0, ""

    @property
    def text(self) -> str:
        """Everything that the present owner of the run has shown of the answer, reasoning and calls included; its
        tokens are counted by it."""
        calls = [name + "".join(pieces) for name, pieces in self._calls.values()]
        return "".join([*self._thought, *self._text[self._earlier :], *calls])

    @property
    def beginning(self) -> BegunAnswer | None:
        """What was shown of the answer, if a model can be given that as its beginning: text alone, with nothing in the
        conversation since."""
        if self.message_id is None or self._step_id is None or self._is_interrupted:
            return None
        text = "".join(self._text)
        is_text_alone = text.strip() and not self._thought and not self._calls
        return BegunAnswer(self.message_id, self._step_id, text) if is_text_alone else None

    def partial_answer(self, *, cut_by: Literal["cancel", "error"], model: str, now: datetime) -> NewMessage | None:
        """The answer that was being streamed when the run was cut off.

        None when no text was shown: no provider takes reasoning back that was cut off, and calls that the model was
        still writing never ran. The run's log has them.
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
        """The worker that has shown this is gone, and its call of the model with it. One that has shown nothing has
        asked all the same: only moments lie between a claim, or a checkpoint, and the model call behind it."""
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
        """Of the answer, when something of it was shown that is not void."""
        self._step_id: StepId | None = None

    def _note(self, event: TextChunk | ReasoningChunk) -> None:
        """Text and reasoning have the answer's own id; a call may have that of its second part."""
        self.message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None
        self.first_piece_at = self.first_piece_at or event.at

    def _note_call(self, event: ToolCallChunk | ToolCalls) -> None:
        if event.step_id is not None:  # else no model asked for it
            self.first_piece_at = self.first_piece_at or event.at
        if self.message_id is None:
            self.message_id, self._step_id = event.message_id, event.step_id
        self.message_ids[event.message_id] = None


def lost_usage(calls: int, asked: str, shown: str) -> Usage:
    """About what calls have used whose worker died. They were paid for too: each had about the prompt `asked`, which is
    that of the next call, or would be."""
    if not calls:
        return Usage()
    prompt = estimate_tokens(asked)
    completion = estimate_tokens(shown)
    return Usage(
        prompt_tokens=calls * prompt,
        completion_tokens=completion,
        context_tokens=prompt + completion,
        estimated=True,
    )
