"""Memory of a project: blocks, archives and their passages, the search over passages, and tags."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.agent_answers import agent_answers
from api.dependencies import (
    ArchiveIdPath,
    BlockIdPath,
    NewestFirst,
    Number,
    Numbers,
    OldestFirst,
    OptionalAgentIdQuery,
    PassageIdPath,
    ProjectDep,
    ServicesDep,
    Texts,
)
from api.direct_route import LateRoute
from api.letta.blocks import BlockCreate, BlockUpdate, new_block, wire_block
from api.letta.passages import (
    ArchiveCreate,
    ArchiveUpdate,
    PassageCreate,
    PassagesCreate,
    PassageSearch,
    new_archive,
    new_passages,
    wire_archive,
    wire_found,
    wire_passage,
    wire_passages,
)
from shared.sql.archival.archives import ArchiveFilter
from shared.sql.definitions.agents import AgentFilter
from shared.sql.definitions.blocks import BlockFilter

router = APIRouter(prefix="/v1/archives", tags=["archives"], route_class=LateRoute)


@router.post("")
async def create_archive(body: ArchiveCreate, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes an archive."""
    archive = new_archive(body, project_id, services.ids, services.clock.now())
    return wire_archive(await services.archives.create(archive), services.environment)


@router.get("")
async def list_archives(
    services: ServicesDep,
    project_id: ProjectDep,
    page: NewestFirst,
    name: Annotated[str | None, Query()] = None,
    agent_id: OptionalAgentIdQuery = None,
) -> list[dict[str, Any]]:
    """The project's archives."""
    found = await services.archives.list(project_id, ArchiveFilter(name, agent_id), page)
    return [wire_archive(archive, services.environment) for archive in found]


@router.get("/{archive_id}")
async def retrieve_archive(archive_id: ArchiveIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One archive."""
    return wire_archive(await services.archives.get(project_id, archive_id), services.environment)


@router.patch("/{archive_id}")
async def update_archive(
    archive_id: ArchiveIdPath, body: ArchiveUpdate, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes an archive's name and description."""
    archive = await services.archives.update(
        project_id, archive_id, name=body.name, description=body.description, now=services.clock.now()
    )
    return wire_archive(archive, services.environment)


@router.delete("/{archive_id}", status_code=204)
async def delete_archive(archive_id: ArchiveIdPath, services: ServicesDep, project_id: ProjectDep) -> None:
    """Deletes an archive with its passages, and takes it from its agents."""
    await services.archives.delete(project_id, archive_id)


@router.get("/{archive_id}/agents")
async def list_agents_of_archive(
    archive_id: ArchiveIdPath, services: ServicesDep, project_id: ProjectDep, page: NewestFirst, include: Texts = None
) -> list[dict[str, Any]]:
    """The agents that the archive is attached to."""
    await services.archives.get(project_id, archive_id)
    agents = await services.agents.list(project_id, AgentFilter(archive_id=archive_id), page)
    return await agent_answers(services, agents, include)


@router.post("/{archive_id}/passages")
async def create_passage(
    archive_id: ArchiveIdPath, body: PassageCreate, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Stores a passage in the archive."""
    new = new_passages([body], services.ids, services.clock.now())
    [passage] = await services.archival_memory.insert_into(project_id, archive_id, new)
    return wire_passage(passage, services.environment)


@router.post("/{archive_id}/passages/batch")
async def create_passages(
    archive_id: ArchiveIdPath, body: PassagesCreate, services: ServicesDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """Stores passages in the archive, all or none."""
    new = new_passages(body.passages, services.ids, services.clock.now())
    stored = await services.archival_memory.insert_into(project_id, archive_id, new)
    return await wire_passages(stored, services.environment)


@router.delete("/{archive_id}/passages/{passage_id}", status_code=204)
async def delete_passage(
    archive_id: ArchiveIdPath, passage_id: PassageIdPath, services: ServicesDep, project_id: ProjectDep
) -> None:
    """Deletes a passage of the archive."""
    await services.passages.delete_from_archive(project_id, archive_id, passage_id)


blocks_router = APIRouter(prefix="/v1/blocks", tags=["blocks"], route_class=LateRoute)


@blocks_router.post("")
async def create_block(body: BlockCreate, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes a block."""
    block = new_block(body, project_id, services.ids, services.clock.now())
    return wire_block(await services.blocks.create(block))


@blocks_router.get("")
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


@blocks_router.get("/count")
async def count_blocks(services: ServicesDep, project_id: ProjectDep) -> int:
    """How many blocks the project has."""
    return await services.blocks.count(project_id)


@blocks_router.get("/{block_id}")
async def retrieve_block(block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One block."""
    return wire_block(await services.blocks.get(project_id, block_id))


@blocks_router.patch("/{block_id}")
async def update_block(
    block_id: BlockIdPath, body: BlockUpdate, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a block, and with it the instructions of its agents."""
    return wire_block(await services.blocks.update(project_id, block_id, body.apply, services.clock.now()))


@blocks_router.delete("/{block_id}")
async def delete_block(block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a block and takes it from its agents."""
    await services.blocks.delete(project_id, block_id)
    return {"message": f"Block id={block_id} successfully deleted"}


@blocks_router.get("/{block_id}/agents")
async def list_agents_of_block(
    block_id: BlockIdPath, services: ServicesDep, project_id: ProjectDep, page: NewestFirst, include: Texts = None
) -> list[dict[str, Any]]:
    """The agents that have the block."""
    await services.blocks.get(project_id, block_id)
    agents = await services.agents.list(project_id, AgentFilter(block_id=block_id, show_hidden=True), page)
    return await agent_answers(services, agents, include)


passages_router = APIRouter(prefix="/v1/passages", tags=["passages"], route_class=LateRoute)


@passages_router.post("/search")
async def search_passages(body: PassageSearch, services: ServicesDep, project_id: ProjectDep) -> list[dict[str, Any]]:
    """Finds passages by words and by meaning: of an agent, of an archive, or of the whole project."""
    found = await services.archival_memory.search(project_id, body.as_query())
    return [wire_found(one, services.environment) for one in found]


tags_router = APIRouter(prefix="/v1/tags", tags=["tags"], route_class=LateRoute)


@tags_router.get("")
async def list_tags(
    services: ServicesDep,
    project_id: ProjectDep,
    page: OldestFirst,
    name: str | None = None,
    query_text: str | None = None,
) -> list[str]:
    """The tags of agents and blocks, by name. `query_text` is the older name of `name`."""
    return await services.tags.list(project_id, page, name or query_text)
