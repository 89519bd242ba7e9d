"""Domain structs to column values and back."""

from typing import Any, TypeVar

import msgspec
from sqlalchemy import RowMapping

from shared.domain.approvals import Approval
from shared.domain.errors import CancelMode
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import Decision, Message, MessageBody, NewMessage
from shared.domain.runs import CancelRequest, Run, RunError, RunOptions, Usage

Struct = TypeVar("Struct")


def to_json(value: Any) -> str:
    """A struct (or a list of them) as JSON text."""
    return msgspec.json.encode(value).decode()


def from_json(text: str, kind: type[Struct]) -> Struct:
    """The struct of a JSON column."""
    return msgspec.json.decode(text, type=kind)


def run_of(row: RowMapping) -> Run:
    """The run of a row of `runs`."""
    cancel = None
    if row["cancel_requested_at"] is not None:
        cancel = CancelRequest(
            requested_at=row["cancel_requested_at"],
            actor=row["cancel_actor"],
            reason=row["cancel_reason"],
            mode=CancelMode(row["cancel_mode"]),
            acknowledged_at=row["cancel_acknowledged_at"],
        )
    whole = {
        name: row[name]
        for name in (
            "id", "project_id", "agent_id", "thread_id", "conversation_id", "number", "stop_reason", "cause",
            "continues", "turn", "ring", "fence", "stalled_claims", "step_count", "last_seq", "checkpoint_seq",
            "reserved_seq", "reserved_log", "callback_url", "callback_sent_at", "callback_status_code",
            "callback_error", "created_at", "started_at", "completed_at",
        )
    }  # fmt: skip
    return Run(
        **whole,
        status=RunStatus(row["status"]),
        error=None if row["error"] is None else from_json(row["error"], RunError),
        options=from_json(row["options"], RunOptions),
        input=from_json(row["input"], list[NewMessage]),
        cancel=cancel,
        usage=from_json(row["usage"], Usage),
    )


def message_of(row: RowMapping) -> Message:
    """The message of a row of `messages`."""
    return Message(
        id=row["id"],
        agent_id=row["agent_id"],
        thread_id=row["thread_id"],
        conversation_id=row["conversation_id"],
        run_id=row["run_id"],
        step_id=row["step_id"],
        created_at=row["created_at"],
        turn=row["turn"],
        position=row["position"],
        body=msgspec.json.decode(row["body"], type=MessageBody),
    )


def approval_of(row: RowMapping) -> Approval:
    """The approval request of a row of `approvals`."""
    values = {name: row[name] for name in Approval.__struct_fields__ if name != "decision"}
    decision = None if row["decision"] is None else from_json(row["decision"], Decision)
    return Approval(**values, decision=decision)
