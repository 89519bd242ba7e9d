"""The view of a body for clients and later turns: its text, and its calls as tool calls with results.

A message of the history contains the text up to a call, and the call. Parallel calls are shown one after the other,
because results follow every answer of the history: the second call is shown with its result, when the first is over.
Calls inside a call are only in the journal, unless they wait for a person or a client. The outer call is then shown
twice: first with a result that says that it waits, and after the decision with its return value.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from shared.domain.events import (
    Answered,
    AnsweredBy,
    AnsweredCall,
    AnswerReason,
    CallDecided,
    DataPart,
    ReasoningChunk,
    TextChunk,
    ToolCallChunk,
    ToolCalls,
    ToolsReturned,
    ToolStarted,
    tool_ended,
)
from shared.domain.ids import StepId
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
from shared.domain.settling import open_calls, unfinished_return
from shared.json_limits import printable
from worker.run.run_handle import RunHandle

WAITS_FOR_A_PERSON = "It waits for a decision, and goes on when there is one."
"""The result in the history of a call that asks a person before it ends."""


class ShownTurn:
    """The stored part of the turn, and the current answer of the body."""

    def __init__(self, handle: RunHandle, turn: Sequence[Message], *, known: set[str]) -> None:
        self._handle = handle
        self._options = handle.run.options
        self._steps = {
            call.id: message.step_id
            for message in turn
            if isinstance(message.body, AssistantMessage)
            for call in message.body.tool_calls
        }
        open_ = open_calls(turn)
        self._open = {} if open_ is None else {call.id: call for call in open_.calls}
        self._results: dict[str, ToolReturn] = {}
        """Results that arrived while other calls are open: the history gets all results of a message together."""
        self._decisions = {
            one.tool_call_id: one
            for message in turn
            if isinstance(message.body, ApprovalResponse)
            for one in message.body.decisions
        }
        self._paused = {
            one.tool_call_id
            for message in turn
            if isinstance(message.body, ToolReturns)
            for one in message.body.returns
            if one.text == WAITS_FOR_A_PERSON
        }
        self._to_come = known & self._steps.keys()
        self._held: list[Callable[[], None]] = []
        self._late: list[tuple[ToolCall, ToolReturn]] = []
        self.has_spoken = False
        """Whether the body has emitted text since its last tool."""
        self._renew()

    def _renew(self) -> None:
        self._id, self._step_id = self._handle.ids.message(), self._handle.ids.step()
        self._text: list[str] = []
        self._thought: list[str] = []

    def decision_on(self, call_id: str) -> Decision | None:
        """Returns the decision of a person or of the client on a call that waited."""
        return self._decisions.get(call_id)

    def has_result(self, call_id: str) -> bool:
        """Whether the history contains the call and its result."""
        shown = _again(call_id) if call_id in self._paused else call_id
        return shown in self._steps and shown not in self._open

    def step_of(self, call_id: str) -> StepId | None:
        """Returns the step of a call in the history."""
        return self._steps.get(call_id)

    @property
    def step_in_hand(self) -> StepId:
        """The step of the body's current answer."""
        return self._step_id

    def asked_version(self, call_id: str) -> str | None:
        """Returns the version of the attached tool that a person was asked to approve."""
        call = self._open.get(call_id)
        return None if call is None else call.tool_version

    def decided(self, call: ToolCall, decision: Decision, arguments: str, decided_by: str | None) -> None:
        """Shows a decision, once. `arguments`: as the person has approved them."""
        handle = self._handle
        if not self._options.item_events or call.id in handle.shown.decided_calls:
            return
        verdict = "denied" if not decision.approve else "edited" if decision.edited_arguments else "approved"
        handle.emit(
            CallDecided(
                at=handle.at,
                step_id=self.step_of(call.id),
                call_id=call.id,
                name=call.name,
                verdict=verdict,
                arguments=arguments if decision.approve else "",
                decided_by=decided_by,
                reason=decision.reason,
            )
        )

    def started(self, call: ToolCall) -> None:
        """Shows that a call starts that has waited for a person."""
        if self._options.item_events:
            self._handle.emit(ToolStarted(self._handle.at, self._steps[call.id], call.id, call.name))

    @property
    def is_between_calls(self) -> bool:
        """Whether every call in the history has its result."""
        return not self._open

    def say(self, text: str) -> None:
        """Adds text of the body. Text before a call in the history is in the history already."""
        self.has_spoken = True
        if self._to_come:
            self._held.append(partial(self.say, text))
            return
        self._text.append(text)
        if self._options.stream_tokens:
            self._handle.emit(TextChunk(self._handle.at, self._step_id, self._id, text))

    def think(self, text: str) -> None:
        """Adds reasoning of the body. Reasoning before a call in the history is in the history already."""
        if self._to_come:
            self._held.append(partial(self.think, text))
            return
        self._thought.append(text)
        if self._options.stream_tokens:
            self._handle.emit(ReasoningChunk(self._handle.at, self._step_id, self._id, text))

    def show(self, frame: Mapping[str, Any]) -> None:
        """Shows a frame of the body with text, reasoning or data."""
        match frame["t"]:
            case "text":
                self.say(frame["text"])
            case "reasoning":
                self.think(frame["text"])
            case _:
                self._show_data(frame["name"], frame["data"])

    def _show_data(self, name: str, value: Any) -> None:
        """Shows data. Data before a call in the history was shown when that call began."""
        if self._to_come:
            self._held.append(partial(self._show_data, name, value))
            return
        self._handle.emit(DataPart(self._handle.at, self._step_id, self._id, name, value))

    def come_to(self, call_id: str, *, is_known: bool) -> None:
        """The body has come to a call: one in the history, one that began earlier and is not shown yet (`is_known`), or
        a new one."""
        self.has_spoken = False
        if call_id in self._steps:
            self._to_come.discard(call_id)
            self._held.clear()
        elif not is_known:
            self.forget_rest()

    def forget_rest(self) -> None:
        """The body will not come to the other calls in the history. Shows its output since the last call."""
        self._to_come.clear()
        held, self._held = self._held, []
        for show in held:
            show()

    def asking(self, calls: Sequence[ToolCall], by: Mapping[str, AnsweredBy] | None = None) -> NewMessage:
        """Shows calls that wait or start together. Returns the message for the history, with the text before them. `by`
        names the side that answers each waiting call, by call ids."""
        self._show_rest()
        self._show_calls(calls, by or {})
        shown = [AnsweredCall(call.id, call.name, None, (by or {}).get(call.id, "worker")) for call in calls]
        message = self._message([*calls], "tool_calls", shown)
        for call in calls:
            self._open[call.id], self._steps[call.id] = call, self._step_id
            if not by and self._options.item_events:
                self._handle.emit(ToolStarted(self._handle.at, self._step_id, call.id, call.name))
        self._renew()
        return message

    def answered(self, call: ToolCall, result: ToolReturn) -> list[NewMessage]:
        """Shows a result. Returns the messages for the history: empty while another call is open there."""
        if call.id in self._open:
            self._results[call.id] = result
            return self._closing() if self._results.keys() == self._open.keys() else []
        if call.id in self._paused:
            call = msgspec.structs.replace(call, id=_again(call.id))
            result = msgspec.structs.replace(result, tool_call_id=call.id)
        self._late.append((call, result))
        return [] if self._open else self._messages_of_late()

    def pausing(self, scopes: Collection[str]) -> list[NewMessage]:
        """Ends the open calls, because a person is asked next, or the body has ended. The calls of `scopes` continue
        after the decision, and are shown again with their return values. Returns the messages for the history."""
        for call in self._open.values():
            if call.id in scopes:
                self._paused.add(call.id)
                waits = ToolReturn(call.id, call.name, "success", WAITS_FOR_A_PERSON, is_text=True)
                self._results[call.id] = waits
            elif call.id not in self._results:
                self._results[call.id] = unfinished_return(call, was_started=False, why="error")
        return self._closing() if self._open else []

    def _closing(self) -> list[NewMessage]:
        results = [self._results[call_id] for call_id in self._open]
        self._open.clear()
        self._results.clear()
        return [self._returns(results), *self._messages_of_late()]

    def ending(self) -> list[NewMessage]:
        """Shows the end of the last answer. Returns its message, if there is text or reasoning."""
        self.forget_rest()
        if not self._text and not self._thought:
            return []
        self._show_rest()
        return [self._message([], "stop", [])]

    def _messages_of_late(self) -> list[NewMessage]:
        late, self._late = self._late, []
        messages: list[NewMessage] = []
        for call, result in late:
            messages.append(self.asking([call]))
            del self._open[call.id]
            messages.append(self._returns([result]))
        return messages

    def _returns(self, results: list[ToolReturn]) -> NewMessage:
        handle, step_id = self._handle, self._steps[results[0].tool_call_id]
        if self._options.item_events:
            for result in results:
                handle.emit(tool_ended(result, step_id, handle.at))
        message = self._new(ToolReturns(results), step_id)
        handle.emit(ToolsReturned(handle.at, step_id, message.id, results))
        return message

    def _show_rest(self) -> None:
        """Shows text as a whole where tokens are not streamed."""
        if self._options.stream_tokens:
            return
        if thought := "".join(self._thought):
            self._handle.emit(ReasoningChunk(self._handle.at, self._step_id, self._id, thought))
        if text := "".join(self._text):
            self._handle.emit(TextChunk(self._handle.at, self._step_id, self._id, text))

    def _show_calls(self, calls: Sequence[ToolCall], by: Mapping[str, AnsweredBy]) -> None:
        handle, waits = self._handle, bool(by)
        if not self._options.stream_tokens:
            handle.emit(ToolCalls(handle.at, self._step_id, self._id, [*calls], 1, waits, {**by}))
            return
        for call in calls:
            part = (self._step_id, self._id, call.id)
            handle.emit(
                ToolCallChunk(handle.at, *part, call.name, None, 1, waits, by.get(call.id)),
                ToolCallChunk(handle.at, *part, None, call.arguments, 1, waits),
            )

    def _message(self, calls: list[ToolCall], reason: AnswerReason, shown: list[AnsweredCall]) -> NewMessage:
        handle, thought = self._handle, "".join(self._thought)
        body = AssistantMessage(
            text="".join(self._text),
            reasoning=Reasoning(thought) if thought else None,
            tool_calls=calls,
            model=f"code/{self._options.code_agent}",
        )
        if self._options.item_events:
            handle.emit(Answered(handle.at, self._step_id, self._id, reason, shown))
        return NewMessage(id=self._id, created_at=handle.clock.now(), body=body, step_id=self._step_id)

    def _new(self, body: ToolReturns, step_id: StepId | None) -> NewMessage:
        handle = self._handle
        return NewMessage(id=handle.ids.message(), created_at=handle.clock.now(), body=body, step_id=step_id)


def _again(call_id: str) -> str:
    """Returns the id of a call that is shown a second time: two calls of a history may not have the same id."""
    return f"{call_id}-2"


def result_of(call: ToolCall, value: Any) -> ToolReturn:
    """Returns the result of a call that has returned this value."""
    is_text = isinstance(value, str)
    text = printable(value if is_text else json.dumps(value, ensure_ascii=False))
    return ToolReturn(call.id, call.name, "success", text, is_text=is_text)


def failure_of(call: ToolCall, error: dict[str, str]) -> ToolReturn:
    """Returns the result of a call that has raised."""
    return ToolReturn(call.id, call.name, "error", f"Error: {error['type']}: {error['text']}")
