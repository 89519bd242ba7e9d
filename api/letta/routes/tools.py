"""Tools of a project."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from msgspec.structs import replace
from starlette.responses import Response

from api.dependencies import ClockDep, IdMakerDep, InputLimitsDep, NewestFirst, ProjectDep, Texts, ToolIdPath, served
from api.direct_route import LateRoute
from api.every_answer import warning_of
from api.letta.tools import (
    TOOL_TYPES,
    LimitsIn,
    ToolCreate,
    ToolUpdate,
    blank_tool,
    limits_that_are_less_here,
    refuse_network,
    wire_tool,
)
from api.operations import Operations
from shared.domain.errors import InvalidRequest
from shared.domain.tools import TYPESCRIPT, Tool
from shared.packages.environments import PackageEnvironments
from shared.process.settings import Settings
from shared.sql.definitions.tools import BaseToolSeeder, ToolFilter, ToolStore
from shared.sql.paging import Page

BaseToolSeederDep = Annotated[BaseToolSeeder, served(BaseToolSeeder)]
OperationsDep = Annotated[Operations, served(Operations)]
PackageEnvironmentsDep = Annotated[PackageEnvironments, served(PackageEnvironments)]
SettingsDep = Annotated[Settings, served(Settings)]
ToolStoreDep = Annotated[ToolStore, served(ToolStore)]


async def _with_base_tools(base_tools: BaseToolSeederDep, project_id: ProjectDep) -> None:
    await base_tools.fill(project_id)


router = APIRouter(prefix="/v1/tools", tags=["tools"], dependencies=[Depends(_with_base_tools)], route_class=LateRoute)


async def _tool_filter(
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
        types=_types(tool_types, "tool_types"),
        other_types_than=_types(exclude_tool_types, "exclude_tool_types") or (),
        base_tools=True if return_only_letta_tools else False if exclude_letta_tools else None,
    )


def _types(texts: list[str] | None, parameter: str) -> list[str] | None:
    types = _each(texts)
    for name in types or ():
        if name not in TOOL_TYPES:
            raise InvalidRequest(
                f"Invalid tool_type '{name}'. Must be one of: {', '.join(TOOL_TYPES)}", field=f"query.{parameter}"
            )
    return types


def _each(texts: list[str] | None) -> list[str] | None:
    """The values of a parameter, which may also be one comma-separated value. None without values."""
    return [part for text in texts or () for part in (piece.strip() for piece in text.split(",")) if part] or None


@router.put("")
@router.post("")
async def upsert_tool(
    body: ToolCreate,
    settings: SettingsDep,
    input_limits: InputLimitsDep,
    tool_store: ToolStoreDep,
    package_environments: PackageEnvironmentsDep,
    ids: IdMakerDep,
    clock: ClockDep,
    operations: OperationsDep,
    project_id: ProjectDep,
    response: Response,
) -> dict[str, Any]:
    """Creates a tool, or changes the tool of this name, which keeps its id and all omitted fields: scripts create their
    tools at each start."""
    _warn_of_limits(settings, body.limits, response)
    refuse_network(body.network, settings.tool_network)
    input_limits.refuse_long_source(body.source_code)
    page = Page(limit=1, after=None, before=None, ascending=True)
    found = await tool_store.list(project_id, ToolFilter(name=body.named()), page)
    before = found[0] if found else None
    packages = await package_environments.chosen(body.pip_requirements, before)
    blank = blank_tool(project_id, ids, clock.now())
    if before is not None:  # omitted fields stay, and the source may depend on them
        blank = replace(blank, pip_requirements=before.pip_requirements, packages=before.packages)
    change = partial(body.apply, source_code=body.source_code, packages=packages)
    tool = change(blank)
    await _refuse_without_node(operations, tool)
    return wire_tool(await tool_store.upsert(tool, change))


def _warn_of_limits(settings: SettingsDep, wanted: LimitsIn | None, response: Response) -> None:
    notes = limits_that_are_less_here(
        wanted, timeout_s=settings.tool_timeout, cpu_s=settings.tool_cpu_s, memory_mb=settings.tool_memory_mb
    )
    if notes:
        response.headers.append("Warning", warning_of(notes))


async def _refuse_without_node(operations: OperationsDep, tool: Tool) -> None:
    """Raises `InvalidRequest` if workers are live and none can run the tool. Without live workers, a later one may."""
    if tool.source_type == TYPESCRIPT and await operations.tool_presence.runs_javascript() is False:
        raise InvalidRequest(
            f"the tool {tool.name!r} is written in TypeScript, and no worker has Node.js: install it beside a worker, "
            "or write the tool in Python",
            field="source_code",
        )


@router.get("")
async def list_tools(
    tool_store: ToolStoreDep,
    project_id: ProjectDep,
    page: NewestFirst,
    wanted: Annotated[ToolFilter, Depends(_tool_filter)],
) -> list[dict[str, Any]]:
    """The project's tools."""
    return [wire_tool(tool) for tool in await tool_store.list(project_id, wanted, page)]


@router.get("/count")
async def count_tools(
    tool_store: ToolStoreDep, project_id: ProjectDep, wanted: Annotated[ToolFilter, Depends(_tool_filter)]
) -> int:
    """The number of the project's tools."""
    return await tool_store.count(project_id, wanted)


@router.post("/add-base-tools")
async def add_base_tools(base_tools: BaseToolSeederDep, project_id: ProjectDep) -> list[dict[str, Any]]:
    """Adds the missing base tools to the project. Answers with all base tools."""
    return [wire_tool(tool) for tool in await base_tools.add(project_id)]


@router.get("/{tool_id}")
async def retrieve_tool(tool_id: ToolIdPath, tool_store: ToolStoreDep, project_id: ProjectDep) -> dict[str, Any]:
    """One tool."""
    return wire_tool(await tool_store.get(project_id, tool_id))


@router.patch("/{tool_id}")
async def update_tool(
    tool_id: ToolIdPath,
    body: ToolUpdate,
    settings: SettingsDep,
    input_limits: InputLimitsDep,
    tool_store: ToolStoreDep,
    package_environments: PackageEnvironmentsDep,
    clock: ClockDep,
    project_id: ProjectDep,
    response: Response,
) -> dict[str, Any]:
    """Changes a tool."""
    _warn_of_limits(settings, body.limits, response)
    refuse_network(body.network, settings.tool_network)
    input_limits.refuse_long_source(body.source_code)
    packages = None
    if body.pip_requirements:
        before = await tool_store.get(project_id, tool_id)
        packages = await package_environments.chosen(body.pip_requirements, before)
    change = partial(body.apply, source_code=body.source_code, packages=packages)
    return wire_tool(await tool_store.update(project_id, tool_id, change, clock.now()))


@router.delete("/{tool_id}")
async def delete_tool(tool_id: ToolIdPath, tool_store: ToolStoreDep, project_id: ProjectDep) -> dict[str, str]:
    """Deletes a tool and detaches it from its agents."""
    await tool_store.delete(project_id, tool_id)
    return {"message": f"Tool id={tool_id} successfully deleted"}
