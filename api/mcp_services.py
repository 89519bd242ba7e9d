"""Constructs the MCP clients of an API process, and the services that use them."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from typing import NamedTuple

from api.mcp_servers import McpServers
from api.mcp_sign_in import McpSignIns
from shared.mcp.client import McpClient
from shared.mcp.commands import AllowedCommands
from shared.mcp.signed_in import AuthorizationServers, SignedIn
from shared.network.checked_http import NetworkRules
from shared.process.context import ProcessContext
from shared.sql.access.audit import AuditLog
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.mcp_sign_ins import McpSignInStore
from shared.sql.definitions.tools import ToolStore


class McpParts(NamedTuple):
    """Clients of MCP servers and of their authorization servers."""

    client: McpClient
    authorization: AuthorizationServers
    signed_in: SignedIn


class McpServices(NamedTuple):
    """Services for callers who use MCP servers."""

    mcp_servers: McpServers
    mcp_sign_ins: McpSignIns


@asynccontextmanager
async def mcp_parts(process: ProcessContext, network: NetworkRules) -> AsyncGenerator[McpParts]:
    """Opens the clients for the block. `process` acts for callers."""
    client = McpClient(network, AllowedCommands.parse(process.settings.mcp_commands))
    authorization = AuthorizationServers(network)
    methods = (McpServerStore.claim_renewal, McpServerStore.settle_renewal)
    store = process.patience().applied_to(McpServerStore(process.database), *methods)
    signed_in = SignedIn(store, authorization, process.secret_keys, process.clock, new_holder=lambda: token_hex(8))
    async with AsyncExitStack() as stack:
        for close in (client.aclose, authorization.aclose, signed_in.aclose):
            stack.push_async_callback(close)
        yield McpParts(client, authorization, signed_in)


def mcp_services(process: ProcessContext, everybodys: ProcessContext, parts: McpParts) -> McpServices:
    """Constructs the services. `process` acts for callers. `everybodys` is the same process for all projects: a browser
    that returns from a sign-in names none."""
    settings = process.settings
    servers = McpServers(
        store=McpServerStore(process.database),
        tools=ToolStore(process.database),
        client=parts.client,
        signed_in=parts.signed_in,
        secret_keys=process.secret_keys,
        audit=AuditLog(process.database),
        clock=process.clock,
        ids=process.ids,
        commands=AllowedCommands.parse(settings.mcp_commands),
        asks_always=settings.mcp_always_ask,
        call_s=settings.mcp_timeout,
    )
    sign_ins = McpSignIns(
        servers=servers,
        store=McpSignInStore(process.database),
        everybodys=McpSignInStore(everybodys.database),
        authorization=parts.authorization,
        public_url=settings.public_url.rstrip("/"),
    )
    return McpServices(servers, sign_ins)
