"""The tags of a project."""

from fastapi import APIRouter

from api.dependencies import OldestFirst, ProjectDep, ServicesDep
from api.direct_route import LateRoute

router = APIRouter(prefix="/v1/tags", tags=["tags"], route_class=LateRoute)


@router.get("")
async def list_tags(
    services: ServicesDep,
    project_id: ProjectDep,
    page: OldestFirst,
    name: str | None = None,
    query_text: str | None = None,
) -> list[str]:
    """The tags of agents and blocks, by name. `query_text` is the older name of `name`."""
    return await services.tags.list(project_id, page, name or query_text)
