"""Routes of a project's MCP servers and their tools: by id, and by name for older programs."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from api.access.callers import may_see_instructions
from api.dependencies import AgentIdPath, CallerDep, OptionalAgentIdQuery, ProjectDep, ToolIdPath, served
from api.direct_route import LateRoute
from api.event_stream import EventStream
from api.every_answer import warning_of
from api.letta.mcp_servers import (
    McpServerCreate,
    McpServerUpdate,
    McpToolRun,
    NamedServer,
    NamedServerUpdate,
    notes_of,
    sign_in_page,
    wire_changes,
    wire_finished,
    wire_named_result,
    wire_named_server,
    wire_remote_tool,
    wire_result,
    wire_server,
    wire_sign_in_event,
)
from api.letta.tools import wire_tool
from api.mcp_servers import McpServers, TakenServer
from api.mcp_sign_in import BrowserReturn, Failed, McpSignIns
from api.runs.streaming import StreamService
from shared.domain.errors import HoldfastError, NotFound
from shared.domain.ids import UUID4_PATTERN, McpServerId, ProjectId
from shared.domain.mcp_servers import McpServer, tool_source
from shared.domain.tools import Tool

McpServersDep = Annotated[McpServers, served(McpServers)]
SignInsDep = Annotated[McpSignIns, served(McpSignIns)]
StreamsDep = Annotated[StreamService, served(StreamService)]
McpServerIdPath = Annotated[McpServerId, Path(pattern=f"^mcp_server-{UUID4_PATTERN}$")]


async def _is_repeated(retry_count: Annotated[str | None, Header(alias="X-Stainless-Retry-Count")] = None) -> bool:
    return retry_count not in (None, "0")


RepeatedDep = Annotated[bool, Depends(_is_repeated)]

router = APIRouter(prefix="/v1/mcp-servers", tags=["mcp-servers"], route_class=LateRoute)


@router.post("")
async def create_mcp_server(
    body: McpServerCreate, servers: McpServersDep, project_id: ProjectDep, response: Response
) -> dict[str, Any]:
    """Creates a server and imports its tools. A server that cannot be reached is created, too: its `problem` has the
    reason why it has no tools yet."""
    return wire_server(_with_warning(await servers.create(project_id, body.change()), response))


@router.get("")
async def list_mcp_servers(servers: McpServersDep, project_id: ProjectDep) -> list[dict[str, Any]]:
    """All of the project's servers."""
    return [wire_server(server) for server in await servers.store.list(project_id)]


@router.get("/connect/{mcp_server_id}", response_model=None)
async def connect_mcp_server(
    mcp_server_id: McpServerIdPath, sign_ins: SignInsDep, project_id: ProjectDep, streams: StreamsDep, request: Request
) -> Response:
    """Connects to the server, and has a person sign in if the server requires it. The stream has the URL of the page to
    open, and then the outcome."""
    server = await sign_ins.servers.store.get(project_id, mcp_server_id)
    return _connecting(sign_ins, streams, request, server, is_stored=True)


