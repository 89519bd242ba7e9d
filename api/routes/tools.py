"""Tools of a project."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from api.dependencies import NewestFirst, ProjectDep, ServicesDep, Texts, ToolIdPath
from api.letta.tools import TOOL_TYPES, ToolCreate, ToolUpdate, new_tool, wire_tool
from shared.domain.errors import InvalidRequest
from shared.sql.definitions.tools import ToolFilter


async def _with_base_tools(services: ServicesDep, project_id: ProjectDep) -> None:
    await services.base_tools.fill(project_id)


router = APIRouter(prefix="/v1/tools", tags=["tools"], dependencies=[Depends(_with_base_tools)])


def _tool_filter(
    name: str | None = None,
    names: Texts = None,
    tool_ids: Texts = None,
    search: str | None = None,
    tool_types: Texts = None,
    exclude_tool_types: Texts = None,
    return_only_letta_tools: bool = False,
    exclude_letta_tools: bool = False,
) -> ToolFilter:
    return ToolFilter(
        name=name,
        names=names,
        ids=_each(tool_ids),
        search=search,
        types=_types(tool_types),
        other_types_than=_types(exclude_tool_types) or (),
        base_tools=True if return_only_letta_tools else False if exclude_letta_tools else None,
    )


def _types(texts: list[str] | None) -> list[str] | None:
    types = _each(texts)
    for name in types or ():
        if name not in TOOL_TYPES:
            raise InvalidRequest(f"Invalid tool_type '{name}'. Must be one of: {', '.join(TOOL_TYPES)}")
    return types


def _each(texts: list[str] | None) -> list[str] | None:
    """Values that may also come as one, with commas between them. None when there is not one."""
    return [part for text in texts or () for part in (piece.strip() for piece in text.split(",")) if part] or None


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
    wanted: Annotated[ToolFilter, Depends(_tool_filter)],
) -> list[dict[str, Any]]:
    """The project's tools."""
    return [wire_tool(tool) for tool in await services.tools.list(project_id, wanted, page)]


@router.get("/count")
async def count_tools(
    services: ServicesDep, project_id: ProjectDep, wanted: Annotated[ToolFilter, Depends(_tool_filter)]
) -> int:
    """How many tools the project has."""
    return await services.tools.count(project_id, wanted)


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
