"""The stream of a conversation on Letta's wire: the frames of every run, each with a cursor, and notes between the
runs."""

from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from api.letta.frames import Frame, FrameOptions, Frames
from api.letta.message_input import wire_content
from api.letta.messages import date_of, envelope, otid_of, wire_stop_reason
from api.runs.thread_projection import LegInput, Present, ThreadCursor
from shared.concurrency import Clock, unix_ms
from shared.domain.approvals import EXPIRY, Approval
from shared.domain.events import FIRST_SEQ, StopReason
from shared.domain.ids import RunId, Seq
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import NewMessage, UserMessage
from shared.domain.runs import Run
from shared.domain.threads import Leg, RunGlance

_SHOWN = FrameOptions(pings=False, compaction_messages=True)
"""No pings: readers do not count numbers here, because each frame has a cursor."""

_DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


class LegFrames:
    """Renders one leg's log for the stream. It has no state, so a reader may begin anywhere."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self._frames = Frames(leg.run.id, _SHOWN)

    @property
    def shared_as(self) -> tuple[str, int, int]:
        """All readers of a conversation get the same bytes."""
        return "conversation", self._leg.turn, self._leg.number

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """The frames of some entries. The end of a leg does not end the stream."""
        shown = [frame for seq, entry in entries if (frame := self._frames.of(seq, entry)) is not None]
        return b"".join(self._bytes(frame) for frame in shown), False

    def _bytes(self, frame: Frame) -> bytes:
        cursor = ThreadCursor(self._leg.turn, self._leg.number, frame.seq)
        return _event_bytes(cursor, frame.body or {}, kind=b"event: error\n" if frame.is_error else b"")


class UnshownLeg(LegFrames):
    """Renders nothing of a leg's log, for readers that want only the notes."""

    @property
    def shared_as(self) -> tuple[str, int, int]:
        """All these readers get nothing."""
        return "conversation's notes", self._leg.turn, self._leg.number

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        """Nothing."""
        del entries
        return b"", False


class ConversationFrames:
    """Renders a conversation for a reader: the logs of its runs, and the notes between them."""

    wants_input = True
    wants_history = False

    def __init__(self, *, only_notes: bool = False, shows_instructions: bool = True) -> None:
        self._only_notes, self._shows_instructions = only_notes, shows_instructions

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        """The cursor itself, because the renderer has no state."""
        return after

    def of_log(self, leg: Leg) -> LegFrames:
        """The renderer of a leg's log."""
        return UnshownLeg(leg) if self._only_notes else LegFrames(leg)

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        """`run_started`, which replaces the run's first event."""
        decided, given = beginning.decided, [(one, one.body) for one in beginning.given]
        said = [(one, body) for one, body in given if isinstance(body, UserMessage)]
        shown = [_wire_input(*one) for one in said if self._shows_instructions or one[1].role != "system"]
        data: dict[str, Any] = {"turn": leg.turn, "leg": leg.number, "input": shown}
        if leg.run.continues is not None:
            data |= {"continues": leg.run.continues, "decisions": [_wire_decided(one) for one in decided]}
        return _note_of_leg(leg, FIRST_SEQ, unix_ms(leg.run.created_at), "run_started", data)

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        """`run_ended`, which replaces the end of the run's stream."""
        run = leg.run
        # The frame shows a parked run as parked even after a decision, so that every reader gets the same bytes.
        status = RunStatus.AWAITING_APPROVAL if asked else run.status
        reason = StopReason.PARKED if asked else run.stop_reason
        names = [{"id": one.id, "tool_call_id": one.tool_call_id, "tool_name": one.tool_name} for one in asked]
        data = {"status": status, "stop_reason": wire_stop_reason(reason), "approvals": names}
        return _note_of_leg(leg, seq, at, "run_ended", data)

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        """`approvals_resolved`, after the end of a run that waited."""
        decided_at = [one.decided_at for one in asked if one.decided_at is not None]
        at = unix_ms(max(decided_at)) if decided_at else unix_ms(leg.run.created_at)
        data = {"decisions": [_wire_decided(one, leg.run) for one in asked]}
        return _note_of_leg(leg, seq, at, "approvals_resolved", data)

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        """`caught_up`. It has no cursor, because it depends on the time of the request."""
        running, queued, waiting = present.running, present.queued, present.waiting
        data = {"cursor": str(cursor), "running": running, "queued": queued, "waiting": waiting}
        return _data_bytes(_note(None, None, unix_ms(present.at), "caught_up", data))

    def over(self) -> bytes:
        """The mark of the stream's end."""
        return _DONE


