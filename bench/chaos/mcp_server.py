"""The MCP server of a chaos project, as its own process. It uses the official package's server. Its tools record each
call before anything else, so that a call is counted whatever happens to its answer."""

import asyncio
import json
import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from bench.chaos.tools import BOOK, HANG_UP, LOOK_UP, MULL, REFUSAL, REFUSE, REMOVE
from tests.kit.mcp.official import App, Kind, Message, Receive, Send, app_of, served

CUT = "-"
"""Replaces the key in the line of a cut that ended the answers of all callers."""


class HangingUp:
    """Closes the connection of each call of `HANG_UP` once its answer has begun. An older server answers all calls of a
    client in one stream, so there it closes all streams."""

    def __init__(self, app: App, kind: Kind) -> None:
        self._app = app
        self._has_streams = kind == "sse"
        self._cut = asyncio.Event()

    def cut_streams(self) -> bool:
        """Closes all streams of answers. Returns whether there can be any."""
        self._cut.set()
        self._cut = asyncio.Event()
        return self._has_streams

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            await self._until_cut(scope, receive, send)
        elif scope["type"] == "http" and not self._has_streams:
            await self._answered(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _until_cut(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        waiting = (
            loop.create_task(cast("Any", self._app(scope, receive, send)), name="stream"),
            loop.create_task(self._cut.wait(), name="cut"),
        )
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    async def _answered(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] != "http.request" or not message.get("more_body"):
                break
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return whole.pop() if whole else await receive()

        async def begun(message: Message) -> None:
            # The application server closes a connection whose answer is incomplete.
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": True})

        await self._app(scope, replayed, begun if _calls(body) == HANG_UP else send)


def _calls(body: bytes) -> str | None:
    """Returns the name of the tool that a message calls."""
    try:
        said = json.loads(body)
    except ValueError:
        return None
    match said:
        case {"method": "tools/call", "params": {"name": str(name)}}:
            return name
        case _:
            return None


def _with_tools(mcp: MCPServer, log: Path, hanging_up: "list[HangingUp]") -> None:
    def count(key: str) -> None:
        calls = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(calls, f"{key} {time.time()}\n".encode())
        os.close(calls)

    @mcp.tool(name=LOOK_UP, annotations=ToolAnnotations(read_only_hint=True))
    async def look_up(key: str, seconds: float = 0.0) -> str:
        """Changes nothing."""
        count(key)
        await asyncio.sleep(seconds)
        return key

    async def act(key: str, seconds: float = 0.0) -> str:
        """Acts."""
        count(key)
        await asyncio.sleep(seconds)
        return key

    mcp.add_tool(act, name=BOOK)
    mcp.add_tool(act, name=MULL)
    mcp.add_tool(act, name=REMOVE, annotations=ToolAnnotations(destructive_hint=True))

    @mcp.tool(name=REFUSE)
    async def refuse(key: str, seconds: float = 0.0) -> str:
        """Answers with an error."""
        count(key)
        await asyncio.sleep(seconds)
        raise ToolError(REFUSAL)

    @mcp.tool(name=HANG_UP)
    async def hang_up(key: str, seconds: float = 0.0) -> str:
        """Acts, and its answer does not come."""
        count(key)
        await asyncio.sleep(seconds)
        if hanging_up[0].cut_streams():
            count(CUT)
            await asyncio.Event().wait()  # until its stream has ended
        return key


async def _serve(kind: Kind, port: int, log: Path) -> None:
    mcp = MCPServer("chaos", log_level="CRITICAL")
    hanging_up: list[HangingUp] = []
    _with_tools(mcp, log, hanging_up)
    hanging_up.append(HangingUp(app_of(mcp, kind), kind))
    async with served(hanging_up[0], port):
        print("ready", flush=True)
        await asyncio.Event().wait()


def serve() -> None:
    """Serves until the process is ended. The arguments are the kind of the server, its port and the file of calls."""
    kind, port, log = sys.argv[1:]
    asyncio.run(_serve(cast("Kind", kind), int(port), Path(log)))
