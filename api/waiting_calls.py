"""The calls that wait for decisions, in the form that all answers share: refusals, refused runs and parked runs."""

import json
from collections.abc import Sequence
from typing import Any

from shared.domain.approvals import WaitingCalls
from shared.domain.ids import is_id

BY_A_PERSON = '{"decision": "approve"} or {"decision": "deny"}'
BY_THE_CLIENT = '{"decision": "tool_return", "tool_return": "…"} or {"decision": "deny"}'
"""Bodies of a decision on one call, by the tool's kind: the client runs its own tools, so it cannot approve them."""


def wire_waiting(waiting: WaitingCalls) -> dict[str, Any]:
    """The names of the waiting calls, and the requests that decide them."""
    return {
        "pending_request_id": waiting.message_id,
        "run_id": waiting.run_id,
        "tool_call_ids": waiting.tool_call_ids,
        "approval_ids": waiting.approval_ids,
        "resolve": _how_to_resolve(waiting),
    }


def _how_to_resolve(waiting: WaitingCalls) -> str:
    """The requests as text, with bodies that can be sent unchanged."""
    of_people = [approval_id for approval_id in waiting.approval_ids if approval_id not in waiting.client_side]
    one = [
        f"{_paths(ids)} with {bodies}"
        for ids, bodies in ((of_people, BY_A_PERSON), (waiting.client_side, BY_THE_CLIENT))
        if ids
    ]
    in_conversation = is_id(waiting.thread_id, "conv")
    history = f"conversations/{waiting.thread_id}" if in_conversation else f"agents/{waiting.agent_id}"
    items = [
        {"type": "tool", "tool_call_id": call_id, "tool_return": "…", "status": "success"}
        if approval_id in waiting.client_side
        else {"type": "approval", "tool_call_id": call_id, "approve": True}
        for call_id, approval_id in zip(waiting.tool_call_ids, waiting.approval_ids, strict=True)
    ]
    together = json.dumps({"messages": [{"type": "approval", "approvals": items}]}, ensure_ascii=False)
    return (
        f"{'; '.join(one)}; all of them at once by POST /v1/{history}/messages with {together}; "
        f"or POST /v1/runs/{waiting.run_id}/cancel"
    )


def _paths(approval_ids: Sequence[str]) -> str:
    return " or ".join(f"POST /v1/approvals/{approval_id}" for approval_id in approval_ids)
