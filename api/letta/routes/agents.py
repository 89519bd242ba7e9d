"""Agents: their state, their tools and which calls wait for a person, their memory blocks by label, their archives."""

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Response
from pydantic import BaseModel

from api.access.callers import may_see_instructions, may_see_secrets
from api.agent_answers import agent_answer, agent_answers, changed_agent_answer, new_agent_answer
from api.dependencies import (
    AgentIdPath,
    ArchiveIdPath,
    BlockIdPath,
    CallerDep,
    Limit,
    NewestFirst,
    ProjectDep,
    ServicesDep,
    SubmissionHeadersDep,
    Texts,
    ToolIdPath,
)
from api.direct_route import DirectRoute, LateRoute
from api.errors import Refused
from api.event_stream import json_answer
from api.letta.agents import SECRETS, AgentCreate, AgentUpdate, first_messages, new_agent
from api.letta.blocks import BlockUpdate, new_block, wire_block
from api.letta.context import wire_context
from api.letta.conversations import run_or_refusal
from api.letta.passages import PassageCreate, aware, wire_memories, wire_passage, wire_passages
from api.letta.tools import (
    ToolRunRequest,
    refuse_tool_of_clients,
    wire_tool,
    wire_tool_result,
    without_source,
)
from api.model_choice import with_served_model
from api.runs.command import keys_of
from shared.concurrency import beside
from shared.domain.agents import Agent, Block, characters_of_memory, render_system
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.ids import PassageId, ThreadId
from shared.domain.runs import TOOL_RUN
from shared.domain.searches import DEFAULT_FOUND, LONGEST_QUERY, MOST_FOUND, MOST_TAGS, PassageQuery, moment_of
from shared.sql.archival.passages import PassagePage
from shared.sql.definitions.agents import AgentFilter, AgentOrder
from shared.sql.definitions.blocks import BlockFilter
from shared.sql.definitions.tools import ToolFilter

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


tools_router = APIRouter(prefix="/v1/agents/{agent_id}/tools", tags=["agents"], route_class=LateRoute)


class ApprovalSetting(BaseModel):
    """Whether a tool's calls wait for a person. Letta's SDK for TypeScript sends the second name."""

    requires_approval: bool | None = None
    body_requires_approval: bool | None = None


