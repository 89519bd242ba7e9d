"""The memory blocks of an agent, by label."""

from typing import Any

from fastapi import APIRouter

from api.agent_answers import agent_answer
from api.dependencies import AgentIdPath, BlockIdPath, CallerDep, NewestFirst, ProjectDep, ServicesDep
from api.direct_route import LateRoute
from api.errors import Refused
from api.letta.blocks import BlockUpdate, wire_block
from shared.domain.agents import Block
from shared.domain.errors import ErrorCode
from shared.sql.definitions.blocks import BlockFilter

router = APIRouter(prefix="/v1/agents/{agent_id}/core-memory/blocks", tags=["agents"], route_class=LateRoute)


@router.get("")
async def list_blocks_of_agent(
    agent_id: AgentIdPath, services: ServicesDep, project_id: ProjectDep, page: NewestFirst
) -> list[dict[str, Any]]:
    """The agent's blocks."""
    await services.agents.get(project_id, agent_id)
    blocks = await services.blocks.list(project_id, BlockFilter(agent_id=agent_id), page)
    return [wire_block(block) for block in blocks]


@router.patch("/attach/{block_id}")
async def attach_block(
    agent_id: AgentIdPath, block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Gives the agent a block."""
    agent = await services.agents.attach_block(project_id, agent_id, block_id, services.clock.now())
    return await agent_answer(services, agent)


@router.patch("/detach/{block_id}")
async def detach_block(
    agent_id: AgentIdPath, block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Takes a block from the agent."""
    agent = await services.agents.detach_block(project_id, agent_id, block_id, services.clock.now())
    return await agent_answer(services, agent)


@router.get("/{block_label}")
async def retrieve_block_of_agent(
    agent_id: AgentIdPath, block_label: str, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """The agent's block of this label."""
    return wire_block(await services.blocks.with_label(project_id, agent_id, block_label))


@router.patch("/{block_label}")
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