class RunChangeFrames:
    """Renders run changes for a dashboard, without cursors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def changed(self, run: RunGlance) -> bytes:
        """`run_changed`: the run's present status, and the number of its waiting calls."""
        data = {
            "agent_id": run.agent_id,
            "conversation_id": run.conversation_id,
            "status": run.status,
            "stop_reason": wire_stop_reason(run.stop_reason),
            "waiting": run.waiting,
        }
        return self._note(run.id, "run_changed", data)

    def caught_up(self, runs: int, *, is_whole: bool) -> bytes:
        """`caught_up`, after the runs that have not ended."""
        return self._note(None, "caught_up", {"active": runs, "is_whole": is_whole})

    def over(self) -> bytes:
        """The mark of the stream's end."""
        return _DONE

    def _note(self, run_id: RunId | None, event_type: str, data: dict[str, Any]) -> bytes:
        return _data_bytes(_note(run_id, None, unix_ms(self._clock.now()), event_type, data))


def _wire_input(message: NewMessage, body: UserMessage) -> dict[str, Any]:
    shown = {"id": message.id, "otid": otid_of(message.id, body.otid), "role": body.role}
    return {**shown, "content": wire_content(body.content)}


def _wire_decided(approval: Approval, asked_by: Run | None = None) -> dict[str, Any]:
    """A call and its decision. `asked_by` is the call's run, which may have ended without a decision."""
    decision = approval.decision
    edited = None if decision is None else decision.edited_arguments
    data = {
        "approval_id": approval.id,
        "tool_call_id": approval.tool_call_id,
        "decision": _verdict(approval, asked_by),
        "reason": None if decision is None else decision.reason,
        "edited": edited is not None,
        "decided_by": approval.decided_by,
    }
    return data if edited is None else {**data, "edited_arguments": edited}


def _verdict(approval: Approval, asked_by: Run | None) -> str:
    decision = approval.decision
    if approval.decided_by == EXPIRY:
        return "expired"
    if asked_by is not None and asked_by.status is RunStatus.CANCELLED and approval.decided_at == asked_by.completed_at:
        return "expired" if asked_by.cause == "approval_expired" else "cancelled"
    if decision is not None and decision.kind == "tool":
        return "tool_return"
    return "approve" if decision is not None and decision.approve else "deny"


def _note_of_leg(leg: Leg, seq: Seq, at: int, event_type: str, data: dict[str, Any]) -> bytes:
    cursor = ThreadCursor(leg.turn, leg.number, seq)
    return _event_bytes(cursor, _note(leg.run.id, seq, at, event_type, data))


def _note(run_id: RunId | None, seq: Seq | None, at: int, event_type: str, data: dict[str, Any]) -> dict[str, Any]:
    note_id = f"message-{uuid5(NAMESPACE_OID, f'{run_id}:{seq}:{event_type}:{at}')}"
    head = envelope("event_message", message_id=note_id, date=date_of(at // 1000), run_id=run_id, seq_id=seq)
    return {**head, "event_type": event_type, "event_data": data}


def _event_bytes(cursor: ThreadCursor, body: dict[str, Any], *, kind: bytes = b"") -> bytes:
    place = str(cursor)
    return b"id: %b\n%b" % (place.encode(), kind) + _data_bytes({**body, "cursor": place})


def _data_bytes(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encoder.encode(body)
