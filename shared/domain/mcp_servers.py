"""MCP servers: external servers that run tools for a project's agents.

MCP is the Model Context Protocol, 2026-07-28 and the versions before it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from shared.domain.ids import McpServerId, McpSignInId, ProjectId
from shared.domain.tools import Tool

MCP_TYPE = "external_mcp"
"""The type of a tool that an MCP server runs."""
Transport = Literal["streamable_http", "sse", "stdio"]
THE_GRANT = "oauth"
"""The name of the secret that is a sign-in's `Grant`."""
SOURCE = "mcp"
"""The key of a tool's metadata that holds its `ToolSource`."""
IDEMPOTENCY_KEY: Final = "holdfast/idempotencyKey"
"""The key of a request's `_meta` that has the client's name for its call. A server that supports it answers a repeated
call like the first one. Holdfast supports it as a server, and names its own calls as a client."""
NAMES_PROBE: Final = "holdfast/probe"
"""The key of a tool's `_meta` under which the server names the tool's probe."""
HINTS = "mcp_hints"
"""The key of a tool's metadata that has the newest hints of its server."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The public part of a sign-in at a server (OAuth). The `Grant` is a secret of the server."""

    state: Literal["signed_in", "needed"]
    """`needed`: the server refuses requests until a person signs in, for the first time or again."""
    authorization_server: str | None = None
    """The address of the authorization server, in its own spelling."""
    scope: str | None = None
    since: datetime
    expires_at: datetime | None = None
    """When the access token expires. It is renewed before that, if the authorization server permits it."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that an authorization server has granted, and the data to renew them. Secret as a whole."""

    access_token: str = ""
    """Empty: the grant has ended, and a person has to sign in again."""
    refresh_token: str | None = None
    expires_at: datetime | None = None
    scope: str | None = None
    token_endpoint: str
    resource: str | None = None
    """The server that the tokens are for, if the authorization server requires it (RFC 8707)."""
    authorization_server: str | None = None
    client: dict[str, Any]
    """The registration of this deployment at the authorization server."""
    redirect_uri: str
    """The redirect URI of that registration."""


class SignInRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The data with which a sign-in is finished when the browser returns. Secret as a whole."""

    verifier: str
    """Proves to the authorization server that the code comes from the process that began the sign-in (PKCE)."""
    server_url: str
    token_endpoint: str
    resource: str | None = None
    scope: str | None = None
    authorization_server: str | None = None
    issuer: str | None = None
    """The name of the authorization server, which the browser's return may contain."""
    names_issuer: bool = False
    """The authorization server always sends its name there."""
    client: dict[str, Any]
    redirect_uri: str


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in that waits for a person."""

    url: str
    """The address that the person opens in a browser."""
    state: str
    """Identifies the browser's return. It cannot be guessed."""
    request: SignInRequest


class SignInSession(msgspec.Struct, frozen=True, kw_only=True):
    """A begun sign-in at a server, as stored. It is valid for minutes, and for one return of a browser."""

    id: McpSignInId
    project_id: ProjectId
    server_id: McpServerId
    state_hash: str
    """SHA-256 of the `state` that the browser brings back, so that a reader of the database cannot forge the return."""
    status: Literal["waiting", "redeeming", "done", "failed"] = "waiting"
    problem: str = ""
    sealed: str
    """The `PendingSignIn`, encrypted."""
    begun_by: dict[str, str]
    """The caller that began it, for the audit log."""
    created_at: datetime
    expires_at: datetime


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server of a project, as stored. Its secrets are encrypted."""

    id: McpServerId
    project_id: ProjectId
    name: str
    """Unique in the project."""
    transport: Transport
    url: str = ""
    """For `streamable_http` and `sse`."""
    auth_header: str | None = None
    """The name of the header that carries the token, as `Authorization`."""
    command: str = ""
    """For `stdio`: a command that the operator has listed."""
    args: list[str] = []
    secrets: dict[str, str] = {}
    """Encrypted values by their names: the token, `header:NAME` of each further header, `env:NAME` of each variable,
    and `oauth`, the `Grant` of a sign-in."""
    sign_in: SignIn | None = None
    """None: no person has signed in at the server, and the server has not demanded it."""
    refreshed_at: datetime | None = None
    """When the project last imported the server's tools."""
    problem: str = ""
    """Why the last attempt to read the tools failed. Empty: it succeeded, or there was none."""
    created_at: datetime
    updated_at: datetime


