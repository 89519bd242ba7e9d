"""Approvals on the wire. Letta has none of its own: the shapes are ours, in Letta's manner."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.bounded_fields import Names
from api.letta.content import wire_content
from api.letta.envelope import wire_time
from api.letta.runs import wire_run
from shared.domain.approvals import Approval
from shared.domain.ids import is_id
from shared.domain.messages import Decision
from shared.domain.runs import Run

Waiting = Annotated[float, Field(gt=0, le=315_360_000, description="Seconds, up to ten years.")]
Text = Annotated[str, Field(max_length=1_000_000)]


class DecisionIn(BaseModel):
    """The body of a decision on one tool call."""

    # A misspelled `arguments` must not let the call run with those that the model wrote.
    model_config = ConfigDict(extra="forbid")

    decision: Literal["approve", "deny", "tool_return"]
    reason: Annotated[
        str | None, Field(max_length=10_000, description="Told to the model when the call is denied.")
    ] = None
    arguments: Annotated[dict[str, Any] | None, Field(description="Run the tool with these arguments instead.")] = None
    arguments_hash: Annotated[str | None, Field(description="Decide only if the arguments are the ones shown.")] = None
    tool_version: Annotated[str | None, Field(description="Decide only if the tool is the one shown.")] = None
    tool_return: Annotated[
        Text | list[dict[str, Any]] | None,
        Field(description="The result, for a tool that was run elsewhere: text, or parts of text and images."),
    ] = None
    status: Literal["success", "error"] = "success"
    stdout: Names | None = None
    stderr: Names | None = None
    decided_by: Annotated[str, Field(min_length=1, max_length=200, description="Who decides, for the record.")] = "api"

    @model_validator(mode="after")
    def _fits_the_decision(self) -> "DecisionIn":
        if self.arguments is not None and self.decision != "approve":
            raise ValueError("arguments may be given with the decision 'approve' only")
        if self.decision == "tool_return" and self.tool_return is None:
            raise ValueError("tool_return is missing: the decision 'tool_return' brings the tool's result")
        given = self.model_fields_set & {"tool_return", "status", "stdout", "stderr"}
        if self.decision != "tool_return" and given:
            raise ValueError(f"{', '.join(sorted(given))} may be given with the decision 'tool_return' only")
        return self


def wire_approval(approval: Approval) -> dict[str, Any]:
    """A tool call that waits, and how to decide it; or how it was decided."""
    decision = approval.decision
    return {
        "id": approval.id,
        "status": _status(decision),
        "run_id": approval.run_id,
        "agent_id": approval.agent_id,
        "conversation_id": approval.thread_id if is_id(approval.thread_id, "conv") else None,
        "message_id": approval.message_id,
        "tool_call_id": approval.tool_call_id,
        "tool_name": approval.tool_name,
        "arguments": approval.arguments,
        "arguments_object": parsed_arguments(approval.arguments),
        "arguments_hash": approval.arguments_hash,
        "tool_version": approval.tool_version,
        "client_side": approval.client_side,
        "asked_at": wire_time(approval.asked_at),
        "expires_at": wire_time(approval.expires_at),
        "on_expiry": approval.on_expiry,
        "decision": None if decision is None else _decision(decision),
        "decided_at": wire_time(approval.decided_at),
        "decided_by": approval.decided_by,
        "continued_by": approval.continued_by,
        "decide": _how_to_decide(approval) if decision is None else None,
    }


def wire_decided(approval: Approval, run: Run | None) -> dict[str, Any]:
    """A decided call with the continuation of its run; `run` is null while other calls wait."""
    return {**wire_approval(approval), "run": None if run is None else wire_run(run)}


def parsed_arguments(text: str) -> dict[str, Any] | None:
    """The arguments as an object; None when the model did not write one."""
    try:
        return msgspec.json.decode(text.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _status(decision: Decision | None) -> str:
    if decision is None:
        return "waiting"
    if decision.kind == "tool":
        return "returned"
    return "approved" if decision.approve else "denied"


def _decision(decision: Decision) -> dict[str, Any]:
    if decision.kind == "tool":
        return {
            "decision": "tool_return",
            "tool_return": decision.tool_return if decision.parts is None else wire_content(decision.parts),
            "status": decision.status,
            "stdout": decision.stdout,
            "stderr": decision.stderr,
        }
    edited = decision.edited_arguments
    return {
        "decision": "approve" if decision.approve else "deny",
        "reason": decision.reason,
        "arguments": None if edited is None else parsed_arguments(edited),
    }


def _how_to_decide(approval: Approval) -> dict[str, Any]:
    return {
        "method": "POST",
        "path": f"/v1/approvals/{approval.id}",
        "decisions": ["tool_return", "deny"] if approval.client_side else ["approve", "deny", "tool_return"],
        "body": {
            "decision": "tool_return" if approval.client_side else "approve",
            "arguments_hash": approval.arguments_hash,
            **({} if approval.tool_version is None else {"tool_version": approval.tool_version}),
            **({"tool_return": "…"} if approval.client_side else {}),
        },
    }
