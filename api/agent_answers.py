"""Answers that show agents: fetches what their state is made of."""

from collections.abc import Sequence
from typing import Any

from api.letta.agent_state import PENDING_APPROVAL, wire_agent
from api.services import Services
from shared.domain.agents import Agent


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
