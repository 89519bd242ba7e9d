"""Asking MCP servers: the official package's server in every way that it is run, over HTTP and as a process."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations
from msgspec.structs import replace

from shared.domain.errors import InvalidRequest, Unavailable
from shared.domain.ids import McpServerId, ProjectId
from shared.domain.mcp_servers import IDEMPOTENCY_KEY, NAMES_PROBE, McpTarget, RemoteImage, RemoteProbe
from shared.mcp.client import McpClient
from shared.mcp.commands import ANY_ARGUMENTS, AllowedCommands
from shared.mcp.failures import Bounds
from shared.network.checked_http import PUBLIC_ONLY, NetworkRules
from tests.kit.mcp.official import KINDS, PIXEL, Kind, OfficialServer, official_server
from tests.kit.wait_until import wait_until

LOOPBACK = NetworkRules.of("127.0.0.0/8", "")
SCRIPT = str(Path(__file__).parent.parent / "kit" / "mcp" / "stdio_server.py")
COMMANDS = AllowedCommands(((sys.executable, SCRIPT, ANY_ARGUMENTS), ("/no/such/command",)))


@pytest.fixture
async def client() -> AsyncGenerator[McpClient]:
    made = McpClient(LOOPBACK, COMMANDS)
    yield made
    await made.aclose()


@pytest.fixture(params=KINDS)
async def server(request: pytest.FixtureRequest) -> AsyncGenerator[OfficialServer]:
    async with official_server(request.param) as running:
        yield running


def process(*args: str, **env: str) -> McpTarget:
    """The server as a process."""
    return McpTarget(
        project_id=ProjectId("default"),
        server_id=McpServerId("mcp_server-2"),
        server_name="processes",
        transport="stdio",
        command=sys.executable,
        args=[SCRIPT, *args],
        env=env,
    )


async def test_tools_are_listed_with_their_hints_and_called(client: McpClient, server: OfficialServer) -> None:
    tools = {tool.name: tool for tool in await client.list_tools(server.target)}
    assert set(tools) == {"add", "wait", "fail", "show", "structured", "ask"}
    assert tools["add"].description == "Adds two numbers."
    assert (tools["add"].read_only, tools["add"].destructive, tools["add"].idempotent) == (True, None, True)
    assert tools["add"].input_schema["required"] == ["a", "b"]
    result = await client.call_tool(server.target, "add", {"a": 1, "b": 2}, timeout_s=10)
    assert (result.text, result.is_error, server.calls) == ("3", False, ["add"])
    assert server.authorizations == {"Bearer token-of-the-server"}


async def test_a_probe_is_a_tool_of_the_server_that_changes_nothing(client: McpClient, server: OfficialServer) -> None:
    def found(amount: int, text: str, idempotency_key: str) -> None: ...
    def pay(amount: int, note: str) -> None: ...

    server.mcp.add_tool(found, annotations=ToolAnnotations(read_only_hint=True))
    server.mcp.add_tool(found, name="unmarked")
    names = {"good": "found", "bad": "unmarked", "lost": "nowhere", "odd": 7, "none": None}
    for name, probe in names.items():
        server.mcp.add_tool(pay, name=name, meta={NAMES_PROBE: probe})
    tools = {tool.name: tool.probe for tool in await client.list_tools(server.target)}
    assert {name: tools[name] for name in names} == {
        "good": RemoteProbe(tool_name="found", parameters=["amount", "idempotency_key"]),
        "bad": RemoteProbe(tool_name="unmarked", problem="it is not marked as read-only (readOnlyHint: true)"),
        "lost": RemoteProbe(tool_name="nowhere", problem="the server lists no usable tool of this name"),
        "odd": RemoteProbe(tool_name="", problem="_meta['holdfast/probe'] must be the name of a tool of this server"),
        "none": None,
    }


async def test_a_call_brings_its_idempotency_key(client: McpClient, server: OfficialServer) -> None:
    """Under the name that our own server knows."""
    keys: list[object] = []

    async def keyed(context: Context[Any, Any]) -> str:
        keys.append((context.request_context.meta or {}).get(IDEMPOTENCY_KEY))
        return "noted"

    server.mcp.add_tool(keyed, name="keyed")
    for key in ("hf-1", ""):
        assert (await client.call_tool(server.target, "keyed", {}, timeout_s=10, key=key)).text == "noted"
    assert keys == ["hf-1", None]


async def test_a_tools_own_error_is_a_result(client: McpClient, server: OfficialServer) -> None:
    result = await client.call_tool(server.target, "fail", {}, timeout_s=10)
    assert result.is_error
    assert "it cannot be done" in result.text


async def test_contents_become_text_and_images(client: McpClient, server: OfficialServer) -> None:
    result = await client.call_tool(server.target, "show", {}, timeout_s=10)
    assert result.images == [RemoteImage("image/png", PIXEL)]
    assert result.text.splitlines() == [
        "From the roof:",
        "[Image omitted: image/tiff]",
        "[Audio omitted: audio/wav]",
        "[Resource: notes at file:///notes.txt]",
        "the text of a file",
    ]
    value = await client.call_tool(server.target, "structured", {}, timeout_s=10)
    assert json.loads(value.text) == {"degrees": 21}


async def test_input_in_the_middle_of_a_call_is_declined(client: McpClient, server: OfficialServer) -> None:
    """The caller hears of it; nobody is asked, and the call neither waits for anybody nor is made again."""
    with pytest.raises(InvalidRequest, match="answers with an error"):
        await client.call_tool(server.target, "ask", {}, timeout_s=10)
    assert server.methods.count("tools/call") == 1


async def test_calls_beside_one_another_share_a_connection(client: McpClient, server: OfficialServer) -> None:
    calls = [client.call_tool(server.target, "add", {"a": n, "b": n}, timeout_s=10) for n in range(20)]
    results = await asyncio.gather(*calls)
    assert [result.text for result in results] == [str(2 * n) for n in range(20)]
    opened = [method for method in server.methods if method in ("initialize", "server/discover")]
    assert len(opened) == 1


@pytest.mark.parametrize("kind", ["stateless", "json", "sse"])
async def test_each_call_cost_a_connection_of_its_own(client: McpClient, kind: Kind) -> None:
    """Over TLS that is a handshake, and two round trips more. The package leaves the streams of sessions before their
    ends, so these cannot be used again."""
    async with official_server(kind) as server:
        for number in range(5):
            result = await client.call_tool(server.target, "add", {"a": number, "b": 0}, timeout_s=10)
            assert result.text == str(number)
        assert len(server.connections) == 1


async def test_a_list_that_changes_is_read_anew(client: McpClient, server: OfficialServer) -> None:
    before = await client.list_tools(server.target)
    server.mcp.add_tool(lambda: "new", name="newer")
    after = await client.list_tools(server.target)
    assert {tool.name for tool in after} - {tool.name for tool in before} == {"newer"}


async def test_a_call_that_hangs_costs_its_own_time_alone(client: McpClient, server: OfficialServer) -> None:
    waiting = asyncio.create_task(client.call_tool(server.target, "wait", {}, timeout_s=1))
    await wait_until(lambda: server.calls == ["wait"], description="the tool to wait")
    beside = await client.call_tool(server.target, "add", {"a": 1, "b": 1}, timeout_s=10)
    with pytest.raises(Unavailable, match=r"'tools' \(127.0.0.1:\d+\).*within 1 s.*is not known"):
        await waiting
    after = await client.call_tool(server.target, "add", {"a": 2, "b": 2}, timeout_s=10)
    assert (beside.text, after.text, server.calls) == ("2", "4", ["wait", "add", "add"])


async def test_a_call_was_given_up_because_the_machine_had_stood_still(client: McpClient) -> None:
    """Its answer came when the process woke up, and its time was over by then."""
    async with official_server("json") as server:
        calling = asyncio.create_task(client.call_tool(server.target, "wait", {}, timeout_s=1.0))
        await wait_until(lambda: server.calls == ["wait"], description="the tool to wait")
        threading.Event().wait(2.5)  # nothing goes on in this process
        server.going_on.set()
        assert (await calling).text == "waited"


async def test_a_cancel_was_held_up_by_the_servers_end(client: McpClient, server: OfficialServer) -> None:
    """The package says goodbye to the server first, which may never answer."""
    waiting = asyncio.create_task(client.call_tool(server.target, "wait", {}, timeout_s=60))
    await wait_until(lambda: server.calls == ["wait"], description="the tool to wait")
    began = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - began < 0.1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_comes_back_is_found_again(client: McpClient, kind: Kind) -> None:
    async with official_server(kind) as first:
        await client.list_tools(first.target)
    with pytest.raises(Unavailable, match="does not serve"):
        await client.call_tool(first.target, "add", {"a": 1, "b": 2}, timeout_s=10)
    async with official_server(kind, port=first.port) as second:
        result = await client.call_tool(second.target, "add", {"a": 1, "b": 2}, timeout_s=10)
    assert (result.text, second.calls) == ("3", ["add"])


async def test_a_session_that_a_restarted_server_had_forgotten_cost_a_call(client: McpClient) -> None:
    """The server had done nothing, and was there: the model and the client heard that it does not serve."""
    async with official_server("sessions") as first:
        await client.list_tools(first.target)
    async with official_server("sessions", port=first.port) as second:
        results = await asyncio.gather(
            *(client.call_tool(second.target, "add", {"a": one, "b": 2}, timeout_s=10) for one in range(3))
        )
    assert ([result.text for result in results], second.calls) == (["2", "3", "4"], ["add"] * 3)


async def test_an_idle_connection_is_closed(server: OfficialServer) -> None:
    client = McpClient(LOOPBACK, bounds=Bounds(idle_s=0.05))
    await client.list_tools(server.target)
    await wait_until(lambda: client.connections == 0, description="the connection to close")
    result = await client.call_tool(server.target, "add", {"a": 1, "b": 2}, timeout_s=10)
    assert result.text == "3"
    await client.aclose()
    assert client.connections == 0


async def test_connections_are_bounded_in_number() -> None:
    client = McpClient(LOOPBACK, bounds=Bounds(most_connections=4))
    async with official_server("json") as server:
        others = [replace(server.target, server_id=McpServerId(f"mcp_server-{n}")) for n in range(4)]
        for other in others[:3]:
            await client.list_tools(other)
        waiting = [asyncio.create_task(client.call_tool(other, "wait", {}, timeout_s=20)) for other in others[:2]]
        await wait_until(lambda: server.calls == ["wait", "wait"], description="both tools to wait")
        with pytest.raises(Unavailable, match="2 connections to MCP servers in use"):
            await client.list_tools(others[3])
        server.going_on.set()
        assert [(await one).text for one in waiting] == ["waited", "waited"]
        await client.list_tools(others[3])
    await client.aclose()


async def test_one_project_took_all_connections_of_a_process() -> None:
    """A hundred servers of one project that never answered kept every other project from its own."""
    client = McpClient(LOOPBACK, bounds=Bounds(most_connections=8))
    async with official_server("json") as server:

        def target(project: str, number: int) -> McpTarget:
            named = McpServerId(f"mcp_server-{project}-{number}")
            return replace(server.target, project_id=ProjectId(project), server_id=named)

        waiting: list[asyncio.Task[Any]] = []

        async def taken(project: str) -> int:
            """How many connections this project gets until it is refused one."""
            for number in range(10):
                try:
                    await client.list_tools(target(project, number))
                except Unavailable as error:
                    assert f"{number} of them for this project" in error.message
                    return number
                called = client.call_tool(target(project, number), "wait", {}, timeout_s=60)
                waiting.append(asyncio.create_task(called))
                await wait_until(lambda: len(server.calls) == len(waiting), description="the tool to wait")
            return 10

        assert [await taken(project) for project in ("a", "b", "c", "d", "e")] == [4, 2, 1, 1, 0]
        server.going_on.set()
        assert {(await one).text for one in waiting} == {"waited"}
        assert await client.list_tools(target("e", 0))
        assert client.connections <= 8
    await client.aclose()


async def test_a_private_address_is_refused() -> None:
    client = McpClient(PUBLIC_ONLY)
    async with official_server("json") as server:
        with pytest.raises(InvalidRequest, match="HOLDFAST_REACHABLE_NETWORKS"):
            await client.call_tool(server.target, "add", {"a": 1, "b": 2}, timeout_s=10)
        assert server.methods == []
    await client.aclose()


async def test_a_closed_client_asks_nobody(client: McpClient, server: OfficialServer) -> None:
    await client.list_tools(server.target)
    await client.aclose()
    with pytest.raises(Unavailable, match="ending"):
        await client.list_tools(server.target)


async def test_a_process_gets_none_of_ours(client: McpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the worker's were in the surroundings of everything that it started."""
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-operator")
    result = await client.call_tool(process(CITY="Bern"), "surroundings", {}, timeout_s=30)
    found = json.loads(result.text)
    assert {"CITY", "PATH"} <= set(found["variables"])
    assert "key-of-the-operator" not in result.text
    assert "HOME" not in found["variables"]
    assert found["group"] != os.getpgid(0)


