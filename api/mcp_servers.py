"""The MCP servers of a project: creates them, changes them, and imports their tools.

No answer contains a secret. A client that sends back the masked form keeps the stored secret, except where the server's
address changes: a caller that may change an address must not be able to send a token there that the caller cannot read.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shared.concurrency import Clock
from shared.domain.agents import SEALED, is_sealed
from shared.domain.errors import (
    Conflict,
    InvalidRequest,
    McpServerUnavailable,
    McpSignInNeeded,
    NotFound,
    Unavailable,
    UnreadableSecret,
)
from shared.domain.ids import AgentId, IdMaker, McpServerId, ProjectId, ToolId
from shared.domain.mcp_servers import THE_GRANT, McpServer, McpTarget, RemoteResult, RemoteTool, Transport, tool_source
from shared.domain.tools import Tool
from shared.mcp.client import McpClient
from shared.mcp.commands import AllowedCommands
from shared.mcp.signed_in import SignedIn
from shared.mcp.targets import HEADER, THE_TOKEN, VARIABLE, target_of
from shared.mcp_tools import MOST_TOOLS, TakeOver, ToolChanges
from shared.network.addresses import flaw_of_url
from shared.secret_keys import SecretKeys
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.tools import ToolStore

MASK = "********"
"""Replaces a secret in every answer."""

DEFAULT_HEADER = "Authorization"
LONGEST_PROBLEM = 500
"""Characters of the reason that are stored when a server cannot be reached."""

Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ServerChange:
    """A request to change a server. None leaves a field unchanged. Secrets stay with `UNSET`, and None deletes them."""

    name: str | None = None
    transport: Transport | None = None
    url: str | None = None
    auth_header: str | None = None
    token: str | UnsetType | None = UNSET
    headers: Texts | UnsetType | None = UNSET
    command: str | None = None
    args: Sequence[str] | None = None
    env: Texts | UnsetType | None = UNSET

    def applied(self, before: McpServer) -> McpServer:
        """Returns the server after the change, with the new secrets unencrypted. Raises `InvalidRequest`."""
        transport = self.transport or before.transport
        secrets = self._secrets(before.secrets)
        if not self._keeps_sign_in():
            secrets.pop(THE_GRANT, None)
        is_command = transport == "stdio"
        mine = {name: value for name, value in secrets.items() if name.startswith(VARIABLE) is is_command}
        after = replace(
            before,
            name=before.name if self.name is None else self.name,
            transport=transport,
            url="" if is_command else before.url if self.url is None else self.url,
            auth_header=(self.auth_header or before.auth_header or DEFAULT_HEADER) if THE_TOKEN in mine else None,
            command="" if not is_command else before.command if self.command is None else self.command,
            args=[] if not is_command else before.args if self.args is None else list(self.args),
            secrets=mine,
        )
        if _place(before) != _place(after):
            # The API sends a token only to the address for which it was granted.
            mine.pop(THE_GRANT, None)
        if THE_TOKEN in mine or (THE_GRANT in before.secrets and THE_GRANT not in mine):
            after = replace(after, sign_in=None)
        self._refuse_secrets_elsewhere(before, after)
        return after

    def _keeps_sign_in(self) -> bool:
        """Whether the stored sign-in stays. Answers mask its token like any other, so a client may send the mask
        back."""
        return isinstance(self.token, UnsetType) or (self.token is not None and _is_mask(self.token))

    def _secrets(self, stored: Texts) -> dict[str, str]:
        token = self.token if isinstance(self.token, UnsetType) else {"": self.token} if self.token else {}
        if THE_GRANT in stored and self.token and _is_mask(self.token):
            token = UNSET
        return {
            **{name: value for name, value in stored.items() if name == THE_GRANT},
            **_merged(stored, THE_TOKEN, token, "auth_token"),
            **_merged(stored, HEADER, self.headers, "custom_headers"),
            **_merged(stored, VARIABLE, self.env, "env"),
        }

    def _refuse_secrets_elsewhere(self, before: McpServer, after: McpServer) -> None:
        if _place(before) == _place(after):
            return
        kept = sorted(name for name, value in after.secrets.items() if before.secrets.get(name) == value)
        if kept:
            field = "command" if after.transport == "stdio" else "server_url"
            raise InvalidRequest(
                f"{field}: the address changes, and stored secrets ({', '.join(kept)}) are not sent to a new address: "
                "send them again with it, or null to remove them",
                field=field,
            )


def _merged(stored: Texts, kind: str, given: Texts | UnsetType | None, field: str) -> dict[str, str]:
    """Returns the secrets of one kind after the change to `given`."""
    before = {name.removeprefix(kind): value for name, value in stored.items() if name.startswith(kind)}
    if isinstance(given, UnsetType):
        after = before
    else:
        after = {name: _value(name, value, before, field) for name, value in (given or {}).items()}
    return {f"{kind}{name}": value for name, value in after.items()}


def _is_mask(given: str) -> bool:
    return given.removeprefix("Bearer ") == MASK


def _value(name: str, given: str, before: Texts, field: str) -> str:
    place = f"{field}.{name}" if name else field
    if _is_mask(given):
        if name not in before:
            raise InvalidRequest(
                f"{place}: {MASK} means the stored secret, but none is stored: send its value", field=place
            )
        return before[name]
    if is_sealed(given):
        raise InvalidRequest(f"{place}: it begins with {SEALED!r}, which marks encrypted values", field=place)
    if not given.isprintable():
        raise InvalidRequest(f"{place}: it has a line break, or another character that cannot be sent", field=place)
    return given


def _place(server: McpServer) -> tuple[str, ...]:
    """The destination of the server's secrets."""
    if server.transport == "stdio":
        return (server.command, *server.args)
    parts = urlsplit(server.url)
    return (parts.scheme, parts.netloc.lower())


