"""A model's answer while it arrives: its pieces become events as they come, and the whole answer becomes a message."""

import asyncio
from collections import defaultdict
from typing import cast

import msgspec
import structlog
from msgspec.structs import replace
from pydantic_core import from_json

from shared.domain.events import (
    Answered,
    AnsweredBy,
    AnsweredCall,
    AnswerReason,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
)
from shared.domain.ids import MessageId
from shared.domain.messages import AssistantMessage, NewMessage, Reasoning, ToolCall
from shared.domain.settling import BegunAnswer
from shared.domain.tool_catalog import REWRITING
from shared.domain.tools import filled_arguments, filled_in
from worker.bodies.agent_context import AgentContext
from worker.models.provider import (
    AttemptFailed,
    CallArguments,
    CallFinished,
    CallStarted,
    ContinuedText,
    Finished,
    ModelEvent,
    Text,
    Thought,
)
from worker.run.observation import ObservedModelCall
from worker.run.progress import StepInHand

# Finds the new part of an answer's text, if an agent speaks by a call of `send_message`, whose arguments the model is
# still writing. Pure.


def said_so_far(arguments: str) -> str:
    """The text of a `send_message` call, from JSON arguments that may be incomplete."""
    try:
        given: object = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    message = cast("dict[str, object]", given).get("message") if isinstance(given, dict) else None
    return message if isinstance(message, str) else ""