@router.get("/{mcp_server_id}")
async def retrieve_mcp_server(
    mcp_server_id: McpServerIdPath, servers: McpServersDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One server."""
    return wire_server(await servers.store.get(project_id, mcp_server_id))


@router.patch("/{mcp_server_id}")
async def update_mcp_server(
    mcp_server_id: McpServerIdPath, body: McpServerUpdate, servers: McpServersDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a server. Its tools stay until it is refreshed."""
    return wire_server(await servers.change(project_id, mcp_server_id, body.change()))


@router.delete("/{mcp_server_id}", status_code=204, response_class=Response)
async def delete_mcp_server(mcp_server_id: McpServerIdPath, servers: McpServersDep, project_id: ProjectDep) -> None:
    """Deletes a server with its tools, and detaches them from all agents."""
    await servers.store.delete(project_id, mcp_server_id)


@router.patch("/{mcp_server_id}/refresh")
async def refresh_mcp_server(
    mcp_server_id: McpServerIdPath,
    servers: McpServersDep,
    project_id: ProjectDep,
    agent_id: OptionalAgentIdQuery = None,
) -> dict[str, Any]:
    """Imports the tools that the server lists now. Answers with the tools that were added, changed and deleted."""
    return wire_changes(await servers.refresh(project_id, mcp_server_id))


@router.get("/{mcp_server_id}/tools")
async def list_mcp_server_tools(
    mcp_server_id: McpServerIdPath, servers: McpServersDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """The server's tools that the project has imported."""
    return [wire_tool(tool) for tool in await servers.store.tools(project_id, mcp_server_id)]


@router.get("/{mcp_server_id}/tools/{tool_id}")
async def retrieve_mcp_server_tool(
    mcp_server_id: McpServerIdPath, tool_id: ToolIdPath, servers: McpServersDep, project_id: ProjectDep
) -> dict[str, Any]:
    """One of the server's tools."""
    return wire_tool(await servers.tool(project_id, mcp_server_id, tool_id))


@router.post("/{mcp_server_id}/tools/{tool_id}/run")
async def run_mcp_server_tool(
    mcp_server_id: McpServerIdPath,
    tool_id: ToolIdPath,
    servers: McpServersDep,
    project_id: ProjectDep,
    is_repeated: RepeatedDep,
    body: McpToolRun | None = None,
) -> dict[str, Any]:
    """Calls a tool immediately, without an agent and without an approval."""
    tool = await servers.tool(project_id, mcp_server_id, tool_id)
    return wire_result(await servers.call(tool, (body or McpToolRun()).args, is_repeated=is_repeated))


agent_router = APIRouter(prefix="/v1/agents/{agent_id}/mcp-servers", tags=["agents"], route_class=LateRoute)


@agent_router.get("")
async def list_mcp_servers_of_agent(
    agent_id: AgentIdPath, servers: McpServersDep, caller: CallerDep
) -> list[dict[str, Any]]:
    """The servers that run some of the agent's tools. A key of single agents sees no servers."""
    found = await servers.of_agent(caller.project_id, agent_id)
    return [wire_server(server) for server in found] if may_see_instructions(caller) else []


named_router = APIRouter(prefix="/v1/tools/mcp/servers", tags=["mcp-servers"], route_class=LateRoute)


@named_router.get("")
async def list_named_mcp_servers(servers: McpServersDep, project_id: ProjectDep) -> dict[str, Any]:
    """All of the project's servers, by name."""
    return {server.name: wire_named_server(server) for server in await servers.store.list(project_id)}


@named_router.put("")
async def put_named_mcp_server(
    body: NamedServer, servers: McpServersDep, project_id: ProjectDep, response: Response
) -> list[dict[str, Any]]:
    """Creates a server, or changes the server of this name, and imports its tools. Answers with all servers."""
    _with_warning(await servers.put(project_id, body.change()), response)
    return await _all_named(servers, project_id)


@named_router.post("/test")
async def test_named_mcp_server(body: NamedServer, servers: McpServersDep, project_id: ProjectDep) -> dict[str, Any]:
    """The tools that an unstored server lists."""
    found = await servers.try_out(project_id, body.change())
    return {"status": "success", "tools": [wire_remote_tool(tool) for tool in found]}


@named_router.post("/connect", response_model=None)
async def connect_named_mcp_server(
    body: NamedServer, sign_ins: SignInsDep, project_id: ProjectDep, streams: StreamsDep, request: Request
) -> Response:
    """As `GET /v1/mcp-servers/connect/{mcp_server_id}`, for an unstored server. The server is stored, under its name,
    when a person has signed in there."""
    server = sign_ins.unstored(project_id, body.change())
    return _connecting(sign_ins, streams, request, server, is_stored=False)


@named_router.patch("/{mcp_server_name}")
async def update_named_mcp_server(
    mcp_server_name: str, body: NamedServerUpdate, servers: McpServersDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Changes a server. Its tools stay until it is refreshed."""
    server = await servers.find(project_id, mcp_server_name)
    return wire_named_server(await servers.change(project_id, server.id, body.change()))


@named_router.delete("/{mcp_server_name}")
async def delete_named_mcp_server(
    mcp_server_name: str, servers: McpServersDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """Deletes a server with its tools. Answers with the remaining servers."""
    server = await servers.find(project_id, mcp_server_name)
    await servers.store.delete(project_id, server.id)
    return await _all_named(servers, project_id)


@named_router.get("/{mcp_server_name}/tools")
async def list_named_mcp_server_tools(
    mcp_server_name: str, servers: McpServersDep, project_id: ProjectDep
) -> list[dict[str, Any]]:
    """The tools that the server lists now, whether or not the project has imported them."""
    server = await servers.find(project_id, mcp_server_name)
    return [wire_remote_tool(tool) for tool in await servers.listed(server)]


@named_router.post("/{mcp_server_name}/resync")
async def resync_named_mcp_server(
    mcp_server_name: str, servers: McpServersDep, project_id: ProjectDep, agent_id: OptionalAgentIdQuery = None
) -> dict[str, Any]:
    """As `PATCH /v1/mcp-servers/{mcp_server_id}/refresh`."""
    server = await servers.find(project_id, mcp_server_name)
    return wire_changes(await servers.refresh(project_id, server.id))


@named_router.post("/{mcp_server_name}/tools/{mcp_tool_name}/execute")
async def execute_named_mcp_tool(
    mcp_server_name: str,
    mcp_tool_name: str,
    body: McpToolRun,
    servers: McpServersDep,
    project_id: ProjectDep,
    is_repeated: RepeatedDep,
) -> dict[str, Any]:
    """Calls a tool of the server immediately, by its name there or in the project."""
    server = await servers.find(project_id, mcp_server_name)
    own = await servers.store.tools(project_id, server.id)
    tool = next((tool for tool in own if mcp_tool_name in _names_of(tool)), None)
    if tool is None:
        raise NotFound(f"The project has no tool named {mcp_tool_name[:200]!r} of this server: refresh it first")
    return wire_named_result(await servers.call(tool, body.args, is_repeated=is_repeated))


@named_router.post("/{mcp_server_name}/{mcp_tool_name}")
async def add_named_mcp_tool(
    mcp_server_name: str, mcp_tool_name: str, servers: McpServersDep, project_id: ProjectDep
) -> dict[str, Any]:
    """Imports one tool of the server."""
    return wire_tool(await servers.add_tool(project_id, mcp_server_name, mcp_tool_name))


def _names_of(tool: Tool) -> list[str]:
    source = tool_source(tool)
    return [tool.name] if source is None else [source.tool_name, tool.name]


async def _all_named(servers: McpServers, project_id: ProjectId) -> list[dict[str, Any]]:
    return [wire_named_server(server) for server in await servers.store.list(project_id)]


def _with_warning(taken: TakenServer, response: Response) -> McpServer:
    notes = notes_of(taken)
    if notes:
        response.headers.append("Warning", warning_of(notes))
    return taken.server


def _connecting(
    sign_ins: McpSignIns, streams: StreamService, request: Request, server: McpServer, *, is_stored: bool
) -> EventStream:
    asked_at = str(request.base_url).rstrip("/")

    async def batches() -> AsyncGenerator[bytes]:
        async for event in sign_ins.connect(server, asked_at, is_stored=is_stored):
            yield wire_sign_in_event(event)

    return EventStream(
        batches,
        streams.ending,
        cut=wire_sign_in_event(Failed(_ENDING)),
        entrance=lambda scope: streams.quotas.reading_of(server.project_id, scope),
    )


oauth_router = APIRouter(prefix="/v1/tools/mcp/oauth", tags=["mcp-servers"], route_class=LateRoute)


@oauth_router.get("/callback", response_model=None)
async def finish_mcp_sign_in(
    sign_ins: SignInsDep, request: Request, state: str = "", code: str = "", error: str = "", iss: str | None = None
) -> Response:
    """Finishes a sign-in: an authorization server redirects the person's browser here. It needs no key, because only
    this browser knows `state`."""
    is_page = "text/html" in request.headers.get("accept", "")
    try:
        finished = await sign_ins.finish(BrowserReturn(state=state, code=code, error=error, issuer=iss))
    except HoldfastError as failed:
        if not is_page:
            raise
        return HTMLResponse(sign_in_page("Not signed in", failed.message), 400)
    said = wire_finished(finished)
    return HTMLResponse(sign_in_page("Signed in", said["message"])) if is_page else JSONResponse(said)


_ENDING = "this server is ending. The sign-in goes on: finish it in the browser, and look at the server's sign_in"