def masked_token(server: McpServer) -> str | None:
    """The mask if the server has a token, from a client or a sign-in."""
    return MASK if THE_TOKEN in server.secrets or THE_GRANT in server.secrets else None


def shown_header(server: McpServer) -> str | None:
    """The name of the header that carries the token."""
    return DEFAULT_HEADER if THE_GRANT in server.secrets else server.auth_header


def masked_headers(server: McpServer) -> dict[str, str] | None:
    """The names of the server's further headers, each with the mask. None if it has none."""
    return _masked(server, HEADER)


def masked_variables(server: McpServer) -> dict[str, str] | None:
    """The names of the server's variables, each with the mask. None if it has none."""
    return _masked(server, VARIABLE)


def _masked(server: McpServer, kind: str) -> dict[str, str] | None:
    names = [name.removeprefix(kind) for name in server.secrets if name.startswith(kind)]
    return dict.fromkeys(names, MASK) if names else None


@dataclass(frozen=True)
class TakenServer:
    """A server, and the changes to its tools. `changes` is None if the API could not reach the server; `server.problem`
    has the reason."""

    server: McpServer
    changes: ToolChanges | None


@contextmanager
def _asking(server: McpServer) -> Generator[None]:
    """Converts errors of the client to one error that Letta's SDKs do not retry: the first request may have had its
    effect."""
    try:
        yield
    except (InvalidRequest, Unavailable) as error:
        raise McpServerUnavailable(error.message) from error
    except UnreadableSecret as error:
        raise McpServerUnavailable(
            f"The MCP server {server.name!r} cannot be asked: {error.message}. Send the secret anew"
        ) from error


def _bounded(server: McpServer, listed: list[RemoteTool]) -> list[RemoteTool]:
    if len(listed) > MOST_TOOLS:
        raise McpServerUnavailable(
            f"The MCP server {server.name!r} lists {len(listed)} tools, and {MOST_TOOLS} are the most"
        )
    return listed


def _usable(listed: list[RemoteTool]) -> list[RemoteTool]:
    return [tool for tool in listed if not tool.problem]


