"""Routes of agents: their state, tools, approval gates, memory blocks by label, and archives."""

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Body, Depends, Response
from pydantic import BaseModel, BeforeValidator

from api.access.callers import may_see_instructions, may_see_secrets
from api.agent_answers import AgentAnswers
from api.dependencies import (
    AgentEditorDep,
    AgentIdPath,
    BlockIdPath,
    CallerDep,
    CancelServiceDep,
    ClockDep,
    IdMakerDep,
    Included,
    InputLimitsDep,
    MessageStoreDep,
    NewestFirst,
    OfferedModelsDep,
    ProjectDep,
    SubmissionHeadersDep,
    Texts,
    ToolIdPath,
    served,
)
from api.direct_route import DirectRoute, LateRoute
from api.errors import Refused
from api.event_stream import json_answer
from api.letta.agents import SECRETS, AgentCreate, AgentUpdate, first_messages, new_agent
from api.letta.context import wire_context
from api.letta.conversations import run_or_refusal
from api.letta.groups import SleeperMaker
from api.letta.memory import BlockUpdate, new_block, wire_block
from api.letta.messages import WireStopReason
from api.letta.routes.models import with_served_model
from api.letta.tools import ToolRunRequest, refuse_tool_of_clients, wire_tool, wire_tool_result, without_source
from api.runs.command import keys_of
from api.runs.single_runs import ToolRunService
from shared.archival.archival_memory import ArchivalMemory
from shared.concurrency import beside
from shared.domain.agents import Agent, Block, characters_of_memory, render_system
from shared.domain.errors import ErrorCode, InvalidRequest
from shared.domain.ids import ProjectId, ThreadId
from shared.domain.runs import TOOL_RUN
from shared.sql.archival.archives import ArchiveStore
from shared.sql.archival.passages import PassageStore
from shared.sql.definitions.agent_changes import AgentEditor
from shared.sql.definitions.agents import AgentFilter, AgentOrder
from shared.sql.definitions.blocks import BlockFilter, BlockStore
from shared.sql.definitions.tools import BaseToolSeeder, ToolFilter, ToolStore

AgentAnswersDep = Annotated[AgentAnswers, served(AgentAnswers)]
ArchivalMemoryDep = Annotated[ArchivalMemory, served(ArchivalMemory)]
ArchiveStoreDep = Annotated[ArchiveStore, served(ArchiveStore)]
BaseToolSeederDep = Annotated[BaseToolSeeder, served(BaseToolSeeder)]
BlockStoreDep = Annotated[BlockStore, served(BlockStore)]
PassageStoreDep = Annotated[PassageStore, served(PassageStore)]
SleeperMakerDep = Annotated[SleeperMaker, served(SleeperMaker)]
ToolRunServiceDep = Annotated[ToolRunService, served(ToolRunService)]
ToolStoreDep = Annotated[ToolStore, served(ToolStore)]


class AgentLinks(NamedTuple):
    """The services of a request that attaches an object to an agent, or detaches it."""

    editor: AgentEditor
    answers: AgentAnswers
    project_id: ProjectId
    now: datetime

    async def shown(self, change: Awaitable[Agent]) -> dict[str, Any]:
        """The agent after the change."""
        return await self.answers.one(await change)


async def _agent_links(
    editor: AgentEditorDep, answers: AgentAnswersDep, project_id: ProjectDep, clock: ClockDep
) -> AgentLinks:
    return AgentLinks(editor, answers, project_id, clock.now())


AgentLinksDep = Annotated[AgentLinks, Depends(_agent_links)]

router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=DirectRoute)


async def _agent_filter(
    name: str | None = None,
    query_text: str | None = None,
    tags: Texts = None,
    match_all_tags: bool = False,
    last_stop_reason: Annotated[WireStopReason | None, BeforeValidator(lambda given: given or None)] = None,
    identity_id: str | None = None,
    identifier_keys: Texts = None,
    template_id: str | None = None,
    base_template_id: str | None = None,
    show_hidden_agents: bool = False,
) -> AgentFilter:
    return AgentFilter(
        ids=() if identifier_keys else None,  # there are no identities, so no agent has one
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
    body: AgentCreate,
    response: Response,
    offered: OfferedModelsDep,
    input_limits: InputLimitsDep,
    clock: ClockDep,
    base_tools: BaseToolSeederDep,
    tool_store: ToolStoreDep,
    editor: AgentEditorDep,
    ids: IdMakerDep,
    agent_answers: AgentAnswersDep,
    sleepers: SleeperMakerDep,
    caller: CallerDep,
    include: Included = None,
) -> dict[str, Any]:
    """Creates an agent, its new memory blocks, and its sleep-time agent if the request asks for one."""
    body = with_served_model(body, offered, response)
    body = body.model_copy(update={"model": offered.needed(body.handle())})
    first = body.initial_message_sequence or ()
    input_limits.refuse_long_messages([one.texts() for one in first], "initial_message_sequence")
    now, project_id = clock.now(), caller.project_id
    await base_tools.fill(project_id)
    named_tools = await tool_store.ids_by_name(project_id, body.tools or (), if_there=body.base_tools())
    names = await tool_store.names(project_id, [*named_tools, *(body.tool_ids or ())])
    created = await editor.create(
        new_agent(body, project_id, ids, now, named_tools, names),
        system_message_id=ids.message(),
        new_blocks=[new_block(block, project_id, ids, now) for block in body.filled_blocks()],
        first_messages=first_messages(body.initial_message_sequence or (), ids, now),
        sleeper=await sleepers.maker(project_id) if body.enable_sleeptime else None,
    )
    return await agent_answers.new(created, include, caller)