@tools_router.get("")
async def list_tools_of_agent(
    agent_id: AgentIdPath, services: ServicesDep, caller: CallerDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's tools; without their source for a key of single agents."""
    await services.agents.get(caller.project_id, agent_id)
    found = await services.tools.list(caller.project_id, ToolFilter(agent_id=agent_id), page)
    shown = [wire_tool(tool) for tool in found]
    return shown if may_see_instructions(caller) else [without_source(tool) for tool in shown]


@tools_router.patch("/attach/{tool_id}")
async def attach_tool(
    agent_id: AgentIdPath, tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Gives the agent a tool."""
    agent = await services.agents.attach_tool(project_id, agent_id, tool_id, services.clock.now())
    return await agent_answer(services, agent)


@tools_router.patch("/detach/{tool_id}")
async def detach_tool(
    agent_id: AgentIdPath, tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Takes a tool from the agent."""
    agent = await services.agents.detach_tool(project_id, agent_id, tool_id, services.clock.now())
    return await agent_answer(services, agent)


@tools_router.post("/{tool_name}/run", response_model=None)
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


@tools_router.patch("/approval/{tool_name}")
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


blocks_router = APIRouter(prefix="/v1/agents/{agent_id}/core-memory/blocks", tags=["agents"], route_class=LateRoute)


@blocks_router.get("")
async def list_blocks_of_agent(
    agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's blocks."""
    await services.agents.get(project_id, agent_id)
    blocks = await services.blocks.list(project_id, BlockFilter(agent_id=agent_id), page)
    return [wire_block(block) for block in blocks]


@blocks_router.patch("/attach/{block_id}")
async def attach_block(
    agent_id: AgentIdPath, block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Gives the agent a block."""
    agent = await services.agents.attach_block(project_id, agent_id, block_id, services.clock.now())
    return await agent_answer(services, agent)


@blocks_router.patch("/detach/{block_id}")
async def detach_block(
    agent_id: AgentIdPath, block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Takes a block from the agent."""
    agent = await services.agents.detach_block(project_id, agent_id, block_id, services.clock.now())
    return await agent_answer(services, agent)


@blocks_router.get("/{block_label}")
async def retrieve_block_of_agent(
    agent_id: AgentIdPath, block_label: str, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """The agent's block of this label."""
    return wire_block(await services.blocks.with_label(project_id, agent_id, block_label))


@blocks_router.patch("/{block_label}")
async def update_block_of_agent(
    agent_id: AgentIdPath, block_label: str, body: BlockUpdate, services: ServicesDep, caller: CallerDep
) -> dict[str, Any]:
    """Changes the agent's block of this label, for every agent that has it."""

    def change(block: Block) -> Block:
        if block.read_only and caller.scopes.agents:
            said = f"FORBIDDEN: the block {block.label!r} is read-only, for the agent and for keys of single agents"
            raise Refused(403, ErrorCode.FORBIDDEN, said, field="block_label")
        return body.apply(block)

    block = await services.blocks.with_label(caller.project_id, agent_id, block_label)
    return wire_block(await services.blocks.update(caller.project_id, block.id, change, services.clock.now()))


archives_router = APIRouter(prefix="/v1/agents/{agent_id}", tags=["agents"], route_class=LateRoute)


@archives_router.get("/archival-memory")
async def list_memories(
    agent_id: AgentIdPath,
    services: ServicesDep,
    project_id: ProjectDep,
    limit: Limit = 100,
    after: str | None = None,
    before: str | None = None,
    search: str | None = None,
    ascending: bool = True,
) -> list[dict[str, Any]]:
    """The passages in the agent's archives."""
    page = PassagePage(limit, after or None, before or None, ascending, search)
    found = await services.passages.list_of_agent(project_id, agent_id, page)
    return await wire_passages(found, services.environment)


@archives_router.post("/archival-memory")
async def create_memory(
    agent_id: AgentIdPath, body: PassageCreate, services: ServicesDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """Stores a passage in the agent's archive, which is made with the first one."""
    passage = await services.archival_memory.insert(
        project_id, agent_id, body.text, body.tags or (), created_at=aware(body.created_at)
    )
    return [wire_passage(passage, services.environment)]


@archives_router.get("/archival-memory/search")
async def search_memories(
    agent_id: AgentIdPath,
    services: ServicesDep,
    project_id: ProjectDep,
    query: Annotated[str, Query(max_length=LONGEST_QUERY)],
    tags: Annotated[list[str] | None, Query(max_length=MOST_TAGS)] = None,
    tag_match_mode: Literal["any", "all"] = "any",
    top_k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = DEFAULT_FOUND,
    start_datetime: str | None = None,
    end_datetime: str | None = None,
) -> dict[str, Any]:
    """Finds passages by words and by meaning, as the agent's own tool does."""
    agent = await services.agents.get(project_id, agent_id)
    found = await services.archival_memory.search(
        project_id,
        PassageQuery(
            text=query,
            agent_id=agent_id,
            tags=tags or (),
            match_all_tags=tag_match_mode == "all",
            start=moment_of(start_datetime, agent.timezone, "start_datetime") if start_datetime else None,
            end=moment_of(end_datetime, agent.timezone, "end_datetime", is_end=True) if end_datetime else None,
            limit=top_k,
        ),
    )
    return wire_memories(found, agent.timezone)


@archives_router.delete("/archival-memory/{memory_id}")
async def delete_memory(
    agent_id: AgentIdPath, memory_id: str, services: ServicesDep, project_id: ProjectDep
) -> dict[str, str]:
    """Deletes a passage of the agent's."""
    await services.passages.delete_from_agent(project_id, agent_id, PassageId(memory_id))
    return {"message": f"Memory id={memory_id} successfully deleted"}


@archives_router.patch("/archives/attach/{archive_id}")
async def attach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, services: ServicesDep, project_id: ProjectDep
) -> None:
    """Gives the agent an archive."""
    await services.archives.attach(project_id, agent_id, archive_id)


@archives_router.patch("/archives/detach/{archive_id}")
async def detach_archive(
    agent_id: AgentIdPath, archive_id: ArchiveIdPath, services: ServicesDep, project_id: ProjectDep
) -> None:
    """Takes an archive from the agent; the archive stays."""
    await services.archives.detach(project_id, agent_id, archive_id)
