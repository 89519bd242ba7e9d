"""Searching the passages of a project."""

from typing import Any

from fastapi import APIRouter

from api.dependencies import ProjectDep, ServicesDep
from api.direct_route import LateRoute
from api.letta.passages import PassageSearch, wire_found

router = APIRouter(prefix="/v1/passages", tags=["passages"], route_class=LateRoute)


@router.post("/search")
async def search_passages(body: PassageSearch, services: ServicesDep, project_id: ProjectDep) -> list[dict[str, Any]]:
    """Finds passages by words and by meaning: of an agent, of an archive, or of the whole project."""
    found = await services.archival_memory.search(project_id, body.as_query())
    return [wire_found(one, services.environment) for one in found]
