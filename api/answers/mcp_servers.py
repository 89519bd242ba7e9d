"""MCP servers, their tools, and sign-ins at them, as answers."""

from typing import Literal

from typing_extensions import TypeAliasType, TypedDict

from api.answers.messages import Fields, Nothing, Time


class McpSignIn(TypedDict):
    """A sign-in at an MCP server (OAuth). `needed`: the server refuses requests until a person signs in."""

    state: Literal["signed_in", "needed"]
    authorization_server: str | None
    scope: str | None
    since: Time
    expires_at: Time | None


class HttpMcpServer(TypedDict):
    """An MCP server at a URL. Its secrets are masked."""

    id: str
    server_name: str
    mcp_server_type: Literal["streamable_http", "sse"]
    server_url: str
    auth_header: str | None
    auth_token: str | None
    custom_headers: dict[str, str] | None
    refreshed_at: Time | None
    problem: str | None
    sign_in: McpSignIn | None


class StdioMcpServer(TypedDict):
    """An MCP server that is a command. The values of its variables are masked."""

    id: str
    server_name: str
    mcp_server_type: Literal["stdio"]
    command: str
    args: list[str]
    env: dict[str, str] | None
    refreshed_at: Time | None
    problem: str | None
    sign_in: McpSignIn | None


McpServer = HttpMcpServer | StdioMcpServer


class NamedHttpMcpServer(TypedDict):
    """The older form of a server at a URL."""

    server_name: str
    type: Literal["streamable_http", "sse"]
    server_url: str
    auth_header: str | None
    auth_token: str | None
    custom_headers: dict[str, str] | None


class NamedStdioMcpServer(TypedDict):
    """The older form of a server that is a command."""

    server_name: str
    type: Literal["stdio"]
    command: str
    args: list[str]
    env: dict[str, str] | None


NamedMcpServer = NamedHttpMcpServer | NamedStdioMcpServer


class SkippedMcpTool(TypedDict):
    """A tool of the server that was not imported, by its name there."""

    name: str
    reason: str


class McpRefresh(TypedDict):
    """The changes of a refresh, by the names of the project's tools."""

    added: list[str]
    updated: list[str]
    deleted: list[str]
    skipped: list[SkippedMcpTool]


class McpTool(TypedDict):
    """A tool as its server describes it."""

    name: str
    description: str
    inputSchema: Fields
    annotations: dict[str, bool]


class ConnectionAttempt(TypedDict):
    """The API connects to the server."""

    event: Literal["connection_attempt"]
    server_name: str


class SignInNotice(TypedDict):
    """The server requires a sign-in, the API waits for the person, or the sign-in failed: `message` has the reason."""

    event: Literal["oauth_required", "waiting_for_auth", "error"]
    message: str


class SignInAddress(TypedDict):
    """The URL that a person has to open in a browser."""

    event: Literal["authorization_url"]
    url: str
    session_id: str


class SignInDone(TypedDict):
    """The server lists these tools."""

    event: Literal["success"]
    tools: list[McpTool]


McpSignInEvent = TypeAliasType("McpSignInEvent", ConnectionAttempt | SignInNotice | SignInAddress | SignInDone)


class FinishedMcpSignIn(TypedDict):
    """The outcome of a sign-in. `tools` is the number of the server's tools in the project now."""

    status: Literal["success"]
    message: str
    server_url: str
    tools: int | None


class TestedMcpServer(TypedDict):
    """A server that answered."""

    status: Literal["success"]
    tools: list[McpTool]


class McpToolResult(TypedDict):
    """The result of a call. `func_return` is the text that the server has sent, even if the tool failed."""

    status: Literal["success", "error"]
    func_return: str
    agent_state: Nothing
    stdout: Nothing
    stderr: list[str] | None
    sandbox_config_fingerprint: Nothing


class NamedMcpToolResult(TypedDict):
    """The result of a call, in the older form."""

    result: str
    success: bool