class Speech:
    """A call by which the agent speaks, while the model is still writing it."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._shown = 0

    def more(self, arguments: str) -> str:
        """The new text after these further arguments."""
        self._arguments.append(arguments)
        text = said_so_far("".join(self._arguments))
        new = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return new


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


PIECES_AT_ONCE = 100
"""Pieces of an answer that one turn of the event loop handles: some milliseconds."""


CUT_OFF = ("length", "content_filter")
"""Finish reasons of incomplete answers."""


class Answer(msgspec.Struct, frozen=True):
    """A complete answer of the model."""

    message: NewMessage
    calls: list[ToolCall]
    reason: AnswerReason


class AnswerDraft:
    """An answer while it arrives.

    The parts of an answer share one message id. If some calls wait for a person and others do not, the kind that comes
    second gets another id, because clients see it as another message.
    """

    def __init__(
        self,
        context: AgentContext,
        in_hand: StepInHand,
        beginning: BegunAnswer | None,
        continued: ContinuedText | None,
        observed: ObservedModelCall,
    ) -> None:
        self._context = context
        self._in_hand = in_hand
        self._observed = observed
        self._step_id = in_hand.step.id
        self._by_tokens = context.run.options.stream_tokens
        self._id: MessageId = context.handle.ids.message() if beginning is None else beginning.message_id
        self._sibling: MessageId | None = None
        self._first_kind: bool | None = None
        self._parts: dict[str, int] = {} if beginning is None else {"text": 0}
        self._text: list[str] = [] if beginning is None else [beginning.text]
        self._continued = continued
        self._thought: list[str] = []
        self._signature: str | None = None
        self._open: dict[int, tuple[str, str]] = {}
        self._finished_calls: dict[int, ToolCall] = {}
        self._withheld: set[str] = set()
        self._written: defaultdict[str, list[str]] = defaultdict(list)
        """The part of each call's arguments that readers have seen."""
        self._speech: defaultdict[int, Speech] = defaultdict(Speech)
        self._finished: Finished | None = None
        self._taken = 0
        self._waiting: dict[str, bool] = {}
        """Whether calls of a tool wait; cached, because an agent may have a thousand rules, and an answer thousands of
        pieces."""

    def take(self, event: ModelEvent) -> None:
        """Handles the next piece. Shows it at once if the run streams tokens."""
        self._taken += 1
        if self._observed.is_silent:
            self._context.observation.hear(self._observed, event)
        match event:
            case Text():
                self._take_text(event.text if self._continued is None else self._continued.more(event.text))
            case Thought():
                self._take_thought(event)
            case CallStarted() | CallArguments():
                self._take_call_piece(event)
            case CallFinished():
                self._finished_calls[event.index] = self._whole_call(event)
            case Finished():
                self._take_text("" if self._continued is None else self._continued.rest())
                self._finished = event
            case AttemptFailed():
                log.info("model_call_retried", attempt=event.attempt, wait_s=event.wait, error=event.error)

    async def pause(self) -> None:
        """Lets other tasks run now and then: a server may send a whole answer at once."""
        if self._taken % PIECES_AT_ONCE == 0:
            await asyncio.sleep(0)

    def _take_text(self, text: str) -> None:
        if text:
            self._text.append(text)
            if self._by_tokens:
                self._show_text(text)

    def _take_thought(self, event: Thought) -> None:
        self._signature = event.signature or self._signature
        self._thought.append(event.text)
        if self._by_tokens and event.text:
            self._show_thought(event.text, None)

    def _take_call_piece(self, event: CallStarted | CallArguments) -> None:
        if isinstance(event, CallStarted):
            self._open[event.index] = (event.call_id, event.name)
        if not self._by_tokens:
            return
        call_id, name = self._open[event.index]
        if self._speaks(name):
            if isinstance(event, CallArguments):
                self._show_text(self._speech[event.index].more(event.text), "speech")
        elif isinstance(event, CallStarted):
            if not event.has_arguments or self._is_filled_in(name):
                self._show_call(call_id, tool=name, name=name)
        elif not self._is_filled_in(name):
            first = None if call_id in self._written else name
            self._show_call(call_id, tool=name, name=first, arguments=event.text)

    def _whole_call(self, event: CallFinished) -> ToolCall:
        if self._waits(event.name):
            if self._is_filled_in(event.name):
                self._withheld.add(event.call_id)
            return self._waiting_call(event.call_id, event.name, event.arguments)
        speech = said_so_far(event.arguments) if self._speaks(event.name) else None
        return ToolCall(event.call_id, event.name, event.arguments, speech=speech or None)

    def _waiting_call(self, call_id: str, name: str, written: str) -> ToolCall:
        """A waiting call as a person sees it: with the arguments that it will run with."""
        context = self._context
        arguments = filled_arguments(context.agent.tool_rules, name, context.progress.turn, written)
        tool = context.tools.get(name)
        return ToolCall(
            call_id, name, arguments, needs_approval=True, tool_version=None if tool is None else tool.version
        )

    def _obey_gates(self) -> set[str]:
        """Makes calls wait whose approval was enabled during the answer. Returns their ids."""
        self._waiting.clear()
        late = {
            index: self._waiting_call(call.id, call.name, call.arguments)
            for index, call in self._finished_calls.items()
            if not call.needs_approval and self._waits(call.name)
        }
        self._finished_calls |= late
        return {call.id for call in late.values()}

    def _need_no_approval(self) -> None:
        """Makes the calls of an incomplete answer need no approval: they are not made. Pieces that readers have
        already seen stay."""
        self._finished_calls = {
            index: replace(call, needs_approval=False) for index, call in self._finished_calls.items()
        }

    def _waits(self, name: str) -> bool:
        known = self._waiting.get(name)
        if known is None:
            known = self._waiting[name] = waits(self._context, name)
        return known

    def _is_filled_in(self, name: str) -> bool:
        """Whether a person approves arguments that a rule completes. Readers then see them only when they are
        complete."""
        context = self._context
        return self._waits(name) and bool(filled_in(context.agent.tool_rules, name, context.progress.turn))

    def _speaks(self, name: str) -> bool:
        return self._context.speaks_by(name) and not self._waits(name)

    def finish(self) -> Answer:
        """The complete answer. Shows it now if the run streams steps."""
        finished = self._finished
        if finished is None:
            raise AssertionError("a model's stream ended without Finished")
        late = self._obey_gates()
        if finished.reason in CUT_OFF:
            self._need_no_approval()
        if self._by_tokens:
            self._show_rest(late)
        else:
            self._show_whole()
        if self._context.run.options.item_events:
            self._show_end(finished.reason)
        context, calls = self._context, self._calls
        rewrites = any(call.name in REWRITING for call in calls)
        used = context.handle.account.count(context.model, finished.usage)
        self._in_hand.finish(used)
        body = AssistantMessage(
            text="".join(self._text),
            reasoning=Reasoning("".join(self._thought), self._signature) if self._thought else None,
            tool_calls=calls,
            model=context.model,
            # The provider's own form of a continued answer contains only the rest of it.
            provider_response=finished.provider_response if self._continued is None else None,
            seen_memory=dict(context.progress.seen_memory) if rewrites else {},
            sibling_id=self._sibling,
            sibling_holds=None if self._sibling is None else ("calls" if self._first_kind else "approvals"),
        )
        self._observed.finish(used, finished.reason, body)
        message = NewMessage(id=self._id, created_at=context.handle.clock.now(), body=body, step_id=self._step_id)
        return Answer(message, calls, finished.reason)

    @property
    def has_calls(self) -> bool:
        """Whether the answer so far contains calls."""
        return bool(self._finished_calls)

    @property
    def _calls(self) -> list[ToolCall]:
        # Interleaved deltas can finish a call twice: the last one counts.
        return list(self._finished_calls.values())

    def _show_text(self, text: str, kind: str = "text") -> None:
        if text:
            self._context.emit(TextChunk(self._context.at, self._step_id, self._id, text, self._part(kind)))

    def _show_thought(self, text: str, signature: str | None) -> None:
        self._context.emit(
            ReasoningChunk(self._context.at, self._step_id, self._id, text, self._part("reasoning"), signature)
        )

    def _show_call(self, call_id: str, *, tool: str, name: str | None = None, arguments: str | None = None) -> None:
        needs_approval = self._waits(tool)
        self._written[call_id].append(arguments or "")
        self._context.emit(
            ToolCallChunk(
                self._context.at,
                self._step_id,
                self._id_for(needs_approval),
                call_id,
                name,
                arguments,
                self._part("approvals" if needs_approval else "calls"),
                needs_approval,
                answered_by(self._context, tool, needs_approval=True) if needs_approval and name else None,
            )
        )

    def _show_rest(self, late: set[str]) -> None:
        """Shows the parts that the pieces have not shown: arguments that a rule has completed, and calls that wait
        after all."""
        for call in self._calls:
            if call.id in late:
                self._show_call(call.id, tool=call.name, name=call.name, arguments=call.arguments)
            elif call.id in self._withheld:
                self._show_call(call.id, tool=call.name, arguments=call.arguments)

    def _show_whole(self) -> None:
        if self._thought:
            self._show_thought("".join(self._thought), self._signature)
        self._show_text("".join(self._text))
        for call in self._calls:
            self._show_text(call.speech or "", "speech")
        for needs_approval in (False, True):
            calls = [call for call in self._calls if call.needs_approval is needs_approval and call.speech is None]
            if calls:
                part = self._part("approvals" if needs_approval else "calls")
                message_id = self._id_for(needs_approval)
                answerers: dict[str, AnsweredBy] = {}
                if needs_approval:
                    answerers = {call.id: self._answered_by(call) for call in calls}
                self._written.update({call.id: [call.arguments] for call in calls})
                self._context.emit(
                    ToolCalls(self._context.at, self._step_id, message_id, calls, part, needs_approval, answerers)
                )

    def _show_end(self, reason: AnswerReason) -> None:
        """Marks the answer as complete, with the final arguments of its calls."""
        calls = [
            AnsweredCall(
                call.id,
                call.name,
                None if "".join(self._written.get(call.id, ())) == call.arguments else call.arguments,
                self._answered_by(call),
            )
            for call in self._calls
            if call.speech is None
        ]
        at, sibling, signature = self._context.at, self._sibling, self._signature
        self._context.emit(Answered(at, self._step_id, self._id, reason, calls, sibling, signature))

    def _answered_by(self, call: ToolCall) -> AnsweredBy:
        return answered_by(self._context, call.name, needs_approval=call.needs_approval)

    def _id_for(self, needs_approval: bool) -> MessageId:
        if self._first_kind is None:
            self._first_kind = needs_approval
        if self._first_kind is needs_approval:
            return self._id
        if self._sibling is None:
            self._sibling = self._context.handle.ids.message()
        return self._sibling

    def _part(self, kind: str) -> int:
        return self._parts.setdefault(kind, len(self._parts))


def waits(context: AgentContext, name: str) -> bool:
    """Whether a call of this tool waits for a person or for the client."""
    if not context.permits(name):
        return False
    if any(tool.name == name for tool in context.run.options.client_tools):
        return True
    return context.asks_a_person(name) and name in context.next_calls().allowed


def answered_by(context: AgentContext, name: str, *, needs_approval: bool) -> AnsweredBy:
    """Which side returns the result of a call of this tool."""
    if not needs_approval:
        return "worker"
    is_clients = any(tool.name == name for tool in context.run.options.client_tools)
    return "client" if is_clients else "person"