@router.get("")
async def list_agents(
    editor: AgentEditorDep,
    agent_answers: AgentAnswersDep,
    caller: CallerDep,
    page: NewestFirst,
    wanted: Annotated[AgentFilter, Depends(_agent_filter)],
    include: Included = None,
    order_by: AgentOrder = "created_at",
    sort_by: AgentOrder | None = None,
) -> list[dict[str, Any]]:
    """The project's agents. `sort_by` is the older name of `order_by`."""
    found = await editor.list(caller.project_id, wanted, page, sort_by or order_by)
    return await agent_answers.all(found, include, caller)


@router.get("/count")
async def count_agents(
    editor: AgentEditorDep, project_id: ProjectDep, wanted: Annotated[AgentFilter, Depends(_agent_filter)]
) -> int:
    """The number of the project's agents."""
    return await editor.count(project_id, wanted)


@router.get("/{agent_id}")
async def retrieve_agent(
    agent_id: AgentIdPath,
    agent_answers: AgentAnswersDep,
    editor: AgentEditorDep,
    caller: CallerDep,
    include: Included = None,
) -> dict[str, Any]:
    """One agent."""
    return await agent_answers.one(await editor.get(caller.project_id, agent_id), include, caller)


@router.patch("/{agent_id}")
async def update_agent(
    agent_id: AgentIdPath,
    body: AgentUpdate,
    response: Response,
    offered: OfferedModelsDep,
    editor: AgentEditorDep,
    clock: ClockDep,
    agent_answers: AgentAnswersDep,
    sleepers: SleeperMakerDep,
    caller: CallerDep,
    include: Included = None,
) -> dict[str, Any]:
    """Changes an agent. A run in progress sees the changes from its next step."""
    body = with_served_model(body, offered, response)
    change = partial(body.apply, sees_secrets=may_see_secrets(caller))
    sleeper = await sleepers.maker(caller.project_id) if body.enable_sleeptime else None
    agent = await editor.update(caller.project_id, agent_id, change, clock.now(), sleeper=sleeper)
    return await agent_answers.changed(agent, include, caller)


@router.delete("/{agent_id}")
async def delete_agent(
    agent_id: AgentIdPath, editor: AgentEditorDep, cancels: CancelServiceDep, project_id: ProjectDep
) -> dict[str, str]:
    """Cancels an agent's active runs, and deletes the agent with its histories, its runs and its sleep-time agent."""
    await cancels.cancel_before_deletion(project_id, agent_id)
    await editor.delete(project_id, agent_id)
    return {"message": f"Agent id={agent_id} successfully deleted"}


@router.get("/{agent_id}/core-memory")
async def retrieve_memory(agent_id: AgentIdPath, links: AgentLinksDep) -> dict[str, Any]:
    """The agent's memory blocks, in the form of its state."""
    return (await links.shown(links.editor.get(links.project_id, agent_id)))["memory"]


@router.get("/{agent_id}/secrets")
async def list_secrets(
    agent_id: AgentIdPath, editor: AgentEditorDep, agent_answers: AgentAnswersDep, caller: CallerDep
) -> list[dict[str, Any]]:
    """The agent's secrets, in the form of its state with `include=agent.secrets`."""
    agent = await editor.get(caller.project_id, agent_id)
    return (await agent_answers.one(agent, [SECRETS], caller))["secrets"]


@router.get("/{agent_id}/context")
async def retrieve_context(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    passage_store: PassageStoreDep,
    message_store: MessageStoreDep,
    project_id: ProjectDep,
) -> dict[str, Any]:
    """The contents of the agent's context, with estimated sizes."""
    [details] = await editor.details([await editor.get(project_id, agent_id)])
    passages = await passage_store.count_of_agent(project_id, agent_id)
    history = await message_store.context(project_id, ThreadId(agent_id))
    return await asyncio.to_thread(wire_context, details, history, passages=passages)


@router.post("/{agent_id}/recompile")
async def recompile_agent(
    agent_id: AgentIdPath,
    editor: AgentEditorDep,
    clock: ClockDep,
    block_store: BlockStoreDep,
    project_id: ProjectDep,
    dry_run: bool = False,
) -> str:
    """Renders the agent's instructions anew, as the model gets them. Stores them, except in a dry run."""
    agent = await editor.get(project_id, agent_id)
    if not dry_run:
        agent = await editor.update(project_id, agent_id, lambda same: same, clock.now())
    blocks = await block_store.for_agent(project_id, agent_id)
    return await beside(partial(render_system, agent, blocks), characters_of_memory(blocks))


