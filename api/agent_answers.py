"""Answers that show agents: fetches what their state is made of, and what they wait for."""

from collections.abc import Sequence
from typing import Any

from api.letta.agent_state import PENDING_APPROVAL, wire_agent
from api.letta.messages import wire_approval_request
from api.services import Services
from shared.domain.agents import Agent
from shared.domain.ids import AgentId, ThreadId


async def agent_answers(
    services: Services, agents: Sequence[Agent], include: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The wire's states of the agents. As many queries for a thousand agents as for one."""
    wanted = include or ()
    waiting = await _waiting(services, agents) if PENDING_APPROVAL in wanted else {}
    return [
        wire_agent(
            details, services.environment, include=wanted, pending_approval=waiting.get(ThreadId(details.agent.id))
        )
        for details in await services.agents.details(agents)
    ]


async def agent_answer(services: Services, agent: Agent, include: Sequence[str] | None = None) -> dict[str, Any]:
    """The wire's state of one agent."""
    [answer] = await agent_answers(services, [agent], include)
    return answer


async def _waiting(services: Services, agents: Sequence[Agent]) -> dict[ThreadId, dict[str, Any] | None]:
    """The request that waits in the default history of each agent, as the wire's message. All are of one project."""
    asked = await services.approvals.waiting_on_threads([ThreadId(agent.id) for agent in agents])
    if not asked:
        return {}
    found = await services.messages.find(agents[0].project_id, [one.message_id for one in asked.values()])
    return {ThreadId(AgentId(message.agent_id)): wire_approval_request(message) for message in found}
