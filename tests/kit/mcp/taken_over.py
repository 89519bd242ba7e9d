"""The tools of an MCP server as a project stores them when it imports the server's list."""

from collections.abc import Sequence
from typing import Any

from shared.domain.mcp_servers import MCP_TYPE, McpServer, McpTarget, RemoteProbe, ToolSource, source_metadata
from shared.domain.tools import Tool
from shared.mcp.targets import THE_TOKEN
from shared.sql.definitions.mcp_servers import McpServerStore
from shared.sql.definitions.tools import ToolStore
from tests.kit.product import Product


async def taken_over(
    product: Product,
    target: McpTarget,
    names: Sequence[str],
    *,
    parameters: dict[str, Any] | None = None,
    probe: RemoteProbe | None = None,
    **fields: Any,
) -> list[str]:
    """Stores the server, with the token of the target, and tools of it; gives their ids."""
    context = product.context
    server_id, now = context.ids.mcp_server(), context.clock.now()
    token = target.headers["Authorization"].removeprefix("Bearer ")
    server = McpServer(
        id=server_id,
        project_id=product.project_id,
        name=target.server_name,
        transport=target.transport,
        url=target.url,
        secrets={THE_TOKEN: context.secret_keys.seal(server_id, THE_TOKEN, token)},
        created_at=now,
        updated_at=now,
    )
    await McpServerStore(context.database).create(server)
    schema = parameters or {"type": "object", "properties": {}}
    stored = [
        await ToolStore(context.database).upsert(
            Tool(
                id=context.ids.tool(),
                project_id=product.project_id,
                name=name,
                description="Of a server.",
                source_code="",
                json_schema={"name": name, "parameters": schema},
                tool_type=MCP_TYPE,
                metadata=source_metadata(ToolSource(server_id, server.name, name, probe)),
                created_at=now,
                updated_at=now,
                **fields,
            )
        )
        for name in names
    ]
    return [tool.id for tool in stored]
