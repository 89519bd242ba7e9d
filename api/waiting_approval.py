"""What an agent waits for, as the wire's approval request message."""

from dataclasses import dataclass
from typing import Any

from api.letta.messages import wire_message
from shared.domain.ids import AgentId, ProjectId, ThreadId
from shared.sql.approval_store import ApprovalStore
from shared.sql.message_store import MessageStore


@dataclass(frozen=True, kw_only=True)
class WaitingApproval:
    """Finds the request that waits in a history."""

    approvals: ApprovalStore
    messages: MessageStore

    async def of_agent(self, project_id: ProjectId, agent_id: AgentId) -> dict[str, Any] | None:
        """The request that waits in the agent's default history; None when none does."""
        waiting = await self.approvals.waiting_on_thread(ThreadId(agent_id))
        if not waiting:
            return None
        message = await self.messages.find(project_id, waiting[0].message_id)
        shown = [part for part in wire_message(message) if part["message_type"] == "approval_request_message"]
        return shown[0] if shown else None
