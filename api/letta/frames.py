"""Renders events of a run's log as frames of Letta's streams: a pure fold without I/O."""

from datetime import datetime
from math import inf
from typing import Any, NamedTuple, assert_never
from uuid import NAMESPACE_OID, uuid5

import msgspec

from api.errors import wire_waiting
from api.letta.messages import (
    date_of,
    envelope,
    moment_at,
    otid_of,
    part_otid,
    summary_as_content,
    summary_fields,
    tool_call_fields,
    tool_return_fields,
    wire_stop_reason,
)
from api.letta.refusals import PENDING_APPROVAL
from shared.concurrency import unix_ms
from shared.domain import events
from shared.domain.errors import code_of
from shared.domain.ids import RunId, Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import RunError

ALWAYS_SHOWN = frozenset({"stop_reason", "usage_statistics", "error_message", "event_message", "run_status"})
"""Frames that `include_return_message_types` does not filter: a client needs them to know how its stream ended."""


class Frame(NamedTuple):
    """One frame: its number, its JSON (None: the end of the stream), and whether it is an error."""

    seq: Seq
    body: dict[str, Any] | None
    is_error: bool = False


class FrameOptions(msgspec.Struct, frozen=True):
    """A reader's choice of frames."""

    pings: bool = True
    status_events: bool = False
    message_types: frozenset[str] | None = None
    """Types of messages to show; None: all."""
    times: bool = False
    """Each frame has `at_ms`, the Unix time of its event in milliseconds; the wire's `date` has whole seconds."""
    compaction_messages: bool = False
    """The reader understands the wire's own messages of a compaction."""


