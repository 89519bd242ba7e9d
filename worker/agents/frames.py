"""Converts between the frames of a body's process and the worker's journal and history."""

import json
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import msgspec

from shared.domain.approvals import Approval, hash_of
from shared.domain.effects import SettledEffect
from shared.domain.events import AnsweredBy
from shared.domain.ids import MessageId
from shared.domain.journal import JournalEntry
from shared.domain.messages import ContentPart, Decision, ToolCall, ToolReturn
from shared.domain.runs import Usage
from shared.domain.settling import unknown_return
from shared.json_limits import printable
from worker.agents.body_process import Frame
from worker.agents.shown_turn import failure_of, result_of
from worker.run.run_handle import RunHandle

TOOL_ERROR = "ToolError"
"""The type of an error whose text is a tool's result."""

GIVEN_UP = {"type": "CancelledError", "text": "the body has given up this call"}
"""The error of a call whose task the code has cancelled. The code has it too (`holdfast.agents.asking`)."""

GIVEN_UP_AGAIN_S = 1.0
"""Seconds more than the turn had taken, within which a replay gives a call up again."""

PARTS = "holdfast_parts"
"""The key of the parts in the value of an attached tool. `holdfast.agents.run` uses it, too."""

LONG_SLEEP = timedelta(seconds=30)
"""A body that sleeps longer needs no process meanwhile: forking another one later costs less than keeping it."""


class BodyRaised(Exception):
    """The agent's code has raised an exception."""

    def __init__(self, frame: Frame) -> None:
        self.error_type: str = frame["type"]
        self.traceback: str = frame["traceback"]
        where = " in ".join(reversed(frame["functions"]))
        self.said = f"{self.error_type}: {frame['text']}" + (f" (in {where})" if where else "")
        super().__init__(self.said)


def go(entry: JournalEntry) -> Frame:
    """Returns the frame that lets a call start."""
    return {"t": "go", "call": entry.slot, "key": entry.idempotency_key, "attempt": entry.attempt}


def seconds(moment: datetime | None) -> float:
    """Returns the time in Unix seconds; 0 for None."""
    return 0.0 if moment is None else moment.timestamp()


def value_of(entry: JournalEntry) -> Any:
    """Returns the value of a call, or the error that it raised."""
    return None if entry.result is None else json.loads(entry.result)


def value_of_result(result: ToolReturn) -> Any:
    """Returns the result of an attached tool in the journal's form: its text, or an object with its text and its parts
    if one of the parts is not text."""
    if result.parts is None:
        return result.text
    return {"text": result.text, PARTS: msgspec.to_builtins(result.parts)}


def _attached_result(call: ToolCall, value: Any) -> ToolReturn | None:
    """Returns the result with this value; None if the value is another tool's."""
    fields: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if {*fields} != {"text", PARTS}:
        return None
    parts = msgspec.convert(fields[PARTS], list[ContentPart])
    return ToolReturn(call.id, call.name, "success", fields["text"], parts=parts)


def recorded_answer(entry: JournalEntry, turn_began: datetime | None = None) -> Frame:
    """Returns the frame with the end of a completed call. A replay, which knows when the turn began, gets a call that
    the code gave up no sooner than the code gives it up again: by the same timer, or for the same other call."""
    at = seconds(entry.ended_at or entry.started_at)
    match entry.state:
        case "failed":
            failed = {"t": "failed", "error": value_of(entry), "at": at}
            is_given_up = failed["error"] == GIVEN_UP and turn_began is not None
            return {**failed, "given_up_s": at - seconds(turn_began) + GIVEN_UP_AGAIN_S} if is_given_up else failed
        case "unknown":
            return {"t": "unknown", "key": entry.idempotency_key, "at": at}
        case _:
            return {"t": "result", "value": value_of(entry), "at": at}


def recorded_result(entry: JournalEntry, call: ToolCall, value: Any) -> ToolReturn:
    """Returns the result of a call in the journal, in the form for clients."""
    match entry.state:
        case "failed" if value["type"] == TOOL_ERROR:
            return ToolReturn(call.id, call.name, "error", value["text"])
        case "failed":
            return failure_of(call, value)
        case "unknown":
            return unknown_return(call)
        case _:
            return _attached_result(call, value) or result_of(call, value)


def call_of(entry: JournalEntry, frame: Frame) -> ToolCall:
    """Returns the call in the form for clients."""
    return ToolCall(entry.call_id, entry.name, json.dumps(frame["arguments"], ensure_ascii=False))


def usage_of(frame: Frame) -> Usage:
    """Returns the tokens of a model call, as the body has read them from the answer."""
    used: dict[str, int] = frame.get("usage") or {}
    return Usage(
        prompt_tokens=used.get("input_tokens", 0),
        completion_tokens=used.get("output_tokens", 0),
        cached_input_tokens=used.get("cached_tokens", 0),
        reasoning_tokens=used.get("reasoning_tokens", 0),
    )


def decided_end(decision: Decision, result: ToolReturn) -> tuple[Literal["done", "failed"], Any]:
    """Returns the end of a call by a decision alone: the client's result, or a denial."""
    if result.status == "success":
        return "done", result.text
    if decision.kind == "approval":
        return "failed", {"type": "Denied", "text": decision.reason or "", "denied": True}
    return "failed", {"type": TOOL_ERROR, "text": result.text}


def settled_by_probe(entry: JournalEntry, value: Any, now: datetime) -> SettledEffect:
    """Returns the settlement by a probe that found that the lost call happened, with this value."""
    return SettledEffect(
        idempotency_key=entry.idempotency_key,
        call_id=entry.call_id,
        by="probe",
        outcome="happened",
        result=printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
        at=now,
    )


def end_of_sleep(entry: JournalEntry, frame: Frame, now: datetime) -> datetime | None:
    """Returns when a sleep ends, counted from the first attempt. None if this is no sleep, or one too short to leave
    the worker."""
    end = entry.started_at + timedelta(seconds=frame.get("seconds", 0))
    return end if end - now > LONG_SLEEP else None


# Calls for which a body needs a person or its client. Its run is parked when nothing else of it is running.


class WaitingCall:
    """A call that waits for a person or the client."""

    def __init__(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> None:
        self.entry = entry
        self.call = msgspec.structs.replace(call, needs_approval=True)
        self.by: AnsweredBy = "client" if frame.get("of_client") else "person"
        self._frame = frame

    def approval(self, handle: RunHandle, message_id: MessageId) -> Approval:
        """Returns the request for a decision on the call in this message."""
        run, call, now = handle.run, self.call, handle.clock.now()
        expires_s = self._frame.get("expires_s")
        return Approval(
            id=handle.ids.approval(),
            project_id=run.project_id,
            agent_id=run.agent_id,
            thread_id=run.thread_id,
            run_id=run.id,
            message_id=message_id,
            tool_call_id=call.id,
            tool_name=call.name,
            arguments=call.arguments,
            arguments_hash=hash_of(call.arguments),
            tool_version=call.tool_version,
            client_side=self.by == "client",
            asked_at=now,
            expires_at=None if expires_s is None else now + timedelta(seconds=expires_s),
            on_expiry=self._frame.get("on_expiry", "keep"),
        )


def may_ask(frame: Frame) -> bool:
    """Whether a beginning call waits for a decision, unless there is one already."""
    return frame["kind"] == "approval" or bool(frame.get("of_client") or frame.get("needs_approval"))