@dataclass(frozen=True, kw_only=True)
class McpServers:
    """Operations on a project's servers for its callers."""

    store: McpServerStore
    tools: ToolStore
    client: McpClient
    signed_in: SignedIn
    secret_keys: SecretKeys
    audit: AuditLog
    clock: Clock
    ids: IdMaker
    commands: AllowedCommands
    asks_always: bool
    """The operator demands approval for each call of an MCP server's tool."""
    call_s: float
    """Time limit of one call, in seconds."""

    async def create(self, project_id: ProjectId, wanted: ServerChange) -> TakenServer:
        """Stores a server and imports its tools. A server that cannot be reached is stored, too, and a later refresh
        imports its tools. Raises `InvalidRequest` and `Conflict`."""
        server = await self.store.create(self.sealed(self.made(project_id, wanted)))
        return await self.taken(server)

    async def put(self, project_id: ProjectId, wanted: ServerChange) -> TakenServer:
        """Creates a server, or changes the one of that name, and imports its tools. Raises `InvalidRequest`."""
        before = None if wanted.name is None else await self.store.named(project_id, wanted.name)
        if before is None:
            return await self.create(project_id, wanted)
        return await self.taken(await self.change(project_id, before.id, wanted))

    async def change(self, project_id: ProjectId, server_id: McpServerId, wanted: ServerChange) -> McpServer:
        """Changes the given fields. Raises `NotFound`, `InvalidRequest` and `Conflict`."""

        def changed(before: McpServer) -> McpServer:
            after = wanted.applied(before)
            self._refuse_flaws(after)
            return self.sealed(after)

        return await self.store.update(project_id, server_id, changed, now=self.clock.now())

    async def refresh(self, project_id: ProjectId, server_id: McpServerId) -> ToolChanges:
        """Imports the tools that the server lists now. Raises `NotFound`. Raises `McpServerUnavailable` or
        `McpSignInNeeded` if the server cannot be reached, and leaves the project's tools as they are."""
        taken = await self.taken(await self.store.get(project_id, server_id))
        if taken.changes is None:
            sign_in = taken.server.sign_in
            is_asking = sign_in is not None and sign_in.state == "needed"
            raise (McpSignInNeeded if is_asking else McpServerUnavailable)(taken.server.problem)
        return taken.changes

    async def add_tool(self, project_id: ProjectId, name: str, tool_name: str) -> Tool:
        """Imports one of the tools that a server lists. Raises `NotFound`, `InvalidRequest` for a tool that the project
        cannot have, and `McpServerUnavailable`."""
        server = await self.find(project_id, name)
        listed = await self._listed(server)
        wanted = [tool for tool in listed if tool.name == tool_name]
        if not wanted:
            had = ", ".join(tool.name for tool in listed)[:LONGEST_PROBLEM] or "none"
            raise NotFound(f"MCP server {name!r} has no tool named {tool_name!r}. Its tools: {had}")
        changes = await self.store.take_over(server, self._taking(wanted[:1], deletes=False))
        if changes.skipped:
            raise InvalidRequest(f"The tool {tool_name!r} was left out: {changes.skipped[0].reason}")
        own = await self.store.tools(project_id, server.id)
        return next(tool for tool in own if (source := tool_source(tool)) and source.tool_name == tool_name)

    async def find(self, project_id: ProjectId, name: str) -> McpServer:
        """The project's server of this name. Raises `NotFound`."""
        server = await self.store.named(project_id, name)
        if server is None:
            raise NotFound(f"MCP server {name[:200]!r} not found")
        return server

    async def listed(self, server: McpServer) -> list[RemoteTool]:
        """Returns the tools that the server lists now, without those that no project can have. Raises
        `McpServerUnavailable` and `McpSignInNeeded`."""
        return _usable(await self._listed(server))

    async def _listed(self, server: McpServer) -> list[RemoteTool]:
        with _asking(server):
            return _bounded(server, await self.signed_in.asked(server, self.client.list_tools))

    async def try_out(self, project_id: ProjectId, wanted: ServerChange) -> list[RemoteTool]:
        """Returns the tools of a server that is not stored. Raises `InvalidRequest`, `McpServerUnavailable` and
        `McpSignInNeeded`."""
        return await self.listed_once(self.made(project_id, wanted))

    async def listed_once(self, server: McpServer) -> list[RemoteTool]:
        """Returns the tools of a server that is not stored, and stores nothing about it."""
        with _asking(server):
            return _usable(_bounded(server, await self.client.list_tools(target_of(server, self.secret_keys))))

    async def tool(self, project_id: ProjectId, server_id: McpServerId, tool_id: ToolId) -> Tool:
        """One of the server's tools. Raises `NotFound`."""
        await self.store.get(project_id, server_id)
        tool = await self.tools.get(project_id, tool_id)
        source = tool_source(tool)
        if source is None or source.server_id != server_id:
            raise NotFound(f"MCP server {server_id} has no tool with ID {tool_id}")
        return tool

    async def call(self, tool: Tool, arguments: dict[str, Any], *, is_repeated: bool) -> RemoteResult:
        """Calls a tool immediately and once, without an agent and without an approval. `is_repeated`: the client
        library retries the request by itself, as after a timeout. Raises `NotFound` if the server was deleted
        meanwhile, `Conflict` for a retry that could have its effect twice, and `McpServerUnavailable`."""
        if is_repeated and not tool.idempotent:
            raise Conflict(
                f"The call of {tool.name!r} was sent before, and whether the tool did its work is not known. It was "
                "not sent again: look at the server, and decide"
            )
        source = tool_source(tool)
        if source is None:
            raise NotFound(f"Tool {tool.id} is run by no MCP server")
        server = await self.store.get(tool.project_id, source.server_id)
        # The call needs no approval, even if the tool demands one, so the audit log records the key before the call.
        await self.audit.add(tool.project_id, "tool.called", tool.id)

        def call(target: McpTarget) -> Awaitable[RemoteResult]:
            return self.client.call_tool(target, source.tool_name, arguments, timeout_s=self.call_s)

        with _asking(server):
            return await self.signed_in.asked(server, call)

    async def of_agent(self, project_id: ProjectId, agent_id: AgentId) -> Sequence[McpServer]:
        """The servers that provide some of the agent's tools. Raises `NotFound`."""
        return await self.of_tools(project_id, await self.tools.for_agent(project_id, agent_id))

    async def of_tools(self, project_id: ProjectId, own: Sequence[Tool]) -> Sequence[McpServer]:
        """The project's servers that provide some of these tools."""
        ids = {source.server_id for tool in own if (source := tool_source(tool)) is not None}
        return [server for server in await self.store.list(project_id) if server.id in ids] if ids else []

    async def taken(self, server: McpServer) -> TakenServer:
        """Imports the tools that the server lists now, or stores why that failed."""
        try:
            listed = await self._listed(server)
        except (McpServerUnavailable, McpSignInNeeded) as error:
            problem, now = error.message[:LONGEST_PROBLEM], self.clock.now()

            def noted(before: McpServer) -> McpServer:
                return replace(before, problem=problem)

            stored = await self.store.update(server.project_id, server.id, noted, now=now, action="")
            return TakenServer(stored, None)
        changes = await self.store.take_over(server, self._taking(listed))
        return TakenServer(await self.store.get(server.project_id, server.id), changes)

    def _taking(self, listed: Sequence[RemoteTool], *, deletes: bool = True) -> TakeOver:
        return TakeOver(
            remote=listed, asks_always=self.asks_always, new_id=self.ids.tool, now=self.clock.now(), deletes=deletes
        )

    def made(self, project_id: ProjectId, wanted: ServerChange) -> McpServer:
        """Returns the server that a request describes, with its secrets unencrypted. Raises `InvalidRequest`."""
        now = self.clock.now()
        blank = McpServer(
            id=self.ids.mcp_server(),
            project_id=project_id,
            name="",
            transport="streamable_http",
            created_at=now,
            updated_at=now,
        )
        server = wanted.applied(blank)
        self._refuse_flaws(server)
        return server

    def sealed(self, server: McpServer) -> McpServer:
        """Returns the server with its secrets encrypted."""
        return replace(server, secrets=self.secret_keys.seal_all(server.id, server.secrets))

    def _refuse_flaws(self, server: McpServer) -> None:
        """Raises `InvalidRequest` if the server's address is invalid, or if a secret cannot be sent to it."""
        if not server.name:
            raise InvalidRequest("server_name is missing", field="server_name")
        if server.transport == "stdio":
            variables = [name.removeprefix(VARIABLE) for name in server.secrets]
            self.commands.refuse_others(server.command, server.args, variables)
            return
        flaw = flaw_of_url(server.url) if server.url else "is missing"
        if flaw is not None:
            raise InvalidRequest(f"server_url: {flaw}", field="server_url")
        with suppress(UnreadableSecret):  # a stored secret, which an earlier request checked
            target_of(server, self.secret_keys)
