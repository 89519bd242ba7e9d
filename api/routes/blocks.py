"""Memory blocks of a project."""

from typing import Any

from fastapi import APIRouter

from api.agent_answers import agent_answers
from api.dependencies import BlockIdPath, NewestFirst, Number, Numbers, OldestFirst, ProjectDep, ServicesDep, Texts
from api.direct_route import LateRoute
from api.letta.blocks import BlockCreate, BlockUpdate, new_block, wire_block
from shared.sql.definitions.agents import AgentFilter
from shared.sql.definitions.blocks import BlockFilter

router = APIRouter(prefix="/v1/blocks", tags=["blocks"], route_class=LateRoute)


@router.post("")
async def create_block(body: BlockCreate, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes a block."""
    block = new_block(body, project_id, services.ids, services.clock.now())
    return wire_block(await services.blocks.create(block))


@router.get("")
async def list_blocks(
    services: ServicesDep,
    project_id: ProjectDep,
    page: OldestFirst,
    label: str | None = None,
    label_search: str | None = None,
    description_search: str | None = None,
    value_search: str | None = None,
    tags: Texts = None,
    match_all_tags: bool = False,
    connected_to_agents_count_gt: Number | None = None,
    connected_to_agents_count_lt: Number | None = None,
    connected_to_agents_count_eq: Numbers = None,
    name: str | None = None,
    templates_only: bool = False,
    identity_id: str | None = None,
    identifier_keys: Texts = None,
) -> list[dict[str, Any]]:
    """The project's blocks. None of them is a template, has a template's name, or belongs to an identity."""
    if name or templates_only or identity_id or identifier_keys:
        return []
    wanted = BlockFilter(
        label=label,
        label_search=label_search,
        description_search=description_search,
        value_search=value_search,
        tags=tags or (),
        match_all_tags=match_all_tags,
        agents_more_than=connected_to_agents_count_gt,
        agents_less_than=connected_to_agents_count_lt,
        agents_exactly=connected_to_agents_count_eq,
    )
    return [wire_block(block) for block in await services.blocks.list(project_id, wanted, page)]


@router.get("/count")
async def count_blocks(services: ServicesDep, project_id: ProjectDep) -> int:
    """How many blocks the project has."""
    return await services.blocks.count(project_id)


@router.get("/{block_id}")
async def retrieve_block(block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One block."""
    return wire_block(await services.blocks.get(project_id, block_id))


@router.patch("/{block_id}")
async def update_block(
    block_id: BlockIdPath, body: BlockUpdate, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a block, and with it the instructions of its agents."""
    return wire_block(await services.blocks.update(project_id, block_id, body.apply, services.clock.now()))


@router.delete("/{block_id}")
async def delete_block(block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a block and takes it from its agents."""
    await services.blocks.delete(project_id, block_id)
    return {"message": f"Block id={block_id} successfully deleted"}


@router.get("/{block_id}/agents")
async def list_agents_of_block(
    block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep, page: NewestFirst, include: Texts = None
) -> list[dict[str, Any]]:
    """The agents that have the block."""
    await services.blocks.get(project_id, block_id)
    agents = await services.agents.list(project_id, AgentFilter(block_id=block_id, show_hidden=True), page)
    return await agent_answers(services, agents, include)
