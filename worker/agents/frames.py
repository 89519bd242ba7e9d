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
"""The type of an error that is the text of a tool's result."""

GIVEN_UP = {"type": "CancelledError", "text": "the body has given up this call"}
"""The error of a call whose task the code has cancelled. The code has it too (`holdfast.agents.asking`)."""

GIVEN_UP_AGAIN_S = 1.0
"""Seconds more than the turn had taken, within which a replay gives a call up again."""

PARTS = "holdfast_parts"
"""The key of the parts in the value of an attached tool. The code has it too (`holdfast.agents.run`)."""

LONG_SLEEP = timedelta(seconds=30)
"""A body that sleeps longer needs no process meanwhile: it costs less to fork another one than to keep it."""


class BodyRaised(Exception):
    """The code of the agent has raised."""

    def __init__(self, frame: Frame) -> None:
        self.error_type: str = frame["type"]
        self.traceback: str = frame["traceback"]
        where = " in ".join(reversed(frame["functions"]))
        self.said = f"{self.error_type}: {frame['text']}" + (f" (in {where})" if where else "")
        super().__init__(self.said)


def go(entry: JournalEntry) -> Frame:
    """The frame by which a call may start."""
    return {"t": "go", "call": entry.slot, "key": entry.idempotency_key, "attempt": entry.attempt}


def seconds(moment: datetime | None) -> float:
    """The time in Unix seconds; 0 for None."""
    return 0.0 if moment is None else moment.timestamp()


def value_of(entry: JournalEntry) -> Any:
    """The value of a call, or the error that it raised."""
    return None if entry.result is None else json.loads(entry.result)


def value_of_result(result: ToolReturn) -> Any:
    """The result of an attached tool as the journal has it: its text, or an object with its parts as well, if one of
    them is no text."""
    if result.parts is None:
        return result.text
    return {"text": result.text, PARTS: msgspec.to_builtins(result.parts)}


def _attached_result(call: ToolCall, value: Any) -> ToolReturn | None:
    """The result that has this value. None: it is that of another tool."""
    fields: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if {*fields} != {"text", PARTS}:
        return None
    parts = msgspec.convert(fields[PARTS], list[ContentPart])
    return ToolReturn(call.id, call.name, "success", fields["text"], parts=parts)


def recorded_answer(entry: JournalEntry, turn_began: datetime | None = None) -> Frame:
    """The frame with the end of a call that is over. A replay, which knows when the turn began, gets a call that the
    code gave up no sooner than the code comes to give it up again: by the same timer, or for the same other call."""
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
    """The result of a call in the journal, as clients see it."""
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
    """The call as clients see it."""
    return ToolCall(entry.call_id, entry.name, json.dumps(frame["arguments"], ensure_ascii=False))


def usage_of(frame: Frame) -> Usage:
    """The tokens of a model's call, as the body has read them from its answer."""
    used: dict[str, int] = frame.get("usage") or {}
    return Usage(
        prompt_tokens=used.get("input_tokens", 0),
        completion_tokens=used.get("output_tokens", 0),
        cached_input_tokens=used.get("cached_tokens", 0),
        reasoning_tokens=used.get("reasoning_tokens", 0),
    )


def decided_end(decision: Decision, result: ToolReturn) -> tuple[Literal["done", "failed"], Any]:
    """How a call ends by a decision alone: with the client's result, or denied."""
    if result.status == "success":
        return "done", result.text
    if decision.kind == "approval":
        return "failed", {"type": "Denied", "text": decision.reason or "", "denied": True}
    return "failed", {"type": TOOL_ERROR, "text": result.text}


def settled_by_probe(entry: JournalEntry, value: Any, now: datetime) -> SettledEffect:
    """The settlement by a probe that found that the lost call happened, with this value."""
    return SettledEffect(
        idempotency_key=entry.idempotency_key,
        call_id=entry.call_id,
        by="probe",
        outcome="happened",
        result=printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
        at=now,
    )


def end_of_sleep(entry: JournalEntry, frame: Frame, now: datetime) -> datetime | None:
    """When a sleep ends, counted from the first attempt. None: it is too short to leave the worker for
    it, or no sleep."""
    end = entry.started_at + timedelta(seconds=frame.get("seconds", 0))
    return end if end - now > LONG_SLEEP else None


# Calls for which a body needs a person or its client. Its run is parked when nothing else of it goes on.


class WaitingCall:
    """One call that waits."""

    def __init__(self, entry: JournalEntry, call: ToolCall, frame: Frame) -> None:
        self.entry = entry
        self.call = msgspec.structs.replace(call, needs_approval=True)
        self.by: AnsweredBy = "client" if frame.get("of_client") else "person"
        self._frame = frame

    def approval(self, handle: RunHandle, message_id: MessageId) -> Approval:
        """The request for a decision on the call of this message."""
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
    """Whether a call that begins waits for a decision, unless there is one."""
    return frame["kind"] == "approval" or bool(frame.get("of_client") or frame.get("needs_approval"))
