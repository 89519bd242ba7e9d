"""What waits for a decision, as every answer of the API names it: refusals, refused runs and parked runs."""

from typing import Any

from shared.domain.approvals import WaitingCalls
from shared.domain.ids import is_id

CODE = "PENDING_APPROVAL"
"""The wire's code for a request that meets calls that wait."""


def wire_waiting(waiting: WaitingCalls) -> dict[str, Any]:
    """The names of what waits, and the requests that decide it."""
    return {
        "pending_request_id": waiting.message_id,
        "run_id": waiting.run_id,
        "tool_call_ids": waiting.tool_call_ids,
        "approval_ids": waiting.approval_ids,
        "resolve": _how_to_resolve(waiting),
    }


def _how_to_resolve(waiting: WaitingCalls) -> str:
    one = " or ".join(f"POST /v1/approvals/{approval_id}" for approval_id in waiting.approval_ids)
    in_conversation = is_id(waiting.thread_id, "conv")
    history = f"conversations/{waiting.thread_id}" if in_conversation else f"agents/{waiting.agent_id}"
    together = (
        f'POST /v1/{history}/messages with {{"messages": [{{"type": "approval", "approvals": '
        '[{"type": "approval", "tool_call_id": "…", "approve": true}]}]}'
    )
    return (
        f'{one} with {{"decision": "approve"}} or {{"decision": "deny"}}, all of them at once by {together}, '
        f"or POST /v1/runs/{waiting.run_id}/cancel"
    )
