"""Approval requests, as stored: one row per tool call that waits for a person or for the client."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from shared.domain.ids import AgentId, ApprovalId, MessageId, ProjectId, RunId, ThreadId
from shared.domain.messages import Decision, NewMessage

DENIAL = "Error: request to call tool denied. User reason: {reason}"
DENIED_BY_CANCEL = "The user cancelled the request, so the tool call was denied."
DENIED_BY_EXPIRY = "Nobody decided in time, so the tool call was denied."

EXPIRY = "expiry"
"""The name of the actor of decisions that the server makes because an approval has expired."""


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for a decision, or has one."""

    id: ApprovalId
    project_id: ProjectId
    agent_id: AgentId
    thread_id: ThreadId
    run_id: RunId
    message_id: MessageId
    """The assistant's message with the call, as clients see it."""
    tool_call_id: str
    tool_name: str
    arguments: str
    arguments_hash: str
    """SHA-256 of the arguments as shown: a decision is valid for these alone."""
    tool_version: str | None = None
    """The version of the tool as shown, likewise (`Tool.version`)."""
    client_side: bool
    """The client runs the tool and sends its result."""
    asked_at: datetime
    expires_at: datetime | None = None
    on_expiry: Literal["keep", "deny", "cancel"] = "keep"
    decision: Decision | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    continued_by: RunId | None = None
    """The continuation: the run that follows the decision."""


class WaitingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a thread waits for, by the names under which clients can decide them."""

    run_id: RunId
    """The parked run."""
    agent_id: AgentId
    thread_id: ThreadId
    message_id: MessageId
    """The assistant's message with the calls."""
    tool_call_ids: list[str]
    """The undecided calls, in their order."""
    approval_ids: list[ApprovalId]
    client_side: list[ApprovalId] = []
    """Those of the calls whose tools the client runs: it sends their results, and cannot approve them."""


def waiting_calls(asked: Sequence[Approval]) -> WaitingCalls | None:
    """Returns the names of the undecided calls among the requests of one parked run; None if all are decided. Every
    response with these names calls this function."""
    undecided = [approval for approval in asked if approval.decision is None]
    if not undecided:
        return None
    first = undecided[0]
    return WaitingCalls(
        run_id=first.run_id,
        agent_id=first.agent_id,
        thread_id=first.thread_id,
        message_id=first.message_id,
        tool_call_ids=[approval.tool_call_id for approval in undecided],
        approval_ids=[approval.id for approval in undecided],
        client_side=[approval.id for approval in undecided if approval.client_side],
    )


def hash_of(arguments: str) -> str:
    """SHA-256 of a call's arguments, hexadecimal."""
    return hashlib.sha256(arguments.encode()).hexdigest()


class ReopenedTurn(NamedTuple):
    """The turn of a run whose calls were decided before, for a run that continues it with other decisions."""

    asked_by: RunId
    """The run that parked itself with these calls."""
    messages: Sequence[NewMessage]
    """Copies of its turn, up to the answer with the calls."""
    decisions: Mapping[ApprovalId, Decision]
    """The decision on each call that waited, by the id of its approval."""
