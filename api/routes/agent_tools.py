"""The tools of an agent, and which of their calls wait for a person."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel

from api.access.callers import may_see_instructions
from api.agent_answers import agent_answer
from api.dependencies import (
    AgentIdPath,
    CallerDep,
    NewestFirst,
    ProjectDep,
    ServicesDep,
    SubmissionHeadersDep,
    ToolIdPath,
)
from api.direct_route import LateRoute
from api.event_stream import json_answer
from api.letta.conversations import run_or_refusal
from api.letta.tools import (
    ToolRunRequest,
    refuse_tool_of_clients,
    wire_tool,
    wire_tool_result,
    without_source,
)
from api.runs.command import keys_of
from shared.domain.errors import InvalidRequest
from shared.domain.runs import TOOL_RUN
from shared.sql.definitions.tools import ToolFilter

router = APIRouter(prefix="/v1/agents/{agent_id}/tools", tags=["agents"], route_class=LateRoute)


class ApprovalSetting(BaseModel):
    """Whether a tool's calls wait for a person. Letta's SDK for TypeScript sends the second name."""

    requires_approval: bool | None = None
    body_requires_approval: bool | None = None


@router.get("")
async def list_tools_of_agent(
    agent_id: AgentIdPath, services: ServicesDep, caller: CallerDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's tools; without their source for a key of single agents."""
    await services.agents.get(caller.project_id, agent_id)
    found = await services.tools.list(caller.project_id, ToolFilter(agent_id=agent_id), page)
    shown = [wire_tool(tool) for tool in found]
    return shown if may_see_instructions(caller) else [without_source(tool) for tool in shown]


@router.patch("/attach/{tool_id}")
async def attach_tool(
    agent_id: AgentIdPath, tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Gives the agent a tool."""
    agent = await services.agents.attach_tool(project_id, agent_id, tool_id, services.clock.now())
    return await agent_answer(services, agent)


@router.patch("/detach/{tool_id}")
async def detach_tool(
    agent_id: AgentIdPath, tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Takes a tool from the agent."""
    agent = await services.agents.detach_tool(project_id, agent_id, tool_id, services.clock.now())
    return await agent_answer(services, agent)


@router.post("/{tool_name}/run", response_model=None)
async def run_tool(
    agent_id: AgentIdPath,
    tool_name: str,
    services: ServicesDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
    request: ToolRunRequest | None = None,
) -> Response:
    """Calls one of the agent's tools as the agent would, without asking its model or anybody for approval, and answers
    with the result when it is there. The run goes on when the client leaves."""
    request, tool = request or ToolRunRequest(), await services.tool_runs.find(project_id, agent_id, tool_name)
    refuse_tool_of_clients(tool)
    keys = keys_of(headers, f"{TOOL_RUN} {tool.name}", services.clock.now(), body=request.model_dump_json)
    run = run_or_refusal(*await services.tool_runs.run(agent_id, tool, request.arguments(), keys))
    if isinstance(run, Response):
        return run
    return await json_answer(wire_tool_result(await services.tool_runs.result(run)))


@router.patch("/approval/{tool_name}")
async def set_tool_approval(
    agent_id: AgentIdPath,
    tool_name: str,
    services: ServicesDep,
    project_id: ProjectDep,
    body: Annotated[ApprovalSetting | None, Body()] = None,
    requires_approval: bool | None = None,
) -> None:
    """Sets whether the agent's calls of a tool wait for a person. The body wins over the query."""
    given = (body.requires_approval, body.body_requires_approval) if body is not None else ()
    required = next((value for value in (*given, requires_approval) if value is not None), None)
    if required is None:
        raise InvalidRequest(
            'requires_approval is missing: send {"requires_approval": true} or false', field="requires_approval"
        )
    await services.agents.set_approval_override(
        project_id, agent_id, tool_name, required=required, now=services.clock.now()
    )
