"""What readers have been shown of the step in hand, folded from the events of its log. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from shared.domain.events import (
    Compacted,
    Event,
    InputDelivered,
    LogContinued,
    ReasoningChunk,
    StepRestarted,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    Unknown,
)
from shared.domain.ids import MessageId, StepId
from shared.domain.messages import AssistantMessage, NewMessage, Reasoning, estimate_tokens
from shared.domain.runs import Usage


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
