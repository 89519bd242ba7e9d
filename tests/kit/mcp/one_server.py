"""A runner of workers for the tools of one MCP server, which is not stored anywhere."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from shared.concurrency import SystemClock
from shared.domain.mcp_servers import McpServer
from shared.mcp.client import McpClient
from shared.mcp.signed_in import AuthorizationServers, SignedIn
from shared.network.checked_http import NetworkRules
from shared.secret_keys import NO_KEYS
from tests.kit.mcp.official import OfficialServer
from tests.kit.runs.definitions import PROJECT, some_server
from worker.runners.mcp_tools import McpToolRunner

THE_SERVER = some_server("actors")


class _OneServer:
    """Replaces the store of MCP servers: it has one."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def get(self, project_id: object, server_id: object) -> McpServer:
        assert (project_id, server_id) == (PROJECT, THE_SERVER.id)
        return replace(THE_SERVER, url=self._url)

    async def update(self, *_: object, **__: object) -> McpServer:
        raise AssertionError("nobody has signed in at this server")

    claim_renewal = settle_renewal = update


@asynccontextmanager
async def runner_of(server: OfficialServer, timeout_s: float) -> AsyncGenerator[McpToolRunner]:
    """The runner, for the block. Tools are stored with the server `THE_SERVER`."""
    network = NetworkRules.of("127.0.0.0/8", "")
    client, authorization = McpClient(network), AuthorizationServers(network)
    servers = _OneServer(server.target.url)
    signed_in = SignedIn(servers, authorization, NO_KEYS, SystemClock(), lambda: "this process")
    yield McpToolRunner(client=client, signed_in=signed_in, servers=servers, timeout_s=timeout_s)
    await client.aclose()
