"""One run of a conversation as AG-UI's events: a pure fold, without I/O and without a clock.

The events depend on the run, its log and the known state of the client: its release, and the messages that it has.
Clients refuse a stream that leaves a part open at the end of its run, closes or continues a part that is not open, or
sends an unknown event. Clients also build their messages from the events, so only a snapshot of all valid messages
removes a void message from a client (see `docs/ag-ui.md`).
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from api.ag_ui.messages import WireMessage, add_in_place, newest_within, wire_call, wire_result
from api.pages import leg_parts as parts
from shared.domain import events
from shared.domain.approvals import Approval
from shared.domain.ids import Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.runs import Run

PROTOCOL_VERSION = "1.0"

LONGEST_DELTA = 1_000_000
"""Characters. Clients give up frames of ten million."""

Event = dict[str, Any]

_APPROVAL: Event = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Whole arguments, in place of those that were asked for."},
        "reason": {"type": "string", "description": "Why the call was denied. The agent reads it."},
    },
    "required": ["approved"],
}
"""JSON Schema of the answer to an interrupt."""


_NOTHING: Event = {
    "type": "MESSAGES_SNAPSHOT",
    "messages": [{"id": "reasoning-none", "role": "reasoning", "content": ""}],
}
"""Makes a client drop all messages, so that the next snapshot decides their order. If this snapshot had no reasoning,
the client would keep its own reasoning."""


class Client(NamedTuple):
    """The reader's client, as far as the server knows it."""

    thread_name: str
    """The client's name for the conversation."""
    is_current: bool
    """The client has declared version 1.0 of the protocol. It supports all outcomes of runs, and images in results."""
    sent: Sequence[WireMessage] | None = None
    """The client's messages, as it sent them. None: unknown, so the conversation's messages count."""

    def run_name(self, run: Run) -> str:
        """The id of a run for clients: the id that the client chose when it began the run, else ours."""
        return run.options.named or run.id


@dataclass(slots=True)
class _Message:
    """A message that the run has shown."""

    id: str
    role: str
    pieces: list[str] | None = None
    """The text. None: the message has only calls."""
    calls: dict[str, "_Call"] = field(default_factory=dict[str, "_Call"])
    whole: WireMessage | None = None
    """A message that arrived whole."""

    def wire(self, without: Container[str]) -> WireMessage:
        if self.whole is not None:
            return self.whole
        shown: WireMessage = {"id": self.id, "role": self.role}
        if self.pieces is not None:
            shown["content"] = "".join(self.pieces)
        calls = [wire_call(one, call.name, call.arguments) for one, call in self.calls.items() if one not in without]
        if calls:
            shown["toolCalls"] = calls
        return shown