class Frames:
    """Renders one run's events for one reader."""

    def __init__(self, run_id: RunId, options: FrameOptions) -> None:
        self._run_id = run_id
        self.options = options

    def of(self, seq: Seq, entry: bytes) -> Frame | None:
        """The frame of a log entry; None if this reader does not want it."""
        return self.of_event(seq, events.decode(entry))

    def of_event(self, seq: Seq, event: events.Event | events.Unknown) -> Frame | None:
        """The frame of an event; None if this reader does not want it."""
        if isinstance(event, events.Ended):
            return Frame(seq, None)
        body = self._body(seq, event)
        if body is None or not self._is_wanted(body["message_type"]):
            return None
        if self.options.times:
            body["at_ms"] = event.at
        return Frame(seq, body, is_error=isinstance(event, events.Failed))

    def ping(self, seq: Seq, now: datetime) -> Frame:
        """A keep-alive frame, with the number of the last frame."""
        return Frame(seq, self._ping(seq, unix_ms(now)))

    def _is_wanted(self, message_type: str) -> bool:
        if message_type == "ping":
            return self.options.pings
        wanted = self.options.message_types
        return wanted is None or message_type in wanted or message_type in ALWAYS_SHOWN

    def _ping(self, seq: Seq, at: int) -> dict[str, Any]:
        ping_id = "ping-" + self._run_id.partition("-")[2]
        return envelope("ping", message_id=ping_id, date=date_of(at // 1000), run_id=self._run_id, seq_id=seq)

    def _body(self, seq: Seq, event: events.Event | events.Unknown) -> dict[str, Any] | None:
        match event:
            case events.RunCreated():
                return self._status(seq, events.StatusChanged(event.at, "created"))
            case events.ReasoningChunk() | events.TextChunk() | events.ToolCallChunk() | events.ToolCalls():
                return self._answer_part(seq, event)
            case events.ToolsReturned():
                head = self._head("tool_return_message", seq, event, otid=part_otid(event.message_id, 0))
                return {**head, **tool_return_fields(event.returns)}
            case events.InputDelivered() | events.CompactionBegan() | events.Compacted():
                return self._between_steps(seq, event)
            case events.Stopped() | events.UsageReported() | events.Failed():
                return self._ending(seq, event)
            case events.StatusChanged():
                return self._status(seq, event)
            case (
                events.StepRestarted()
                | events.LogContinued()
                | events.Gap()
                | events.ChildStarted()
                | events.ChildWaits()
                | events.DataPart()
            ):
                return self._note(seq, event)
            case (
                events.Unknown() | events.Answered() | events.ToolStarted() | events.ToolEnded() | events.CallDecided()
            ):
                # A newer release, or another dialect, wrote this event. Every release sends the same ping for it, so
                # all readers get the same bytes, and readers that count the numbers miss none.
                return self._ping(seq, event.at)
            case events.Ended():
                return None
            case _:
                assert_never(event)

    def _answer_part(
        self, seq: Seq, event: events.ReasoningChunk | events.TextChunk | events.ToolCallChunk | events.ToolCalls
    ) -> dict[str, Any]:
        otid = part_otid(event.message_id, event.part)
        match event:
            case events.ReasoningChunk():
                head = self._head("reasoning_message", seq, event, otid=otid)
                said = {"source": "reasoner_model", "reasoning": event.text, "signature": event.signature}
                return {**head, **said}
            case events.TextChunk():
                return {**self._head("assistant_message", seq, event, otid=otid), "content": event.text}
            case events.ToolCallChunk():
                return self._call_chunk(seq, event, otid)
            case events.ToolCalls():
                kind = "approval_request_message" if event.needs_approval else "tool_call_message"
                otid = event.message_id if event.needs_approval else otid
                return {**self._head(kind, seq, event, otid=otid), **tool_call_fields(event.calls)}
            case _:
                assert_never(event)

    def _call_chunk(self, seq: Seq, event: events.ToolCallChunk, otid: str) -> dict[str, Any]:
        delta: dict[str, Any] = {"name": event.name, "arguments": event.arguments, "tool_call_id": event.call_id}
        if event.needs_approval:
            head = self._head("approval_request_message", seq, event, otid=event.message_id)
        else:
            head = self._head("tool_call_message", seq, event, otid=otid)
            delta = {key: value for key, value in delta.items() if value is not None}
        return {**head, "tool_call": delta, "tool_calls": delta}

    def _ending(self, seq: Seq, event: events.Stopped | events.UsageReported | events.Failed) -> dict[str, Any]:
        place = {"run_id": self._run_id, "seq_id": seq}
        match event:
            case events.Stopped():
                return {"message_type": "stop_reason", "stop_reason": wire_stop_reason(event.reason), **place}
            case events.UsageReported():
                return {**usage_fields(event), "run_ids": None, **place}
            case events.Failed():
                return {**error_fields(self._run_id, event), "seq_id": seq}
            case _:
                assert_never(event)

    def _status(self, seq: Seq, event: events.StatusChanged) -> dict[str, Any]:
        if not self.options.status_events:
            # Readers that do not know status events get a ping, so that they miss no number.
            return self._ping(seq, event.at)
        place = {"date": moment_at(event.at).isoformat(), "run_id": self._run_id, "seq_id": seq}
        return {"message_type": "run_status", "status": event.status, "cause": event.cause, **place}

    def _between_steps(
        self, seq: Seq, event: events.InputDelivered | events.CompactionBegan | events.Compacted
    ) -> dict[str, Any]:
        match event:
            case events.CompactionBegan() if self.options.compaction_messages:
                return self._compaction_began(seq, event)
            case events.InputDelivered(role="system") | events.CompactionBegan():
                # Readers that are not shown it get a ping, so that they miss no number.
                return self._ping(seq, event.at)
            case events.InputDelivered():
                head = self._head("user_message", seq, event, otid=otid_of(event.message_id, event.otid))
                return {**head, "content": event.text}
            case events.Compacted(text=text, stats=stats):
                otid = part_otid(event.message_id, 0)
                if self.options.compaction_messages:
                    return {**self._head("summary_message", seq, event, otid=otid), **summary_fields(text, stats)}
                content = summary_as_content(text, stats, moment_at(event.at))
                return {**self._head("user_message", seq, event, otid=otid), "content": content}
            case _:
                assert_never(event)

    def _compaction_began(self, seq: Seq, event: events.CompactionBegan) -> dict[str, Any]:
        data = {
            "trigger": event.trigger,
            "context_token_estimate": event.context_tokens,
            "context_window": event.context_window,
        }
        return self._event_message(seq, event.at, "compaction", data)

    def _note(
        self,
        seq: Seq,
        event: events.StepRestarted
        | events.LogContinued
        | events.Gap
        | events.ChildStarted
        | events.ChildWaits
        | events.DataPart,
    ) -> dict[str, Any]:
        """Letta's message type for information to developers, outside the conversation."""
        match event:
            case events.StepRestarted():
                event_type = "step_restarted"
                data: dict[str, Any] = {
                    "attempt": event.attempt, "void_message_ids": event.void_message_ids, "follows": event.follows
                }  # fmt: skip
            case events.LogContinued():
                event_type, data = "log_continued", {"follows": event.follows}
            case events.Gap():
                event_type, data = "gap", {"first_missing": event.first_missing, "last_missing": seq}
            case events.ChildStarted():
                started = {"run_id": event.run_id, "agent_id": event.agent_id, "awaited": event.awaited}
                event_type, data = "child_run_started", {"tool_call_id": event.call_id, **started}
            case events.ChildWaits():
                event_type, data = "child_run_waits", {"tool_call_id": event.call_id, **wire_waiting(event.waiting)}
            case events.DataPart():
                event_type, data = "data", {"name": event.name, "value": event.value, "message_id": event.message_id}
            case _:
                assert_never(event)
        return self._event_message(seq, event.at, event_type, data)

    def _event_message(self, seq: Seq, at: int, event_type: str, data: dict[str, Any]) -> dict[str, Any]:
        note_id = f"message-{uuid5(NAMESPACE_OID, f'{self._run_id}:{seq}')}"
        head = envelope("event_message", message_id=note_id, date=date_of(at // 1000), run_id=self._run_id, seq_id=seq)
        return {**head, "event_type": event_type, "event_data": data}

    def _head(
        self,
        message_type: str,
        seq: Seq,
        event: events.ReasoningChunk
        | events.TextChunk
        | events.ToolCallChunk
        | events.ToolCalls
        | events.ToolsReturned
        | events.InputDelivered
        | events.Compacted,
        *,
        otid: str | None,
    ) -> dict[str, Any]:
        return envelope(
            message_type,
            message_id=event.message_id,
            date=date_of(event.at // 1000),
            otid=otid,
            step_id=getattr(event, "step_id", None),
            run_id=self._run_id,
            seq_id=seq,
        )


_encoder = msgspec.json.Encoder()

COME_BACK = b": this server is ending, the run goes on: resume after the last id\nretry: 200\n"
"""Ends a stream whose run goes on. A browser reconnects after `retry` milliseconds, with `Last-Event-ID`."""


def event_bytes(frame: Frame) -> bytes:
    """The bytes of a frame. Its number is the event's id, so a browser resumes by itself."""
    data = b"[DONE]" if frame.body is None else _encoder.encode(frame.body)
    kind = b"event: error\n" if frame.is_error else b""
    return b"id: %d\n%bdata: %b\n\n" % (frame.seq, kind, data)


class FrameStream:
    """A run's stream on Letta's wire. It has no state, so a reader may begin anywhere."""

    cut = COME_BACK
    longest_silence_s = inf

    def __init__(self, run_id: RunId, options: FrameOptions) -> None:
        self._frames = Frames(run_id, options)

    @property
    def shared_as(self) -> FrameOptions:
        """Readers with the same options get the same bytes."""
        return self._frames.options

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries, and whether the last one ends the stream."""
        shown = [frame for seq, entry in entries if (frame := self._frames.of(seq, entry)) is not None]
        return b"".join(map(event_bytes, shown)), any(frame.body is None for frame in shown)

    def silence(self, last: Seq, now: datetime) -> bytes:
        """A ping, for a reader that wants pings."""
        return event_bytes(self._frames.ping(last, now)) if self._frames.options.pings else b""

    def end_of(self, last: Seq) -> bytes:
        """The mark of the stream's end."""
        return event_bytes(Frame(last, None))


def usage_fields(usage: Any) -> dict[str, Any]:
    """The tokens of a run, from a `UsageReported` or a `Usage`. The caller adds `run_ids`."""
    fields = {
        "message_type": "usage_statistics",
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "step_count": getattr(usage, "step_count", 0),
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "context_tokens": usage.context_tokens,
    }
    if usage.estimated:
        fields["estimated"] = True
    return fields


def error_fields(run_id: RunId, error: RunError | events.Failed) -> dict[str, Any]:
    """The wire's error object, for streams, runs and callbacks. If the run was refused because of waiting calls, the
    object names these calls, and `waiting_run_id` is the run that waits for them."""
    code = code_of(error.error_type)
    shown: dict[str, Any] = {
        "message_type": "error_message",
        "run_id": run_id,
        "error_type": error.error_type,
        "message": error.message,
        "detail": error.detail,
        "seq_id": None,
        "code": code,
        "hint": code.hint,
    }
    if error.waiting is None:
        return shown
    names = {**wire_waiting(error.waiting), "waiting_run_id": error.waiting.run_id}
    return {**names, **shown, "code": PENDING_APPROVAL}
