"""Calls the tools of a project's MCP servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shared.domain.errors import InvalidRequest, McpSignInNeeded, NotFound, Unavailable, UnreadableSecret
from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import McpServer, McpTarget, RemoteImage, RemoteResult, tool_source
from shared.domain.messages import ImageContent, TextContent, ToolCall, ToolReturn, text_with_notes
from shared.domain.tool_catalog import JsonObject
from shared.domain.tools import Tool
from shared.mcp.client import McpClient
from shared.mcp.signed_in import SignedIn
from worker.runners.tool_runner import CallingRun, ForeignOutcome, RunnerTraits, error_return
from worker.tools.outcomes import ToolOutcome, without_secrets

NO_PLACE = (
    "Error: the tool was not called, because what is stored of it does not say which MCP server runs it. Its server's "
    "tools must be read anew"
)
NO_SERVER = "Error: the tool was not called: its MCP server {!r} is no longer there"


OF_A_SERVER = RunnerTraits(timeout_s=None)
"""The runner limits the time of a call itself, and so knows whether the server may have acted."""
ALWAYS_ASKING = RunnerTraits(timeout_s=None, asks_always=True)


class McpServers(Protocol):
    """The store of MCP servers."""

    async def get(self, project_id: ProjectId, server_id: McpServerId) -> McpServer:
        """Returns a server of this project. Raises `NotFound`."""
        ...


@dataclass(frozen=True, kw_only=True)
class McpToolRunner:
    """Calls each tool at its server, as stored at the time of the call."""

    client: McpClient
    signed_in: SignedIn
    servers: McpServers
    timeout_s: float
    """Seconds for one call, also the most that a tool may choose."""
    traits: RunnerTraits = OF_A_SERVER

    def arguments(self, tool: Tool) -> JsonObject:
        """Returns the schema that the server has listed."""
        return tool.accepted_arguments

    async def call(
        self, run: CallingRun, call: ToolCall, tool: Tool, arguments: dict[str, Any]
    ) -> ToolReturn | ForeignOutcome:
        """Returns the server's answer. A failure of the server is an error result, and the run continues."""
        source = tool_source(tool)
        if source is None:
            return error_return(call, NO_PLACE)
        try:
            server = await self.servers.get(run.run.project_id, source.server_id)
        except NotFound:
            return error_return(call, NO_SERVER.format(source.server_name))
        return await self._outcome(run, call, tool, server, (source.tool_name, arguments))

    async def _outcome(
        self, run: CallingRun, call: ToolCall, tool: Tool, server: McpServer, asked: tuple[str, dict[str, Any]]
    ) -> ToolReturn | ForeignOutcome:
        chosen = tool.limits.timeout_s if tool.limits is not None else None
        timeout_s = self.timeout_s if chosen is None else min(chosen, self.timeout_s)
        images: Sequence[RemoteImage] = ()
        targets: list[McpTarget] = []

        async def called(target: McpTarget) -> RemoteResult:
            targets.append(target)
            return await self.client.call_tool(target, *asked, timeout_s=timeout_s, key=run.idempotency_key(call))

        try:
            result = await self.signed_in.asked(server, called)
        except (InvalidRequest, McpSignInNeeded, Unavailable, UnreadableSecret) as error:
            if not targets:
                return error_return(call, f"Error: the tool was not called: {error.message}")
            outcome = ToolOutcome("error", f"Error: {error.message}")
        else:
            outcome, images = ToolOutcome("error" if result.is_error else "success", result.text), result.images
        # The caller knows the agent's secrets, but not the server's.
        for target in targets:
            outcome = await without_secrets(outcome, {**target.headers, **target.env})
        return ForeignOutcome(outcome, partial(_returned, call, images))


def _returned(call: ToolCall, images: Sequence[RemoteImage], outcome: ToolOutcome) -> ToolReturn:
    pictures = [ImageContent(data=image.data, media_type=image.media_type) for image in images]
    parts = [*([TextContent(outcome.text)] if outcome.text else []), *pictures]
    return ToolReturn(
        tool_call_id=call.id,
        tool_name=call.name,
        status=outcome.status,
        text=text_with_notes(parts),
        parts=parts if pictures else None,
    )