@dataclass(slots=True)
class _Call:
    name: str
    parent: str
    pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class LegFold:
    """The events of one run: version 1. `take` needs the log's entries in their order, from the first on."""

    def __init__(self, run: Run, client: Client, before: Iterable[WireMessage], *, joins: bool = False) -> None:
        """`before` are the messages that the client has when the run begins. `joins`: the client may also have a part
        of the run, and gets a snapshot of the messages before the run."""
        self._run, self._client = run, client
        self._parts = parts.LegParts(run)
        self._before: list[msgspec.Raw] = []
        self._thinks = False
        """`before` has reasoning, and so does each snapshot. Only then do clients drop reasoning that it lacks."""
        self._known: set[str] = set()
        self._answered: set[str] = set()
        """Calls whose results the client has."""
        for message in before:
            self._thinks = self._thinks or message.get("role") == "reasoning"
            self._before.append(msgspec.Raw(msgspec.json.encode(message)))
            if client.sent is not None:
                self._known.add(str(message.get("id")))
                self._answered |= {str(message["toolCallId"])} if "toolCallId" in message else set()
        self._may_have_thoughts = joins and not self._thinks
        """The client may have reasoning of the run, which the snapshot of `joins` did not drop."""
        self._messages: dict[str, _Message] = {}
        """The run's messages in the client's order, except for results, which the client inserts after their calls."""
        self._calls: dict[str, _Call] = {}
        self._open: dict[str, Event] = {}
        """The open parts, with the event that opened each."""
        self._doubled: set[str] = set()
        """Messages that release 0.0.47 has twice, because it adds a call only to its last message."""
        self._void: set[str] = set()
        self._ids = parts.CallIds()

    @property
    def is_contradicted(self) -> bool:
        """The log was rewritten after this fold had read it, so events already sent are no longer valid."""
        return self._parts.is_contradicted

    def started(self, given: Sequence[WireMessage] | None = None) -> Event:
        """The beginning of the run. Clients add the messages of its input that they lack."""
        run, client = self._run, self._client
        shown = {"run_id": run.id} | ({} if run.conversation_id is None else {"conversation_id": run.conversation_id})
        version = {"protocolVersion": PROTOCOL_VERSION} if client.is_current else {}
        event = {**self._event("RUN_STARTED"), **version, "metadata": {"holdfast": shown}}
        if not given:
            return event
        rest: Event = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
        named = {"threadId": client.thread_name, "runId": client.run_name(run)}
        return {**event, "input": {**named, "messages": list(given), **rest}}

    def take(self, seq: Seq, event: events.Event | events.Unknown) -> list[Event]:
        """The events for the next entry of the log."""
        return [shown for part in self._parts.take(seq, event) for shown in self._events_of(part)]

    def ended(self, seq: Seq, at: int, run: Run, asked: Sequence[Approval]) -> list[Event]:
        """The events for the end of the log, given the run as it is now and the calls for which it asked."""
        return self._last_events(self._parts.take(seq, events.Ended(at)), run, asked)

    def lost_ending(self) -> list[Event]:
        """The end of the run if its log has no end, because the run was deleted."""
        return self._last_events(self._parts.lost_ending(), self._run, ())

    def _last_events(self, last: Iterable[parts.Part], run: Run, asked: Sequence[Approval]) -> list[Event]:
        made: list[Event] = []
        for part in last:
            made += [self._end(part, run, asked)] if isinstance(part, parts.LegEnded) else self._events_of(part)
        return made

    def cancelled(self) -> Event:
        """The end of a run that was cancelled while it waited."""
        return {
            **self._event("RUN_FINISHED"),
            **({"outcome": {"type": "cancelled"}} if self._client.is_current else {}),
        }

    def opened_again(self) -> list[Event]:
        """Opens all open parts again, for a client that resumes in the middle and appends to the parts that it has."""
        made = [event for opening in self._open.values() for event in _opened_again(opening)]
        if self._client.is_current:
            return made
        calls = {
            one["toolCallId"]: self._calls[one["toolCallId"]] for one in self._open.values() if "toolCallId" in one
        }
        if not calls:
            return made
        # Release 0.0.47 takes a call that opens again for another call. So the client drops it, and gets it anew.
        self._doubled |= {call.parent for call in calls.values()}
        written = {one: {"type": "TOOL_CALL_ARGS", "toolCallId": one} for one in calls}
        pieces = [{**written[one], "delta": delta} for one, call in calls.items() for delta in _deltas(call.arguments)]
        return [*self.snapshots(without=calls), *made, *pieces]

    def snapshots(self, without: Container[str] = (), *, may_be_doubled: bool = False) -> list[Event]:
        """All valid messages, without the calls `without`, for a client that may have other messages."""
        whole = self.snapshot(without)
        if self._client.is_current or not (self._doubled or may_be_doubled):
            return [whole]
        # Release 0.0.47 would replace each of its two copies with the whole message.
        return [_NOTHING, whole]

    def snapshot(self, without: Container[str] = ()) -> Event:
        """As `snapshots`, for a client that has no part of the run yet."""
        shown = self._in_order(without)
        if not self._thinks and not any(one["role"] == "reasoning" for one in shown):
            # If the snapshot had no reasoning, the client would keep void reasoning.
            void = [one for one in self._void if one.startswith("reasoning-")]
            shown += [{"id": one, "role": "reasoning", "content": ""} for one in sorted(void)[-1:]]
        return {"type": "MESSAGES_SNAPSHOT", "messages": newest_within([*self._before, *shown])}

    def _in_order(self, without: Container[str]) -> list[WireMessage]:
        shown: list[WireMessage] = []
        for message in self._messages.values():
            add_in_place(shown, message.wire(without))
        return shown

    def _event(self, kind: str) -> Event:
        return {"type": kind, "threadId": self._client.thread_name, "runId": self._client.run_name(self._run)}

    # The events of each part.

    def _events_of(self, part: parts.Part) -> Iterable[Event]:
        match part:
            case parts.TextGrew() | parts.ReasoningGrew():
                return self._grew(part)
            case parts.TextOpened():
                return self._text_opened(part)
            case parts.TextClosed():
                return self._text_closed(part)
            case parts.ReasoningOpened():
                return self._reasoning_opened(part)
            case parts.ReasoningClosed():
                return self._reasoning_closed(part)
            case parts.CallOpened():
                return self._call_opened(part)
            case parts.CallGrew():
                return self._call_grew(part)
            case parts.CallReady() | parts.CallCut():
                return self._call_closed(part)
            case _:
                return self._other_events_of(part)

    def _other_events_of(self, part: parts.Part) -> Iterator[Event]:
        """The events for parts that belong to no answer."""
        match part:
            case parts.Returned():
                return self._returned(part)
            case parts.DataShown():
                return iter(({"type": "CUSTOM", "name": part.event.name, "value": part.event.value},))
            case parts.Injected():
                return self._injected(part)
            case parts.Restarted():
                return self._restarted(part)
            case parts.Lost():
                return self._lost()
            case parts.Compaction():
                return iter((_compaction(part.event),))
            case _:
                return iter(())

    def _reasoning_opened(self, part: parts.ReasoningOpened) -> Iterator[Event]:
        self._messages[part.id] = _Message(part.id, "reasoning", [])
        if self._may_have_thoughts:
            self._may_have_thoughts = False
            yield from [_NOTHING, self.snapshot()] if len(self._messages) > 1 else [self.snapshot()]
        yield {"type": "REASONING_START", "messageId": part.id}
        yield self._opening(part.id, "REASONING_MESSAGE_START", messageId=part.id, role="reasoning")

    def _reasoning_closed(self, part: parts.ReasoningClosed) -> Iterator[Event]:
        del self._open[part.id]
        yield {"type": "REASONING_MESSAGE_END", "messageId": part.id}
        yield {"type": "REASONING_END", "messageId": part.id}

    def _text_opened(self, part: parts.TextOpened) -> Iterator[Event]:
        message = self._messages.setdefault(part.id, _Message(part.id, "assistant"))
        message.pieces = []
        yield self._opening(part.id, "TEXT_MESSAGE_START", messageId=part.id, role="assistant")

    def _text_closed(self, part: parts.TextClosed) -> Iterator[Event]:
        del self._open[part.id]
        yield {"type": "TEXT_MESSAGE_END", "messageId": part.id}

    def _grew(self, part: parts.TextGrew | parts.ReasoningGrew) -> Iterable[Event]:
        part_id, text = part
        pieces = self._messages[part_id].pieces
        if pieces is not None:
            pieces.append(text)
        kind = "TEXT_MESSAGE_CONTENT" if isinstance(part, parts.TextGrew) else "REASONING_MESSAGE_CONTENT"
        if len(text) <= LONGEST_DELTA:  # nearly all texts, so these need no generator
            return ({"type": kind, "messageId": part_id, "delta": text},)
        return [{"type": kind, "messageId": part_id, "delta": delta} for delta in _deltas(text)]

    def _call_opened(self, part: parts.CallOpened) -> Iterator[Event]:
        call_id = self._ids.open(part.id)
        self._void.discard(call_id)
        call = self._calls[call_id] = _Call(part.name, part.message_id)
        holder = self._messages.setdefault(part.message_id, _Message(part.message_id, "assistant"))
        holder.calls[call_id] = call
        if next(reversed(self._messages)) != holder.id:
            self._doubled.add(holder.id)
        opening = {"toolCallId": call_id, "toolCallName": part.name, "parentMessageId": part.message_id}
        yield self._opening(part.id, "TOOL_CALL_START", **opening)

    def _call_grew(self, part: parts.CallGrew) -> Iterator[Event]:
        call_id = self._ids.of(part.id)
        self._calls[call_id].pieces.append(part.arguments)
        for delta in _deltas(part.arguments):
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}

    def _call_closed(self, part: parts.CallReady | parts.CallCut) -> Iterator[Event]:
        del self._open[part.id]
        call_id = self._ids.of(part.id)
        call = self._calls[call_id]
        if call.arguments != part.arguments:
            # The model has corrected its arguments, and no event of the protocol removes a piece from a client.
            call.pieces = [part.arguments]
            yield from self.snapshots()
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _returned(self, part: parts.Returned) -> Iterator[Event]:
        call_id = self._ids.of(part.id)
        if call_id in self._answered:
            return
        message = wire_result(call_id, part.result, takes_parts=self._client.is_current)
        self._messages[message["id"]] = _Message(message["id"], "tool", whole=message)
        shown = {name: value for name, value in message.items() if name not in ("id", "role")}
        yield {"type": "TOOL_CALL_RESULT", "messageId": message["id"], **shown}

    def _injected(self, part: parts.Injected) -> Iterator[Event]:
        message_id = part.event.otid or part.event.message_id
        if message_id in self._known:
            return
        message = {"id": message_id, "role": "user", "content": part.event.text}
        self._messages[message_id] = _Message(message_id, "user", whole=message)
        yield {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "user"}
        for delta in _deltas(part.event.text):
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta}
        yield {"type": "TEXT_MESSAGE_END", "messageId": message_id}

    def _restarted(self, part: parts.Restarted) -> Iterator[Event]:
        for void in part.part_ids:
            name = self._ids.take_back(void)
            self._void.add(name)
            if (call := self._calls.pop(name, None)) is not None:
                self._messages[call.parent].calls.pop(name)
            elif name in self._messages:
                self._messages[name].pieces = None
        for name in [one.id for one in self._messages.values() if not (one.calls or one.whole) and one.pieces is None]:
            del self._messages[name]
        yield from self.snapshots()

    def _lost(self) -> Iterator[Event]:
        yield {"type": "CUSTOM", "name": "holdfast.gap", "value": {}}
        yield from self.snapshots()

    def _opening(self, part_id: str, kind: str, **fields: str) -> Event:
        self._open[part_id] = {"type": kind, **fields}
        return self._open[part_id]

    # The end of the run.

    def _end(self, part: parts.LegEnded, run: Run, asked: Sequence[Approval]) -> Event:
        usage = {} if part.usage is None else {"usage": [_usage(part.usage)]}
        if part.failure is not None:
            said = " ".join(text for text in (part.failure.message, part.failure.detail) if text)
            return {"type": "RUN_ERROR", "message": said, "code": part.failure.error_type, **usage}
        return {**self._event("RUN_FINISHED"), **self._outcome(part, run, asked), **usage}

    def _outcome(self, part: parts.LegEnded, run: Run, asked: Sequence[Approval]) -> Event:
        parked = run.status is RunStatus.AWAITING_APPROVAL
        waiting = [one for one in asked if one.decision is None] if parked else []
        shown = {one.id: self._call_of(one, part.unanswered) for one in waiting}
        interrupts = [_interrupt(one, shown[one.id]) for one in waiting if not one.client_side]
        if interrupts:
            return {"outcome": {"type": "interrupt", "interrupts": interrupts}}
        if not self._client.is_current:
            return {}
        if waiting:
            return {"outcome": {"type": "success", "pendingToolCallIds": list(shown.values())}}
        if run.status is RunStatus.CANCELLED or part.reason == events.StopReason.CANCELLED:
            return {"outcome": {"type": "cancelled"}}
        return {"outcome": {"type": "success"}}

    def _call_of(self, asked: Approval, unanswered: Sequence[str]) -> str:
        """The id under which the client knows the call."""
        for part_id in reversed(unanswered):
            if part_id.rstrip(parts.AGAIN) == asked.tool_call_id.rstrip(parts.AGAIN):
                return self._ids.of(part_id)
        return asked.tool_call_id


