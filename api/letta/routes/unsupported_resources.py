"""Empty lists of objects that Letta's servers have and Holdfast lacks. A program that only reads these lists works. A
program that creates such an object gets an error."""

from typing import Any

from fastapi import APIRouter, Depends

from api.dependencies import AgentEditorDep, AgentIdPath, NewestFirst, ProjectDep
from api.direct_route import LateRoute


async def any_filter(
    _page: NewestFirst, name: str | None = None, cursor: str | None = None, is_open: bool = False
) -> None:
    """Query parameters for pages and filters, which do not change an empty list."""


router = APIRouter(prefix="/v1", tags=["absent"], dependencies=[Depends(any_filter)], route_class=LateRoute)

KINDS = ("folders", "identities", "jobs", "jobs/active", "providers", "sources")
COUNTED = ("folders", "identities", "sources")
OF_AGENTS = ("folders", "identities", "sources")


async def no_items(_project_id: ProjectDep) -> list[Any]:
    """The project has none."""
    return []


async def no_count(_project_id: ProjectDep) -> int:
    """The project has none."""
    return 0


async def no_items_of_agent(agent_id: AgentIdPath, editor: AgentEditorDep, project_id: ProjectDep) -> list[Any]:
    """The agent has none."""
    await editor.get(project_id, agent_id)
    return []


@router.get("/agents/{agent_id}/files")
async def no_files(agent_id: AgentIdPath, editor: AgentEditorDep, project_id: ProjectDep) -> dict[str, Any]:
    """The agent has no files. Letta's SDKs page this list in their own way."""
    await editor.get(project_id, agent_id)
    return {"files": [], "next_cursor": None, "has_more": False}


@router.get("/agents/{agent_id}/repositories")
async def no_repositories(agent_id: AgentIdPath, editor: AgentEditorDep, project_id: ProjectDep) -> dict[str, Any]:
    """The agent has no repositories. Letta Code looks there for the files of its memory, with every message."""
    await editor.get(project_id, agent_id)
    return {"repositories": []}


@router.get("/shared-agents")
async def no_shared_agents(_project_id: ProjectDep) -> dict[str, Any]:
    """The list of agents that other people share: empty. Without it Letta Code retries immediately and endlessly."""
    return {"agents": [], "nextCursor": None}


for kind in KINDS:
    router.add_api_route(f"/{kind}", no_items)
for kind in COUNTED:
    router.add_api_route(f"/{kind}/count", no_count)
for kind in OF_AGENTS:
    router.add_api_route(f"/agents/{{agent_id}}/{kind}", no_items_of_agent)
