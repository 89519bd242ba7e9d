"""Tools of a project."""

from typing import Any

from fastapi import APIRouter, Depends

from api.dependencies import NewestFirst, ProjectDep, ServicesDep, Texts, ToolIdPath
from api.letta.tools import ToolCreate, ToolUpdate, new_tool, wire_tool
from shared.sql.definitions.tools import ToolFilter


async def _with_base_tools(services: ServicesDep, project_id: ProjectDep) -> None:
    await services.base_tools.fill(project_id)


router = APIRouter(prefix="/v1/tools", tags=["tools"], dependencies=[Depends(_with_base_tools)])


@router.post("")
async def create_tool(body: ToolCreate, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes a tool, or changes the tool of this name: scripts make their tools each time they start."""
    return await upsert_tool(body, services, project_id)


@router.put("")
async def upsert_tool(body: ToolCreate, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """Makes a tool, or changes the tool of this name, which keeps its id and all that is left out."""
    tool = new_tool(body, project_id, services.ids, services.clock.now())
    return wire_tool(await services.tools.upsert(tool, body.apply))


@router.get("")
async def list_tools(
    services: ServicesDep,
    project_id: ProjectDep,
    page: NewestFirst,
    name: str | None = None,
    names: Texts = None,
    tool_ids: Texts = None,
    search: str | None = None,
) -> list[dict[str, Any]]:
    """The project's tools."""
    wanted = ToolFilter(name=name, names=names, ids=tool_ids, search=search)
    return [wire_tool(tool) for tool in await services.tools.list(project_id, wanted, page)]


@router.get("/count")
async def count_tools(
    services: ServicesDep, project_id: ProjectDep, name: str | None = None, search: str | None = None
) -> int:
    """How many tools the project has."""
    return await services.tools.count(project_id, ToolFilter(name=name, search=search))


@router.post("/add-base-tools")
async def add_base_tools(services: ServicesDep, project_id: ProjectDep) -> list[dict[str, Any]]:
    """Gives the project the base tools that it lacks. Answers with all of them."""
    return [wire_tool(tool) for tool in await services.base_tools.add(project_id)]


@router.get("/{tool_id}")
async def retrieve_tool(tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, Any]:
    """One tool."""
    return wire_tool(await services.tools.get(project_id, tool_id))


@router.patch("/{tool_id}")
async def update_tool(
    tool_id: ToolIdPath, body: ToolUpdate, services: ServicesDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a tool."""
    return wire_tool(await services.tools.update(project_id, tool_id, body.apply, services.clock.now()))


@router.delete("/{tool_id}")
async def delete_tool(tool_id: ToolIdPath, services: ServicesDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a tool and takes it from its agents."""
    await services.tools.delete(project_id, tool_id)
    return {"message": f"Tool id={tool_id} successfully deleted"}