async def test_a_process_ends_with_all_that_it_started(client: McpClient, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    await client.list_tools(process(str(numbers)))
    pids = [int(number) for number in numbers.read_text().split()]
    assert all(map(_is_alive, pids))
    await client.aclose()
    await wait_until(lambda: not any(map(_is_alive, pids)), description="both processes to end")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_process_that_ends_costs_one_call(client: McpClient) -> None:
    with pytest.raises(Unavailable, match=r"ended.*is not known"):
        await client.call_tool(process(), "end", {}, timeout_s=30)
    result = await client.call_tool(process(), "surroundings", {}, timeout_s=30)
    assert "PATH" in result.text


async def test_a_line_without_an_end_was_read_for_ever(client: McpClient) -> None:
    with pytest.raises(Unavailable, match=r"a line of more than \d+ bytes.*was not called"):
        await client.call_tool(process("flood"), "any", {}, timeout_s=30)


async def test_a_command_that_is_not_listed_is_not_started(client: McpClient) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_MCP_COMMANDS"):
        await client.list_tools(replace(process(), command="/bin/sh"))
    with pytest.raises(InvalidRequest, match="LD_PRELOAD"):
        await client.list_tools(process(LD_PRELOAD="/tmp/evil.so"))
    with pytest.raises(Unavailable, match="No such file"):
        await client.list_tools(replace(process(), command="/no/such/command", args=[]))
