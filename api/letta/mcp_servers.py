"""MCP servers on Letta's wire, in its two forms: the newer form identifies servers by id and has a `config`, the older
form identifies them by name. Also sign-ins at servers: events for the client's stream, and the page in the person's
browser."""

from html import escape
from typing import Annotated, Any, assert_never

from msgspec import UNSET
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import to_json

from api.letta.messages import wire_time
from api.mcp_servers import ServerChange, TakenServer, masked_headers, masked_token, masked_variables, shown_header
from api.mcp_sign_in import Attempt, Failed, Finished, Needed, Opened, Pause, Reached, SignInEvent
from shared.domain.mcp_servers import McpServer, RemoteResult, RemoteTool, SignIn, Transport
from shared.mcp_tools import ToolChanges

MOST_ARGUMENTS, MOST_SECRETS = 100, 50


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("has a character that cannot be shown")
    return name


ServerName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Secret = Annotated[str, Field(max_length=16_000)]
Secrets = Annotated[dict[str, Secret], Field(max_length=MOST_SECRETS)]
Argument = Annotated[str, Field(max_length=4000)]


class ServerFields(BaseModel):
    """The address of a server, and the secrets sent to it. A field that a change omits stays."""

    server_url: Annotated[str, Field(max_length=2000)] | None = None
    auth_header: Annotated[str, Field(max_length=200)] | None = None
    auth_token: Secret | None = None
    custom_headers: Secrets | None = None
    command: Argument | None = None
    args: Annotated[list[Argument], Field(max_length=MOST_ARGUMENTS)] | None = None
    env: Secrets | None = None

    def change_to(self, transport: Transport | None, name: str | None) -> ServerChange:
        """The change that the fields describe. Without a transport, a command means `stdio`, and a URL means HTTP."""
        if transport is None and self.command is not None:
            transport = "stdio"
        said = self.model_fields_set
        return ServerChange(
            name=name,
            transport=transport,
            url=self.server_url,
            auth_header=self.auth_header,
            token=self.auth_token if "auth_token" in said else UNSET,
            headers=self.custom_headers if "custom_headers" in said else UNSET,
            command=self.command,
            args=self.args,
            env=self.env if "env" in said else UNSET,
        )


class ServerConfig(ServerFields):
    """The `config` of a server."""

    mcp_server_type: Transport | None = None


class McpServerCreate(BaseModel):
    """The body of `POST /v1/mcp-servers`."""

    server_name: ServerName
    config: ServerConfig

    def change(self) -> ServerChange:
        """The server that the body describes."""
        return self.config.change_to(self.config.mcp_server_type, self.server_name)


class McpServerUpdate(BaseModel):
    """The body of a change: omitted fields stay."""

    server_name: ServerName | None = None
    config: ServerConfig = Field(default_factory=ServerConfig)

    def change(self) -> ServerChange:
        """The change in the domain's terms."""
        return self.config.change_to(self.config.mcp_server_type, self.server_name)


class NamedServer(ServerFields):
    """A server in the older form, whole."""

    server_name: ServerName
    type: Transport | None = None

    def change(self) -> ServerChange:
        """The server that the body describes."""
        return self.change_to(self.type, self.server_name)


class NamedServerUpdate(ServerFields):
    """A change in the older form. `token` and `stdio_config` are the names of Letta's server for these fields."""

    server_name: ServerName | None = None
    type: Transport | None = None
    token: Secret | None = None
    stdio_config: ServerFields | None = None

    def change(self) -> ServerChange:
        """The change in the domain's terms."""
        fields = self if self.stdio_config is None else self.stdio_config
        if "token" in self.model_fields_set and "auth_token" not in self.model_fields_set:
            fields = fields.model_copy(update={"auth_token": self.token})
        return fields.change_to(self.type, self.server_name)


class McpToolRun(BaseModel):
    """The arguments of a tool call."""

    args: dict[str, Any] = Field(default_factory=dict[str, Any])


def _reached(server: McpServer) -> dict[str, Any]:
    """The server's address and credentials, with masks for secrets."""
    if server.transport == "stdio":
        return {"command": server.command, "args": server.args, "env": masked_variables(server)}
    return {
        "server_url": server.url,
        "auth_header": shown_header(server),
        "auth_token": masked_token(server),
        "custom_headers": masked_headers(server),
    }


