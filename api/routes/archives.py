"""Archives of a project and the passages in them."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.agent_answers import agent_answers
from api.dependencies import (
    ArchiveIdPath,
    NewestFirst,
    OptionalAgentIdQuery,
    PassageIdPath,
    ProjectDep,
    ServicesDep,
    Texts,
)
from api.direct_route import LateRoute
from api.letta.passages import (
    ArchiveCreate,
    ArchiveUpdate,
    PassageCreate,
    PassagesCreate,
    new_archive,
    new_passages,
    wire_archive,
    wire_passage,
    wire_passages,
)
from shared.sql.archival.archives import ArchiveFilter
from shared.sql.definitions.agents import AgentFilter

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
