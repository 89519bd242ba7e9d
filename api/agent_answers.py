"""Answers that show agents: fetches what their state is made of, and what they wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.letta.agent_state import PENDING_APPROVAL, wire_agent
from api.letta.messages import wire_message
from api.services import Services
from shared.domain.agents import Agent
from shared.domain.ids import AgentId, ProjectId, ThreadId
from shared.sql.history.messages import MessageStore
from shared.sql.runs.approvals import ApprovalStore


async def agent_answers(
    services: Services, agents: Sequence[Agent], include: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The wire's states of the agents."""
    wanted = include or ()
    answers: list[dict[str, Any]] = []
    for details in await services.agents.details(agents):
        agent = details.agent
        waits = PENDING_APPROVAL in wanted
        pending = await services.pending_approval(agent.project_id, agent.id) if waits else None
        answers.append(wire_agent(details, services.environment, include=wanted, pending_approval=pending))
    return answers


async def agent_answer(services: Services, agent: Agent, include: Sequence[str] | None = None) -> dict[str, Any]:
    """The wire's state of one agent."""
    [answer] = await agent_answers(services, [agent], include)
    return answer


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
