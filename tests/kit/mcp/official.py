"""The official package's own server, on loopback, in each of its ways to run."""

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import McpTarget
from tests.kit.certificates import SelfSigned
from tests.kit.wait_until import wait_until

Kind = Literal["stateless", "json", "sessions", "sse"]
KINDS: tuple[Kind, ...] = ("stateless", "json", "sessions", "sse")
"""`stateless` and `json` speak 2026-07-28, `sessions` is a server before it, `sse` one of the first version."""

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class _Name(BaseModel):
    name: str


@dataclass
class OfficialServer:
    """A running server, and the requests that it got."""

    kind: Kind
    mcp: MCPServer
    port: int = 0
    methods: list[str] = field(default_factory=list[str])
    """The methods of all received messages, in order."""
    calls: list[str] = field(default_factory=list[str])
    """Names of the tools that began."""
    going_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: tools that wait may end."""
    authorizations: set[str] = field(default_factory=set[str])
    connections: set[int] = field(default_factory=set[int])
    """The clients' ports of all connections with messages."""

    @property
    def target(self) -> McpTarget:
        return McpTarget(
            project_id=ProjectId("default"),
            server_id=McpServerId("mcp_server-1"),
            server_name="tools",
            transport=transport_of(self.kind),
            url=f"http://127.0.0.1:{self.port}{path_of(self.kind)}",
            headers={"Authorization": "Bearer token-of-the-server"},
        )


def _with_tools(server: OfficialServer) -> None:
    mcp = server.mcp

    @mcp.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        server.calls.append("add")
        return a + b

    @mcp.tool()
    async def wait() -> str:
        """Waits until the test releases it."""
        server.calls.append("wait")
        await server.going_on.wait()
        return "waited"

    @mcp.tool()
    def fail() -> str:
        """Fails."""
        raise ToolError("it cannot be done")

    @mcp.tool()
    def show() -> mcp_types.CallToolResult:
        """Returns one of each content."""
        linked = mcp_types.ResourceLink(name="notes", uri="file:///notes.txt")
        text = mcp_types.TextResourceContents(uri="file:///a.txt", text="the text of a file")
        return mcp_types.CallToolResult(
            content=[
                mcp_types.TextContent(text="From the roof:"),
                mcp_types.ImageContent(data=PIXEL, mime_type="image/png"),
                mcp_types.ImageContent(data=PIXEL, mime_type="image/tiff"),
                mcp_types.AudioContent(data=base64.b64encode(b"x").decode(), mime_type="audio/wav"),
                linked,
                mcp_types.EmbeddedResource(resource=text),
            ]
        )

    @mcp.tool()
    def structured() -> mcp_types.CallToolResult:
        """Returns no text, only a value."""
        return mcp_types.CallToolResult(content=[], structured_content={"degrees": 21})

    @mcp.tool()
    async def ask(context: Context[Any, Any]) -> str:
        """Asks for input in the middle of the call."""
        answer = await context.elicit("Who are you?", schema=_Name)
        return f"{answer.action}"


@asynccontextmanager
async def official_server(kind: Kind, *, port: int = 0) -> AsyncGenerator[OfficialServer]:
    """The server, for the block. Port 0 is one that is free."""
    server = OfficialServer(kind, MCPServer("tools", log_level="CRITICAL"))
    _with_tools(server)
    async with served(_noting(app_of(server.mcp, kind), server), port) as server.port:
        yield server
        server.going_on.set()


def app_of(mcp: MCPServer, kind: Kind) -> App:
    """The server as one of this kind is run."""
    match kind:
        case "stateless":
            return mcp.streamable_http_app(stateless_http=True)
        case "json":
            return mcp.streamable_http_app(json_response=True)
        case "sessions":
            return _before_2026(mcp.streamable_http_app())
        case "sse":
            return mcp.sse_app()


def path_of(kind: Kind) -> str:
    """The path of such a server."""
    return "/sse" if kind == "sse" else "/mcp"


def transport_of(kind: Kind) -> Literal["sse", "streamable_http"]:
    """The type under which such a server is registered."""
    return "sse" if kind == "sse" else "streamable_http"


@asynccontextmanager
async def served(app: App, port: int, secured: SelfSigned | None = None) -> AsyncGenerator[int]:
    """Serves the application on loopback for the block, over TLS if it gets a certificate; gives the port. SIGTERM
    ends it, and then the process."""
    listening = socket.create_server(("127.0.0.1", port))
    tls: dict[str, Any] = {} if secured is None else {"ssl_certfile": secured.certificate, "ssl_keyfile": secured.key}
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **tls)
    server = uvicorn.Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve([listening]))
    try:
        await wait_until(lambda: server.started or serving.done(), description="the MCP server to start")
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        listening.close()


def _noting(app: App, server: OfficialServer) -> App:
    """Records the method and the client of each message."""

    async def noting(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        server.connections.add(scope["client"][1])
        headers = dict(scope["headers"])
        server.authorizations.add(headers.get(b"authorization", b"").decode())

        async def noted() -> Message:
            message = await receive()
            with contextlib.suppress(ValueError):
                server.methods.append(json.loads(message.get("body", b"")).get("method", ""))
            return message

        await app(scope, noted, send)

    return noting


def _before_2026(app: App) -> App:
    """A server that does not know the newest version's question."""

    async def older(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-method") == b"server/discover":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return older