def reached(server: McpServer, now: datetime) -> McpServer:
    """The server after a successful request: its problem is gone."""
    sign_in = server.sign_in
    if sign_in is not None and sign_in.state == "needed":
        sign_in = replace(sign_in, state="signed_in") if THE_GRANT in server.secrets else None
    return replace(server, refreshed_at=now, problem="", sign_in=sign_in)


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The secret part of a begun sign-in."""

    request: SignInRequest
    draft: McpServer | None = None
    """The server, if it is stored only after the sign-in."""


class McpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The data to reach one server, with its secrets decrypted. Equal targets may share a connection."""

    project_id: ProjectId
    server_id: McpServerId
    server_name: str
    transport: Transport
    url: str = ""
    headers: Mapping[str, str] = {}
    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}


class RemoteProbe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tool that a server names as the probe of another one."""

    tool_name: str
    """Its name at the server."""
    parameters: list[str] = []
    """The parameters that it shares with the other tool, and `idempotency_key` if it has that parameter."""
    problem: str = ""
    """Why it cannot be used. Empty: it can."""


class RemoteTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    """JSON Schema of the arguments."""
    read_only: bool | None = None
    """`readOnlyHint`: the tool changes nothing. None: unknown."""
    destructive: bool | None = None
    """`destructiveHint`."""
    idempotent: bool | None = None
    """`idempotentHint`: a second call with the same arguments changes nothing further."""
    probe: RemoteProbe | None = None
    problem: str = ""
    """Why no project can have the tool; empty if projects can. The schema is empty then."""


class RemoteImage(msgspec.Struct, frozen=True):
    """An image in a result."""

    media_type: str
    data: str
    """Base64."""


class RemoteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, within the limits of the client."""

    text: str
    """Valid text, cut with a note where the server sent more than the limit."""
    is_error: bool = False
    """The tool itself reports that it failed."""
    images: list[RemoteImage] = []


class ToolSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a tool of type `external_mcp` is run: its server, its name there, and its probe."""

    server_id: McpServerId
    server_name: str
    tool_name: str
    probe: RemoteProbe | None = None


def source_metadata(source: ToolSource) -> dict[str, Any]:
    """Returns the metadata of a tool that this server runs."""
    return {SOURCE: msgspec.to_builtins(source)}


def tool_source(tool: Tool) -> ToolSource | None:
    """Returns where the tool is run. None if it is not an MCP server's, or its metadata lacks the place."""
    if tool.tool_type != MCP_TYPE:
        return None
    try:
        return msgspec.convert(tool.metadata.get(SOURCE), ToolSource)
    except msgspec.ValidationError:
        return None


def tag_of(server_name: str) -> str:
    """The tag by which programs find the tools of a server."""
    return f"mcp:{server_name}"


def is_servers_tag(tool: Tool, tag: str) -> bool:
    """Whether the tool has this tag from its server."""
    source = tool_source(tool)
    return source is not None and tag == tag_of(source.server_name)


def kept_source(before: Tool, after: Tool) -> Tool:
    """The changed tool with its server's metadata and tag, which a client that replaces metadata or tags cannot
    remove."""
    source = tool_source(before)
    if source is None:
        return after
    kept = source_metadata(source) | {HINTS: before.metadata.get(HINTS, {})}
    tags = [tag for tag in before.tags if is_servers_tag(before, tag)]
    return replace(
        after, metadata={**after.metadata, **kept}, tags=[*tags, *(tag for tag in after.tags if tag not in tags)]
    )
