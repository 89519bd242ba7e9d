"""MCP servers that are processes on this machine: what is left of one that is given up while it starts."""

import asyncio
import sys
from pathlib import Path

import pytest

from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import McpTarget
from shared.mcp.stdio import stdio_streams
from tests.kit.wait_until import after, wait_until

TARGET = McpTarget(
    project_id=ProjectId("default"),
    server_id=McpServerId("mcp_server-1"),
    server_name="processes",
    transport="stdio",
    command=sys.executable,
    args=["-c", "input()"],
)


def _open_files() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("turns", range(4))
async def test_a_server_that_was_given_up_while_it_started_left_a_file_open(turns: int) -> None:
    async def use() -> None:
        async with stdio_streams(TARGET, lambda _: None):
            await asyncio.Event().wait()

    before = _open_files()
    using = asyncio.create_task(use(), name="a server")
    for _ in range(turns):
        await after()
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    await wait_until(lambda: _open_files() <= before, description=f"its files to be closed: {turns}")