tools_router = APIRouter(prefix="/v1/agents/{agent_id}/tools", tags=["agents"], route_class=LateRoute)


class ApprovalSetting(BaseModel):
    """Whether a tool's calls wait for a person. Letta's SDK for TypeScript sends the second name."""

    requires_approval: bool | None = None
    body_requires_approval: bool | None = None


@tools_router.get("")
async def list_tools_of_agent(
    agent_id: AgentIdPath, editor: AgentEditorDep, tool_store: ToolStoreDep, caller: CallerDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's tools. A key of single agents does not see their source."""
    await editor.get(caller.project_id, agent_id)
    found = await tool_store.list(caller.project_id, ToolFilter(agent_id=agent_id), page)
    shown = [wire_tool(tool) for tool in found]
    return shown if may_see_instructions(caller) else [without_source(tool) for tool in shown]


@tools_router.patch("/attach/{tool_id}")
async def attach_tool(agent_id: AgentIdPath, tool_id: ToolIdPath, links: AgentLinksDep) -> dict[str, Any]:
    """Gives the agent a tool."""
    return await links.shown(links.editor.attach_tool(links.project_id, agent_id, tool_id, links.now))


@tools_router.patch("/detach/{tool_id}")
async def detach_tool(agent_id: AgentIdPath, tool_id: ToolIdPath, links: AgentLinksDep) -> dict[str, Any]:
    """Takes a tool from the agent."""
    return await links.shown(links.editor.detach_tool(links.project_id, agent_id, tool_id, links.now))


@tools_router.post("/{tool_name}/run", response_model=None)
async def run_tool(
    agent_id: AgentIdPath,
    tool_name: str,
    tool_runs: ToolRunServiceDep,
    clock: ClockDep,
    project_id: ProjectDep,
    headers: SubmissionHeadersDep,
    request: ToolRunRequest | None = None,
) -> Response:
    """Calls one of the agent's tools as the agent would, but without its model and without an approval. Answers with
    the result when the call has ended. The run goes on when the client leaves."""
    request, tool = request or ToolRunRequest(), await tool_runs.find(project_id, agent_id, tool_name)
    refuse_tool_of_clients(tool)
    keys = keys_of(headers, f"{TOOL_RUN} {tool.name}", clock.now(), body=request.model_dump_json)
    run = run_or_refusal(*await tool_runs.run(agent_id, tool, request.arguments(), keys))
    if isinstance(run, Response):
        return run
    return await json_answer(wire_tool_result(await tool_runs.result(run)))


@tools_router.patch("/approval/{tool_name}")
async def set_tool_approval(
    agent_id: AgentIdPath,
    tool_name: str,
    links: AgentLinksDep,
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
    project_id, now = links.project_id, links.now
    await links.editor.set_approval_override(project_id, agent_id, tool_name, required=required, now=now)


blocks_router = APIRouter(prefix="/v1/agents/{agent_id}/core-memory/blocks", tags=["agents"], route_class=LateRoute)


@blocks_router.get("")
async def list_blocks_of_agent(
    agent_id: AgentIdPath, editor: AgentEditorDep, block_store: BlockStoreDep, project_id: ProjectDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's blocks."""
    await editor.get(project_id, agent_id)
    blocks = await block_store.list(project_id, BlockFilter(agent_id=agent_id), page)
    return [wire_block(block) for block in blocks]


@blocks_router.patch("/attach/{block_id}")
async def attach_block(agent_id: AgentIdPath, block_id: BlockIdPath, links: AgentLinksDep) -> dict[str, Any]:
    """Gives the agent a block."""
    return await links.shown(links.editor.attach_block(links.project_id, agent_id, block_id, links.now))


@blocks_router.patch("/detach/{block_id}")
async def detach_block(agent_id: AgentIdPath, block_id: BlockIdPath, links: AgentLinksDep) -> dict[str, Any]:
    """Takes a block from the agent."""
    return await links.shown(links.editor.detach_block(links.project_id, agent_id, block_id, links.now))


@blocks_router.get("/{block_label}")
async def retrieve_block_of_agent(
    agent_id: AgentIdPath, block_label: str, block_store: BlockStoreDep, project_id: ProjectDep
) -> dict[str, Any]:
    """The agent's block of this label."""
    return wire_block(await block_store.with_label(project_id, agent_id, block_label))


@blocks_router.patch("/{block_label}")
async def update_block_of_agent(
    agent_id: AgentIdPath,
    block_label: str,
    body: BlockUpdate,
    block_store: BlockStoreDep,
    clock: ClockDep,
    caller: CallerDep,
) -> dict[str, Any]:
    """Changes the agent's block of this label, for every agent that has this block."""

    def change(block: Block) -> Block:
        if block.read_only and caller.scopes.agents:
            said = f"FORBIDDEN: the block {block.label!r} is read-only, for the agent and for keys of single agents"
            raise Refused(403, ErrorCode.FORBIDDEN, said, field="block_label")
        return body.apply(block)

    block = await block_store.with_label(caller.project_id, agent_id, block_label)
    return wire_block(await block_store.update(caller.project_id, block.id, change, clock.now()))