def _compaction(event: events.CompactionBegan | events.Compacted) -> Event:
    if isinstance(event, events.CompactionBegan):
        sizes = {"context_tokens": event.context_tokens, "context_window": event.context_window}
        made = {"state": "began", "trigger": event.trigger, **sizes}
    else:
        sizes = {"messages_before": event.stats.messages_before, "messages_after": event.stats.messages_after}
        made = {"state": "completed", **sizes}
    return {"type": "CUSTOM", "name": "holdfast.compaction", "value": made}


def _opened_again(opening: Event) -> Iterator[Event]:
    if opening["type"] == "REASONING_MESSAGE_START":
        yield {"type": "REASONING_START", "messageId": opening["messageId"]}
    yield opening


def _deltas(text: str) -> Iterator[str]:
    """The text in pieces that fit into frames; no piece for an empty text, which older clients refuse."""
    for start in range(0, len(text), LONGEST_DELTA):
        yield text[start : start + LONGEST_DELTA]


def _interrupt(asked: Approval, call_id: str) -> Event:
    shown = {
        "id": asked.id,
        "reason": "tool_call",
        "message": f"The agent asks to call {asked.tool_name}.",
        "toolCallId": call_id,
        "responseSchema": _APPROVAL,
    }
    if asked.expires_at is None:
        return shown
    return {**shown, "expiresAt": asked.expires_at.isoformat().replace("+00:00", "Z")}


def _usage(event: events.UsageReported) -> Event:
    return {
        "inputTokens": event.prompt_tokens,
        "outputTokens": event.completion_tokens,
        "totalTokens": event.prompt_tokens + event.completion_tokens,
        "reasoningTokens": event.reasoning_tokens,
        "cachedInputTokens": event.cached_input_tokens,
        "cacheWriteInputTokens": event.cache_write_tokens,
    }