def wire_server(server: McpServer) -> dict[str, Any]:
    """The wire's server. The last three fields are Holdfast's own."""
    return {
        "id": server.id,
        "server_name": server.name,
        "mcp_server_type": server.transport,
        **_reached(server),
        "refreshed_at": wire_time(server.refreshed_at),
        "problem": server.problem or None,
        "sign_in": None if server.sign_in is None else wire_sign_in(server.sign_in),
    }


def wire_sign_in(sign_in: SignIn) -> dict[str, Any]:
    """The public fields of a sign-in."""
    return {
        "state": sign_in.state,
        "authorization_server": sign_in.authorization_server,
        "scope": sign_in.scope,
        "since": wire_time(sign_in.since),
        "expires_at": wire_time(sign_in.expires_at),
    }


def wire_named_server(server: McpServer) -> dict[str, Any]:
    """The wire's server in the older form."""
    return {"server_name": server.name, "type": server.transport, **_reached(server)}


def wire_changes(changes: ToolChanges) -> dict[str, Any]:
    """The changes of a refresh, by the names of the project's tools. `skipped` is Holdfast's own field."""
    return {
        "added": [tool.name for tool in changes.added],
        "updated": [tool.name for tool in changes.updated],
        "deleted": [tool.name for tool in changes.deleted],
        "skipped": [{"name": tool.name, "reason": tool.reason} for tool in changes.skipped],
    }


def notes_of(taken: TakenServer) -> list[str]:
    """Warnings for the author of a server: the reasons why it has no tools, or lacks some."""
    if taken.changes is None:
        return [f"The server was stored; its tools were not taken over: {taken.server.problem}. Refresh it later"]
    return [f"The tool {tool.name!r} was left out: {tool.reason}" for tool in taken.changes.skipped]


def wire_remote_tool(tool: RemoteTool) -> dict[str, Any]:
    """A tool as its server describes it."""
    hints = {"readOnlyHint": tool.read_only, "destructiveHint": tool.destructive, "idempotentHint": tool.idempotent}
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": {name: value for name, value in hints.items() if value is not None},
    }


def wire_result(result: RemoteResult) -> dict[str, Any]:
    """The result of a call. The error of a failed tool is in the same field."""
    return {
        "status": "error" if result.is_error else "success",
        "func_return": _with_images(result),
        "agent_state": None,
        "stdout": None,
        "stderr": [result.text] if result.is_error else None,
        "sandbox_config_fingerprint": None,
    }


def wire_named_result(result: RemoteResult) -> dict[str, Any]:
    """The result of a call, in the older form."""
    return {"result": _with_images(result), "success": not result.is_error}


def _with_images(result: RemoteResult) -> str:
    """The text of a result with the number of its images, because this form has no place for images."""
    if not result.images:
        return result.text
    said = f"[{len(result.images)} images, which only an agent's run is shown]"
    return f"{result.text}\n{said}" if result.text else said


# Sign-ins at servers.


def wire_sign_in_event(event: SignInEvent) -> bytes:
    """The frame of an event."""
    return b"data: %b\n\n" % to_json(_sign_in_fields(event))


def _sign_in_fields(event: SignInEvent) -> dict[str, Any]:
    match event:
        case Attempt(server):
            return {"event": "connection_attempt", "server_name": server.name}
        case Needed():
            return {"event": "oauth_required", "message": "The server asks for a person to sign in (OAuth)"}
        case Opened(url, session_id):
            return {"event": "authorization_url", "url": url, "session_id": session_id}
        case Pause():
            return {"event": "waiting_for_auth", "message": "Open the URL in a browser, and sign in there"}
        case Reached(tools):
            return {"event": "success", "tools": [wire_remote_tool(tool) for tool in tools]}
        case Failed(reason):
            return {"event": "error", "message": reason}
        case _ as never:
            assert_never(never)


def wire_finished(finished: Finished) -> dict[str, Any]:
    """The outcome of a sign-in. The number of tools is Holdfast's own field."""
    server, tools = finished.server, finished.tools
    had = server.problem if tools is None else f"the project has {tools} of its tools"
    return {
        "status": "success",
        "message": f"Signed in at {server.name}: {had}. You can close this page",
        "server_url": server.url,
        "tools": tools,
    }


def sign_in_page(title: str, text: str) -> str:
    """The outcome as a page for the person. It loads nothing, and browsers run no script in it."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1><p>{escape(text)}.</p></body></html>"
    )
