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
"""The key of a tool's metadata that has the tool's place at its server."""
IDEMPOTENCY_KEY: Final = "holdfast/idempotencyKey"
"""A client's name for its call, in the request's `_meta`. A server that knows it answers a repeated call with the same
name as it answered the first: Holdfast does, and gives its own calls such names."""
NAMES_PROBE: Final = "holdfast/probe"
"""The key of a tool's `_meta` by which its server names the tool that says whether a call of it had its effect."""
HINTS = "mcp_hints"
"""The key of a tool's metadata that has the hints which the server gave with it last."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of a sign-in at a server (OAuth). What it has granted is a secret of the server."""

    state: Literal["signed_in", "needed"]
    """`needed`: the server refuses requests until a person signs in, for the first time or again."""
    authorization_server: str | None = None
    """The address of whoever asks the person, as it calls itself."""
    scope: str | None = None
    since: datetime
    expires_at: datetime | None = None
    """When the access token expires. It is renewed before that, if the authorization server permits it."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What an authorization server has granted, and what is needed to renew it. Secret as a whole."""

    access_token: str = ""
    """Empty: there is none any more, and a person has to sign in again."""
    refresh_token: str | None = None
    expires_at: datetime | None = None
    scope: str | None = None
    token_endpoint: str
    resource: str | None = None
    """For whom tokens are asked for, where the authorization server needs to know (RFC 8707)."""
    authorization_server: str | None = None
    client: dict[str, Any]
    """The registration of this deployment at the authorization server."""
    redirect_uri: str
    """For which it is registered."""


class SignInRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a sign-in that waits for a person needs when the browser comes back. Secret as a whole."""

    verifier: str
    """Shows the authorization server that whoever brings the code is who asked for it (PKCE)."""
    server_url: str
    token_endpoint: str
    resource: str | None = None
    scope: str | None = None
    authorization_server: str | None = None
    issuer: str | None = None
    """What the browser's return may call the authorization server."""
    names_issuer: bool = False
    """The authorization server has promised to name itself there."""
    client: dict[str, Any]
    redirect_uri: str


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in that waits for a person."""

    url: str
    """What the person opens in a browser."""
    state: str
    """By which the browser's return is known. Nobody can guess it."""
    request: SignInRequest


class SignInSession(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in at a server that somebody has begun, as stored: for minutes, and for one return of a browser."""

    id: McpSignInId
    project_id: ProjectId
    server_id: McpServerId
    state_hash: str
    """SHA-256 of what the browser brings back. Whoever reads the database cannot bring it."""
    status: Literal["waiting", "redeeming", "done", "failed"] = "waiting"
    problem: str = ""
    sealed: str
    """The `PendingSignIn`, encrypted."""
    begun_by: dict[str, str]
    """Who has begun it, for the audit log."""
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
    """Of `streamable_http` and `sse`."""
    auth_header: str | None = None
    """The name of the header that carries the token, as `Authorization`."""
    command: str = ""
    """Of `stdio`: a command that the operator has listed."""
    args: list[str] = []
    secrets: dict[str, str] = {}
    """Encrypted values by their names: the token, `header:NAME` of each further header, `env:NAME` of each variable,
    and `oauth`, the `Grant` of a sign-in."""
    sign_in: SignIn | None = None
    """None: nobody has signed in at the server, and it has not asked for that."""
    refreshed_at: datetime | None = None
    """When the project last imported the server's tools."""
    problem: str = ""
    """Why the last attempt to read the tools failed. Empty: it succeeded, or there was none."""
    created_at: datetime
    updated_at: datetime


def reached(server: McpServer, now: datetime) -> McpServer:
    """The server after it has served: what was wrong with it is not any more."""
    sign_in = server.sign_in
    if sign_in is not None and sign_in.state == "needed":
        sign_in = replace(sign_in, state="signed_in") if THE_GRANT in server.secrets else None
    return replace(server, refreshed_at=now, problem="", sign_in=sign_in)


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The secret part of a sign-in that somebody has begun."""

    request: SignInRequest
    draft: McpServer | None = None
    """The server, where it is to be stored only when somebody has signed in."""


class McpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is reached, its secrets decrypted. Equal targets may share a connection."""

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
    """At the server."""
    parameters: list[str] = []
    """Those of its parameters that are also the other tool's, and `idempotency_key` if it has that one."""
    problem: str = ""
    """Why it is not asked."""


class RemoteTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}
    """JSON Schema of the arguments."""
    read_only: bool | None = None
    """`readOnlyHint`: the tool changes nothing. None: the server does not say."""
    destructive: bool | None = None
    """`destructiveHint`."""
    idempotent: bool | None = None
    """`idempotentHint`: a second call with the same arguments changes nothing further."""
    probe: RemoteProbe | None = None


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
    """The tool failed, by its own account."""
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
    """Returns where the tool is run. None if it is not an MCP server's, or its metadata does not say."""
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
    """Whether it is the tag that the tool has of its server."""
    source = tool_source(tool)
    return source is not None and tag == tag_of(source.server_name)


def kept_source(before: Tool, after: Tool) -> Tool:
    """The changed tool with what says where it is run: a client that writes metadata or tags anew leaves that as it
    is."""
    source = tool_source(before)
    if source is None:
        return after
    kept = source_metadata(source) | {HINTS: before.metadata.get(HINTS, {})}
    tags = [tag for tag in before.tags if is_servers_tag(before, tag)]
    return replace(
        after, metadata={**after.metadata, **kept}, tags=[*tags, *(tag for tag in after.tags if tag not in tags)]
    )
