"""Agents."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from api.access.callers import may_see_secrets
from api.agent_answers import agent_answer, agent_answers, changed_agent_answer, new_agent_answer
from api.dependencies import AgentIdPath, CallerDep, NewestFirst, ProjectDep, ServicesDep, Texts
from api.direct_route import DirectRoute
from api.letta.agents import SECRETS, AgentCreate, AgentUpdate, first_messages, new_agent
from api.letta.blocks import new_block
from api.letta.context import wire_context
from api.model_choice import with_served_model
from shared.concurrency import beside
from shared.domain.agents import Agent, characters_of_memory, render_system
from shared.domain.ids import ThreadId
from shared.sql.definitions.agents import AgentFilter, AgentOrder

router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=DirectRoute)


async def _agent_filter(
    name: str | None = None,
    query_text: str | None = None,
    tags: Texts = None,
    match_all_tags: bool = False,
    last_stop_reason: str | None = None,
    identity_id: str | None = None,
    template_id: str | None = None,
    base_template_id: str | None = None,
    show_hidden_agents: bool = False,
) -> AgentFilter:
    return AgentFilter(
        name=name,
        query_text=query_text,
        tags=tags or (),
        match_all_tags=match_all_tags,
        last_stop_reason=last_stop_reason,
        identity_id=identity_id,
        template_id=template_id,
        base_template_id=base_template_id,
        show_hidden=show_hidden_agents,
    )


@router.post("")
async def create_agent(
    body: AgentCreate, response: Response, services: ServicesDep, caller: CallerDep, include: Texts = None
) -> dict[str, Any]:
    """Makes an agent, and the memory blocks that come with it."""
    body = with_served_model(body, services.models, response)
    body = body.model_copy(update={"model": services.models.needed(body.handle())})
    first = body.initial_message_sequence or ()
    services.input_limits.refuse_long_messages([one.texts() for one in first], "initial_message_sequence")
    now, project_id = services.clock.now(), caller.project_id
    await services.base_tools.fill(project_id)
    named_tools = await services.tools.ids_by_name(project_id, body.tools or (), if_there=body.base_tools())
    names = await services.tools.names(project_id, [*named_tools, *(body.tool_ids or ())])
    created = await services.agents.create(
        new_agent(body, project_id, services.ids, now, named_tools, names),
        system_message_id=services.ids.message(),
        new_blocks=[new_block(block, project_id, services.ids, now) for block in body.filled_blocks()],
        first_messages=first_messages(body.initial_message_sequence or (), services.ids, now),
    )
    return await new_agent_answer(services, created, include, caller)


@router.get("")
async def list_agents(
    services: ServicesDep,
    caller: CallerDep,
    page: NewestFirst,
    wanted: Annotated[AgentFilter, Depends(_agent_filter)],
    include: Texts = None,
    order_by: AgentOrder = "created_at",
    sort_by: AgentOrder | None = None,
) -> list[dict[str, Any]]:
    """The project's agents. `sort_by` is the older name of `order_by`."""
    found = await services.agents.list(caller.project_id, wanted, page, sort_by or order_by)
    return await agent_answers(services, found, include, caller)


@router.get("/count")
async def count_agents(
    services: ServicesDep, project_id: ProjectDep, wanted: Annotated[AgentFilter, Depends(_agent_filter)]
) -> int:
    """How many agents the project has."""
    return await services.agents.count(project_id, wanted)


@router.get("/{agent_id}")
async def retrieve_agent(
    agent_id: AgentIdPath, services: ServicesDep, caller: CallerDep, include: Texts = None
) -> dict[str, Any]:
    """One agent."""
    return await agent_answer(services, await services.agents.get(caller.project_id, agent_id), include, caller)


@router.patch("/{agent_id}")
async def update_agent(
    agent_id: AgentIdPath,
    body: AgentUpdate,
    response: Response,
    services: ServicesDep,
    caller: CallerDep,
    include: Texts = None,
) -> dict[str, Any]:
    """Changes an agent. A run in progress goes on as it began until its next step."""
    body = with_served_model(body, services.models, response)
    change = partial(body.apply, sees_secrets=may_see_secrets(caller))
    agent = await services.agents.update(caller.project_id, agent_id, change, services.clock.now())
    return await changed_agent_answer(services, agent, include, caller)


@router.delete("/{agent_id}")
async def delete_agent(agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes an agent with its histories and runs."""
    await services.agents.delete(project_id, agent_id)
    return {"message": f"Agent id={agent_id} successfully deleted"}


@router.get("/{agent_id}/core-memory")
async def retrieve_memory(agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """The agent's memory blocks, as its state shows them."""
    return (await agent_answer(services, await services.agents.get(project_id, agent_id)))["memory"]


@router.get("/{agent_id}/secrets")
async def list_secrets(agent_id: AgentIdPath, services: ServicesDep, caller: CallerDep) -> list[dict[str, Any]]:
    """The agent's secrets, as its state shows them with `include=agent.secrets`."""
    agent = await services.agents.get(caller.project_id, agent_id)
    return (await agent_answer(services, agent, [SECRETS], caller))["secrets"]


@router.get("/{agent_id}/context")
async def retrieve_context(agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """What the agent's context holds, with estimated sizes."""
    [details] = await services.agents.details([await services.agents.get(project_id, agent_id)])
    passages = await services.passages.count_of_agent(project_id, agent_id)
    history = await services.messages.context(project_id, ThreadId(agent_id))
    return await asyncio.to_thread(wire_context, details, history, passages=passages)


@router.post("/{agent_id}/recompile")
async def recompile_agent(
    agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep, dry_run: bool = False
) -> str:
    """Renders the agent's instructions anew, as the model gets them. Stores them unless it is a dry run."""
    agent = await services.agents.get(project_id, agent_id)
    if not dry_run:
        agent = await services.agents.update(project_id, agent_id, _as_it_is, services.clock.now())
    blocks = await services.blocks.for_agent(project_id, agent_id)
    return await beside(partial(render_system, agent, blocks), characters_of_memory(blocks))


def _as_it_is(agent: Agent) -> Agent:
    return agent
