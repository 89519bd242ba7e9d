"""The smallest reader of item events: it follows a log by the promises of `shared/domain/events.py` to folds, and
reports where the log breaks a promise."""

from collections.abc import Iterable

from shared.domain import events
from shared.domain.ids import MessageId

Piece = events.TextChunk | events.ReasoningChunk | events.ToolCallChunk | events.ToolCalls
Key = tuple[str, str, str]
"""A kind of item, and its identity: message and part, or step and call."""

WHOLE = frozenset({"end_turn", "tool_rule", "max_steps", "max_tokens_exceeded", "requires_approval"})
"""The stop reasons of a run whose last answer was complete."""


class FoldedItems:
    """The items of a log so far."""

    def __init__(self, log: Iterable[events.Event | events.Unknown] = ()) -> None:
        self.open: dict[Key, list[str]] = {}
        self.closed: dict[Key, str] = {}
        """With their last words."""
        self.void: set[Key] = set()
        self.cut_off: set[Key] = set()
        self.answered_by: dict[str, events.AnsweredBy] = {}
        """By the ids of calls, as they were opened."""
        self.unanswered: set[str] = set()
        """Calls of whole answers that have no result yet."""
        self.running: set[str] = set()
        self.results: dict[str, str] = {}
        self.decided: dict[str, events.CallDecided] = {}
        self.broken: list[str] = []
        """The promises that the log has broken."""
        self._messages: dict[Key, MessageId] = {}
        self._stop_reason = ""
        self._has_gap = self._has_ended = False
        for event in log:
            self.take(event)

    def take(self, event: events.Event | events.Unknown) -> None:
        """Takes the next event of the log."""
        self._hold(not self._has_ended, "an event behind the end", event)
        match event:
            case events.TextChunk() | events.ReasoningChunk() | events.ToolCallChunk() | events.ToolCalls():
                self._take_piece(event)
            case events.Answered():
                self._take_end(event)
            case events.StepRestarted():
                self.void |= {key for key, message in self._messages.items() if message in event.void_message_ids}
                self.open.clear()
                self.running.clear()
            case events.Gap():
                self._has_gap = True
            case events.Stopped():
                self._stop_reason = event.reason
            case events.Ended():
                self._end()
            case _:
                self._take_tool(event)

    def _take_piece(self, event: Piece) -> None:
        match event:
            case events.TextChunk(text=text):
                self._grow(("text", event.message_id, str(event.part)), text, event)
            case events.ReasoningChunk(text=text):
                self._grow(("reasoning", event.message_id, str(event.part)), text, event)
            case events.ToolCallChunk(call_id=call_id):
                if event.answered_by is not None:
                    self.answered_by[call_id] = event.answered_by
                self._grow(("call", str(event.step_id), call_id), event.arguments or "", event)
            case events.ToolCalls(calls=calls):
                self.answered_by |= event.answered_by
                for call in calls:
                    key = ("call", str(event.step_id), call.id)
                    self._grow(key, call.arguments, event)
                    if event.step_id is None:  # a client asked for it, and no answer ends
                        self._close(key, call.arguments)
                        self.unanswered.add(call.id)

    def _grow(self, key: Key, text: str, event: Piece) -> None:
        self._hold(key not in self.closed, "a piece of an item that is closed", event)
        self._messages.setdefault(key, event.message_id)
        self.open.setdefault(key, []).append(text)

    def _close(self, key: Key, text: str) -> None:
        self.open.pop(key, None)
        self.closed[key] = text

    def _take_end(self, event: events.Answered) -> None:
        messages = {event.message_id, event.sibling_id}
        for key, pieces in list(self.open.items()):
            self._hold(self._messages[key] in messages, "an open item of another answer", event)
            if key[0] != "call":
                self._close(key, "".join(pieces))
        for call in event.calls:
            key = ("call", event.step_id, call.call_id)
            self._hold(key not in self.closed, "a call that was closed before", event)
            shown = "".join(self.open.get(key, ()))
            self._close(key, shown if call.arguments is None else call.arguments)
            self._hold(self.answered_by.get(call.call_id, call.answered_by) == call.answered_by, "who answers", event)
            self.unanswered.add(call.call_id)
        self._hold(not self.open, "an item that its answer's end does not name", event)

    def _take_tool(self, event: events.Event | events.Unknown) -> None:
        match event:
            case events.CallDecided():
                self._hold(event.call_id not in self.decided, "a decision that was shown before", event)
                self.decided[event.call_id] = event
            case events.ToolStarted():
                self._hold(event.call_id not in self.running, "a tool that runs already", event)
                self.running.add(event.call_id)
            case events.ToolEnded():
                self._hold(event.call_id in self.running, "the end of a tool that does not run", event)
                self.running.discard(event.call_id)
                if event.text is not None:
                    self.results[event.call_id] = event.text
            case events.ToolsReturned(returns=returns):
                for result in returns:
                    self.running.discard(result.tool_call_id)
                    self.unanswered.discard(result.tool_call_id)
                    said = self.results.setdefault(result.tool_call_id, result.text)
                    self._hold(said == result.text, "two results of one call", event)
            case _:
                pass

    def _end(self) -> None:
        self._has_ended = True
        self.running.clear()
        self.cut_off = set(self.open)
        self.open.clear()
        if self._stop_reason in WHOLE and not self._has_gap:
            self._hold(not self.cut_off, "an item that stays open in a run that was not cut off", self.cut_off)
            waits = self._stop_reason == "requires_approval"
            self._hold(waits or not self.unanswered, "a call without a result", self.unanswered)

    def _hold(self, is_kept: bool, promise: str, event: object) -> None:
        if not is_kept and not self._has_gap:
            self.broken.append(f"{promise}: {event}")
