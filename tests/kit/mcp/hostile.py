"""An MCP server that breaks rules: it implements 2026-07-28 by hand, and a test replaces its behaviour."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import McpTarget
from tests.kit.stream_server import stream_server

VERSION = "2026-07-28"
TOKEN = "token-of-the-server"
DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": [VERSION],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "public",
}
"""The result of `server/discover`."""

Act = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """A received message."""

    verb: str
    path: str
    headers: dict[str, str]
    message: dict[str, Any]

    @property
    def id(self) -> Any:
        return self.message.get("id")

    @property
    def params(self) -> dict[str, Any]:
        params: dict[str, Any] = self.message.get("params") or {}
        return params


@dataclass
class HostileServer:
    """`acts` has the behaviour for some methods; the server answers all others correctly."""

    port: int = 0
    acts: dict[str, Act] = field(default_factory=dict[str, Act])
    asked: list[Asked] = field(default_factory=list[Asked])

    @property
    def target(self) -> McpTarget:
        return McpTarget(
            project_id=ProjectId("default"),
            server_id=McpServerId("mcp_server-3"),
            server_name="hostile",
            transport="streamable_http",
            url=f"http://127.0.0.1:{self.port}/mcp?key=in-the-address",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    def count(self, method: str) -> int:
        """The number of received messages of this method."""
        return sum(one.message.get("method") == method for one in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads one request, and acts."""
        try:
            asked = await _asked(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        self.asked.append(asked)
        method = asked.message.get("method", asked.verb)
        with suppress(ConnectionError):
            await self.acts.get(method, _as_it_should)(asked, writer)
        writer.close()


async def _asked(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    verb, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(verb, path, headers, json.loads(body) if body else {})


async def _as_it_should(asked: Asked, writer: asyncio.StreamWriter) -> None:
    results: dict[str, dict[str, Any]] = {
        "server/discover": DISCOVERED,
        "tools/list": listed([tool("act")]),
        "tools/call": called("done"),
    }
    await answer(asked, writer, results.get(asked.message.get("method", ""), {}))


def tool(name: str, **schema: Any) -> dict[str, Any]:
    """A tool, as it is listed."""
    return {"name": name, "description": "Acts.", "inputSchema": {"type": "object", "properties": {}, **schema}}


def listed(tools: list[dict[str, Any]], cursor: str | None = None) -> dict[str, Any]:
    """The result of `tools/list`."""
    result = {"resultType": "complete", "tools": tools, "ttlMs": 60_000_000, "cacheScope": "public"}
    return result if cursor is None else {**result, "nextCursor": cursor}


def called(text: str) -> dict[str, Any]:
    """The result of `tools/call`."""
    return {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}


async def answer(asked: Asked, writer: asyncio.StreamWriter, result: dict[str, Any], *, id_: Any = None) -> None:
    """Sends a result in JSON."""
    said = {"jsonrpc": "2.0", "id": asked.id if id_ is None else id_, "result": result}
    await send(writer, json.dumps(said).encode())


async def send(
    writer: asyncio.StreamWriter, body: bytes, *, status: str = "200 OK", kind: str = "application/json", **more: str
) -> None:
    """Sends an answer with this body. The other names are headers, with `_` for `-`."""
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **more}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body)
    await writer.drain()


async def begin_events(writer: asyncio.StreamWriter) -> None:
    """Begins an answer that is a stream of events."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def hostile_server(**acts: Act) -> AsyncGenerator[HostileServer]:
    """Runs the server during the block. `tools_call=…` is the behaviour for `tools/call`."""
    server = HostileServer(acts={name.replace("_", "/"): act for name, act in acts.items()})
    async with stream_server(server.serve) as server.port:
        yield server
