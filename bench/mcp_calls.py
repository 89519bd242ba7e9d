"""Measures a call of an MCP server's tool over TLS, with an HTTP connection for each request and with kept ones.

The official package's server runs in a process of its own, on loopback, where a handshake costs no round trips, only
its computing. The two ways take turns.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from mcp.server import MCPServer

from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import McpTarget
from shared.mcp.client import McpClient
from shared.mcp.failures import BOUNDS, Bounds
from shared.network.checked_http import NetworkRules
from tests.kit.certificates import SelfSigned
from tests.kit.free_ports import free_port
from tests.kit.mcp.official import App, Receive, Send, app_of, served

ROUNDS = 5
TOGETHER = 8
WAYS = {"a connection per request": Bounds(kept_s=0), f"kept for {BOUNDS.kept_s:g} s": BOUNDS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mcp_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=100, help="calls of each round (default: 100)")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(int(options.serve[0]), Path(options.serve[1])))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-mcp-calls-") as directory:
        asyncio.run(_measure(Path(directory), options.calls))


async def _serve(port: int, directory: Path) -> None:
    mcp = MCPServer("measured", log_level="CRITICAL")
    peers: set[tuple[str, int]] = set()

    @mcp.tool()
    def connections() -> str:
        """Says how many connections have come so far."""
        return str(len(peers))

    files = SelfSigned(str(directory / "certificate.pem"), str(directory / "key.pem"))
    async with served(_noting(app_of(mcp, "json"), peers), port, files):
        print("ready", flush=True)
        await asyncio.Event().wait()


def _noting(app: App, peers: set[tuple[str, int]]) -> App:
    async def noting(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            peers.add(tuple(scope["client"]))
        await app(scope, receive, send)

    return noting


@asynccontextmanager
async def _server(directory: Path) -> AsyncGenerator[tuple[McpTarget, NetworkRules]]:
    secured, port = SelfSigned.of(directory, "127.0.0.1"), free_port()
    command = [sys.executable, "-m", "bench.mcp_calls", "--serve", str(port), str(directory)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n", "the server did not start"
        url = f"https://127.0.0.1:{port}/mcp"
        target = McpTarget(
            project_id=ProjectId("default"),
            server_id=McpServerId("mcp_server-1"),
            server_name="measured",
            transport="streamable_http",
            url=url,
        )
        yield target, NetworkRules.of("127.0.0.0/8", secured.certificate)
    finally:
        process.kill()
        await process.wait()


async def _measure(directory: Path, calls: int) -> None:
    async with _server(directory) as (target, network):
        clients = {way: McpClient(network, bounds=bounds) for way, bounds in WAYS.items()}
        for client in clients.values():
            await _call(client, target)
        for title, together in (("one after the other", 1), (f"{TOGETHER} at once", TOGETHER)):
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            computed = dict.fromkeys(WAYS, 0.0)
            made = dict.fromkeys(WAYS, 0)
            for _ in range(ROUNDS):
                for way, client in clients.items():
                    before = await _call(client, target)
                    began, computed_before = time.perf_counter(), time.process_time()
                    await asyncio.gather(*(_calls(client, target, calls // together) for _ in range(together)))
                    taken[way].append((time.perf_counter() - began) / (calls // together * together))
                    computed[way] += time.process_time() - computed_before
                    made[way] += await _call(client, target) - before
            for way, figures in taken.items():
                of_all = ROUNDS * (calls // together * together)
                told = f"{computed[way] / of_all * 1000:.1f} ms computing, {made[way] / of_all:.2f} connections a call"
                print(f"{title}, {way}: {_figures(figures)}, {told}")
        for client in clients.values():
            await client.aclose()


async def _calls(client: McpClient, target: McpTarget, calls: int) -> None:
    for _ in range(calls):
        await _call(client, target)


async def _call(client: McpClient, target: McpTarget) -> int:
    return int((await client.call_tool(target, "connections", {}, timeout_s=30)).text)


def _figures(per_call_s: list[float]) -> str:
    middle, best = median(per_call_s), min(per_call_s)
    return f"{1 / middle:.0f} calls/s, {middle * 1000:.1f} ms a call (best round {best * 1000:.1f} ms)"


if __name__ == "__main__":
    main()
