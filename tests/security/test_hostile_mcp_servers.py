"""An MCP server that is somebody's trap costs the call that was made of it, and nothing else."""

import asyncio
import json
import resource
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace

from shared.domain.errors import HoldfastError, InvalidRequest, McpSignInNeeded, Unavailable
from shared.mcp.client import McpClient
from shared.mcp.failures import BOUNDS, Bounds
from shared.network.checked_http import NetworkRules
from tests.kit.mcp.first_version import FirstVersion
from tests.kit.mcp.hostile import (
    DISCOVERED,
    TOKEN,
    Act,
    Asked,
    HostileServer,
    answer,
    begin_events,
    called,
    hostile_server,
    listed,
    send,
    tool,
)
from tests.kit.stream_server import stream_server
from tests.kit.wait_until import wait_until

LOOPBACK = NetworkRules.of("127.0.0.0/8", "")
MOST_KIB = 64 << 10
SAYS_WHERE = r"^The MCP server 'hostile' \(127\.0\.0\.1:\d+\) does not serve: "


@pytest.fixture
async def client() -> AsyncGenerator[McpClient]:
    made = McpClient(LOOPBACK, bounds=Bounds(close_s=0.5))
    yield made
    began = time.monotonic()
    await made.aclose()
    assert time.monotonic() - began < 3, "closing is bounded, whatever the server does"


async def unknown(asked: Asked, writer: asyncio.StreamWriter) -> None:
    error = {"code": -32601, "message": "Method not found"}
    await send(writer, json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode())


async def never(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def never_after_its_head(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin_events(writer)
    await asyncio.Event().wait()


async def drop(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """Closes the connection after it has read the message."""


async def garbage(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b'{"jsonrpc": "2.0", "id": ')


async def broken_text(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xff"}]}}' % asked.id)


async def no_http(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"I am no web server\r\n\r\n")
    await writer.drain()


async def garbage_event(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin_events(writer)
    writer.write(b"event: message\ndata: {nothing\n\n")
    await writer.drain()


async def no_event(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin_events(writer)


async def no_result(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await answer(asked, writer, {"content": "none"})


async def forged_id(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await answer(asked, writer, called("of another call"), id_=asked.id + 1)


async def compressed(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"x", Content_Encoding="gzip")


async def begin_session(asked: Asked, writer: asyncio.StreamWriter) -> None:
    about = {"name": "old", "version": "1"}
    result: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": asked.id, "result": result}
    await send(writer, json.dumps(said).encode(), Mcp_Session_Id="1")


async def accepted(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"", status="202 Accepted")


async def another_kind(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"<html>", kind="text/html")


async def much_json(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n")
    for _ in range(100):
        writer.write(b'"' + b"x" * 999_999)
        await writer.drain()


async def much_in_one_event(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin_events(writer)
    for _ in range(100):
        writer.write(b"data: " + b"x" * 1_000_000)
        await writer.drain()


async def many_events(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    await begin_events(writer)
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 10_000}}
    for _ in range(10_000):
        writer.write(b"data: " + json.dumps(note).encode() + b"\n\n")
        await writer.drain()


SPOILT: dict[str, Act] = {
    act.__name__: act
    for act in (
        *(drop, garbage, broken_text, no_http, garbage_event, no_event, no_result, forged_id, compressed, accepted),
        *(another_kind, much_json, much_in_one_event, many_events),
    )
}


@pytest.mark.parametrize("act", SPOILT)
async def test_a_spoilt_answer_costs_its_call(client: McpClient, act: str) -> None:
    """It is sent once, fails within its time with a sentence that can be stored, and the next call is made."""
    async with hostile_server(tools_call=SPOILT[act]) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(HoldfastError, match=SAYS_WHERE) as failed:
            await client.call_tool(server.target, "act", {}, timeout_s=20)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB
        assert server.count("tools/call") == 1
        assert failed.value.message.encode()
        assert not [secret for secret in (TOKEN, "in-the-address") if secret in failed.value.message]
        del server.acts["tools/call"]
        result = await client.call_tool(server.target, "act", {}, timeout_s=20)
        assert (result.text, server.count("tools/call")) == ("done", 2)


@pytest.mark.parametrize("act", [never, never_after_its_head])
async def test_a_server_that_never_answers_costs_one_calls_time(client: McpClient, act: Act) -> None:
    async with hostile_server(tools_call=act) as server:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"not answered within \d+(\.\d+)? s.*is not known"):
            await client.call_tool(server.target, "act", {}, timeout_s=0.5)
        assert time.monotonic() - began < 1.5
        assert server.count("tools/call") == 1


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_a_server_that_never_answers_holds_up_no_cancel(client: McpClient, method: str) -> None:
    async with hostile_server(**{method.replace("/", "_"): never}) as server:
        asking = asyncio.create_task(client.list_tools(server.target))
        await wait_until(lambda: server.count(method) == 1, description="the server to be asked")
        began = time.monotonic()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert time.monotonic() - began < 0.1


async def test_a_silent_server_costs_a_call_its_own_time_also_while_connecting(client: McpClient) -> None:
    async with hostile_server(server_discover=never) as server:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"not ready within 0\.5 s\. The tool was not called"):
            await client.call_tool(server.target, "act", {}, timeout_s=0.5)
        assert time.monotonic() - began < 1.5
        assert server.count("tools/call") == 0


async def test_a_call_that_is_dropped_leaves_those_beside_it(client: McpClient) -> None:
    """One request's error ended the connection of all."""
    go_on = asyncio.Event()

    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.params["name"] == "slow":
            await go_on.wait()
            await answer(asked, writer, called("slow and whole"))

    async with hostile_server(tools_call=act) as server:
        slow = asyncio.create_task(client.call_tool(server.target, "slow", {}, timeout_s=20))
        await wait_until(lambda: server.count("tools/call") == 1, description="the slow call")
        with pytest.raises(Unavailable, match="is not known"):
            await client.call_tool(server.target, "dropped", {}, timeout_s=20)
        go_on.set()
        assert (await slow).text == "slow and whole"


async def test_the_second_of_two_answers_is_nobodys(client: McpClient) -> None:
    async def twice(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin_events(writer)
        for text in ("first", "second"):
            said = {"jsonrpc": "2.0", "id": asked.id, "result": called(text)}
            writer.write(b"data: " + json.dumps(said).encode() + b"\n\n")
        await writer.drain()

    async with hostile_server(tools_call=twice) as server:
        results = [await client.call_tool(server.target, "act", {}, timeout_s=20) for _ in range(3)]
    assert [result.text for result in results] == ["first"] * 3


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
async def test_a_call_is_not_sent_again_where_the_server_points(client: McpClient, status: str) -> None:
    """Neither to a private address, nor to another path of the same server, which has read the call already."""
    asked_inside: list[bytes] = []

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_inside.append(await reader.read(1000))
        writer.close()

    async with stream_server(inside) as port, hostile_server() as server:
        for place in (f"http://127.0.0.1:{port}/admin?key=1", "/elsewhere"):

            async def redirect(_asked: Asked, writer: asyncio.StreamWriter, place: str = place) -> None:
                await send(writer, b"", status=status, Location=place)

            server.acts["tools/call"] = redirect
            with pytest.raises(InvalidRequest, match="redirects to"):
                await client.call_tool(server.target, "act", {}, timeout_s=20)
        assert (asked_inside, server.count("tools/call")) == ([], 2)


async def test_an_address_inside_that_a_redirect_names_is_refused() -> None:
    client = McpClient(NetworkRules.of("127.0.0.1/32", ""))

    async def redirect(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"", status="307 Temporary Redirect", Location="http://169.254.169.254/latest/")

    async with hostile_server(server_discover=redirect, initialize=redirect) as server:
        with pytest.raises(HoldfastError, match="redirects to"):
            await client.list_tools(server.target)
    await client.aclose()


async def test_an_endpoint_that_has_moved_is_followed_when_the_connection_is_made(client: McpClient) -> None:
    """Frameworks add a slash. The call itself then goes to the right place at once."""

    async def moved(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.startswith("/mcp?"):
            await send(writer, b"", status="307 Temporary Redirect", Location="/mcp/")
        else:
            await answer(asked, writer, DISCOVERED)

    async with hostile_server(server_discover=moved) as server:
        await client.call_tool(server.target, "act", {}, timeout_s=20)
    assert [one.path for one in server.asked if one.message.get("method") == "tools/call"] == ["/mcp/"]


@pytest.mark.parametrize(
    ("status", "said"),
    [("401 Unauthorized", "credentials"), ("403 Forbidden", "credentials"), ("404 Not Found", "nothing at its URL")],
)
async def test_a_refusal_says_what_to_correct(client: McpClient, status: str, said: str) -> None:
    async def refuse(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"no", status=status, kind="text/plain")

    async with hostile_server(server_discover=refuse, initialize=refuse) as server:
        with pytest.raises((InvalidRequest, McpSignInNeeded), match=f"HTTP {status[:3]}.*{said}.*was not called"):
            await client.call_tool(server.target, "act", {}, timeout_s=20)


async def test_what_a_server_repeats_of_its_token_is_removed(client: McpClient) -> None:
    async def tell(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, called(f"you sent {asked.headers['authorization']}"))

    async def complain(asked: Asked, writer: asyncio.StreamWriter) -> None:
        error = {"code": -32603, "message": f"bad: {asked.headers['authorization']}"}
        await send(writer, json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": error}).encode())

    async with hostile_server(tools_call=tell) as server:
        result = await client.call_tool(server.target, "act", {}, timeout_s=20)
        server.acts["tools/call"] = complain
        with pytest.raises(InvalidRequest) as failed:
            await client.call_tool(server.target, "act", {}, timeout_s=20)
    assert result.text == "you sent [secret Authorization]"
    assert TOKEN not in failed.value.message


async def test_a_text_that_no_database_stores_is_mended(client: McpClient) -> None:
    async def odd(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, called("a\0b"))

    async with hostile_server(tools_call=odd) as server:
        result = await client.call_tool(server.target, "act", {}, timeout_s=20)
    assert result.text == "a\N{REPLACEMENT CHARACTER}b"


async def test_a_result_is_cut(client: McpClient) -> None:
    async def long(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, called("x" * 1_500_000))

    async with hostile_server(tools_call=long) as server:
        result = await client.call_tool(server.target, "act", {}, timeout_s=20)
    assert 1_000_000 < len(result.text) < 1_000_200
    assert "left out" in result.text


async def test_input_that_a_server_asks_for_is_not_given(client: McpClient) -> None:
    """The package would ask again and again, with the call's arguments."""

    async def ask(asked: Asked, writer: asyncio.StreamWriter) -> None:
        wanted = {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "?", "url": "http://x/", "elicitationId": "1"},
        }
        await answer(
            asked, writer, {"resultType": "input_required", "inputRequests": {"a": wanted}, "requestState": "s"}
        )

    async with hostile_server(tools_call=ask) as server:
        with pytest.raises(InvalidRequest, match="input"):
            await client.call_tool(server.target, "act", {}, timeout_s=20)
        assert server.count("tools/call") == 1


async def test_a_call_that_lacks_headers_is_not_made_again(client: McpClient) -> None:
    """The package reads the tools anew, and sends the call a second time."""

    async def refuse(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "mcp-param-region" in asked.headers:
            await answer(asked, writer, called(asked.headers["mcp-param-region"]))
            return
        error = {"code": -32020, "message": "Mcp-Param-Region is missing"}
        said = {"jsonrpc": "2.0", "id": asked.id, "error": error}
        await send(writer, json.dumps(said).encode(), status="400 Bad Request")

    async def with_header(asked: Asked, writer: asyncio.StreamWriter) -> None:
        region = {"region": {"type": "string", "x-mcp-header": "Region"}}
        await answer(asked, writer, listed([tool("act", properties=region)]))

    async with hostile_server(tools_call=refuse, tools_list=with_header) as server:
        with pytest.raises(InvalidRequest, match="call the tool again"):
            await client.call_tool(server.target, "act", {"region": "north"}, timeout_s=20)
        assert server.count("tools/call") == 1
        result = await client.call_tool(server.target, "act", {"region": "north"}, timeout_s=20)
    assert result.text == "north"


async def test_an_endless_list_of_tools_ends(client: McpClient) -> None:
    async def pages(asked: Asked, writer: asyncio.StreamWriter) -> None:
        number = int(asked.params.get("cursor", "0"))
        await answer(asked, writer, listed([tool(f"act_{number}")], cursor=str(number + 1)))

    async def circle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, listed([tool("act")], cursor="again"))

    async def many(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, listed([tool(f"act_{number}") for number in range(1001)]))

    for act, said in ((pages, "more than 50 pages"), (circle, "no end"), (many, "more than 1000 tools")):
        async with hostile_server(tools_list=act) as server:
            with pytest.raises(InvalidRequest, match=said):
                await client.list_tools(server.target)
            assert server.count("tools/list") <= 50


async def test_tools_that_cannot_be_used_come_last_with_their_reasons(client: McpClient) -> None:
    deep: dict[str, object] = {}
    for _ in range(60):
        deep = {"properties": {"a": deep}}
    wide = {f"a{number}": {"type": "string"} for number in range(5_000)}
    bad = [tool("deep", properties=deep), tool("wide", properties=wide), tool("x" * 300), tool(""), tool("a\0b")]
    tools = [*bad, tool("good", properties=deep), tool("good"), tool("good")]

    async def several(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, listed(tools))

    async with hostile_server(tools_list=several) as server:
        good, *unusable = await client.list_tools(server.target)
        assert (good.name, good.problem) == ("good", "")
        assert [one.name for one in unusable] == ["deep", "wide", "x" * 200, "", "a\N{REPLACEMENT CHARACTER}b", "good"]
        said = ["nested deeper", "more than", "longer than 200", "no name", "cannot be stored", "nested deeper"]
        assert [words in one.problem for words, one in zip(said, unusable, strict=True)] == [True] * 6
        assert not any(one.input_schema for one in unusable)


async def test_tools_that_change_in_the_middle_of_a_call_are_read_anew(client: McpClient) -> None:
    """The server says that a list may be kept for a day."""

    async def change(asked: Asked, writer: asyncio.StreamWriter) -> None:
        server.acts["tools/list"] = newer
        note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        said = {"jsonrpc": "2.0", "id": asked.id, "result": called("changed")}
        await begin_events(writer)
        for one in (note, said):
            writer.write(b"data: " + json.dumps(one).encode() + b"\n\n")
        await writer.drain()

    async def newer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, listed([tool("newer")]))

    async with hostile_server(tools_call=change) as server:
        before = await client.list_tools(server.target)
        result = await client.call_tool(server.target, "act", {}, timeout_s=20)
        after = await client.list_tools(server.target)
    assert ([one.name for one in before], result.text, [one.name for one in after]) == (["act"], "changed", ["newer"])


async def test_a_server_of_the_older_kind_that_hangs_on_its_end_holds_up_nothing() -> None:
    """The package says goodbye to a session, and waits for the answer."""
    client = McpClient(LOOPBACK, bounds=Bounds(close_s=0.5))

    acts: dict[str, Act] = {
        "server/discover": unknown,
        "initialize": begin_session,
        "notifications/initialized": accepted,
        "notifications/cancelled": never,
        "tools/call": never,
        "DELETE": never,
    }
    async with hostile_server() as server:
        server.acts = acts
        asking = asyncio.create_task(client.call_tool(server.target, "act", {}, timeout_s=20))
        await wait_until(lambda: server.count("tools/call") == 1, description="the call")
        began = time.monotonic()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert time.monotonic() - began < 0.1
        await _answered_beside(client, server)
        began = time.monotonic()
        await client.aclose()
        assert time.monotonic() - began < 3
    assert client.connections == 0


async def _answered_beside(client: McpClient, server: HostileServer) -> None:
    """Another call is made at once, by a connection of its own."""

    async def done(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answer(asked, writer, {"content": [{"type": "text", "text": "done"}]})

    server.acts["tools/call"] = done
    result = await client.call_tool(server.target, "act", {}, timeout_s=5)
    assert result.text == "done"


@pytest.mark.parametrize("broken_by", ["status", "drop", "long event", "end of the channel", "never"])
async def test_a_server_of_the_first_version_that_breaks_costs_one_call(client: McpClient, broken_by: str) -> None:
    """An error of a message left its call waiting until its time was over, because answers come by another way."""
    old = FirstVersion()

    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.params["name"] != "break":
            await old.say(asked, writer, {"content": [{"type": "text", "text": "done"}]})
        elif broken_by == "status":
            await send(writer, b"no", status="500 Internal Server Error", kind="text/plain")
        elif broken_by == "long event":
            await old.say(asked, writer, called("x" * 1_500_000))
        elif broken_by == "end of the channel":
            await send(writer, b"", status="202 Accepted")
            old.channels[-1].close()
        elif broken_by == "never":
            await asyncio.Event().wait()

    async with hostile_server() as server:
        server.acts = old.acts(act)
        target = replace(server.target, transport="sse")
        began = time.monotonic()
        with pytest.raises(Unavailable, match="is not known"):
            await client.call_tool(target, "break", {}, timeout_s=1 if broken_by == "never" else 20)
        assert time.monotonic() - began < 5, "it does not wait for its time to be over"
        result = await client.call_tool(target, "act", {}, timeout_s=20)
        assert (result.text, server.count("tools/call"), len(old.channels)) == ("done", 2, 2)


async def test_a_server_that_forgets_every_session_is_asked_twice_and_no_more(client: McpClient) -> None:
    async def forget(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"no such session", status="404 Not Found", kind="text/plain")

    async with hostile_server(server_discover=unknown, initialize=begin_session, tools_call=forget) as server:
        server.acts["notifications/initialized"] = accepted
        with pytest.raises(Unavailable, match=r"forgotten.*The tool was not called"):
            await client.call_tool(server.target, "act", {}, timeout_s=20)
        assert server.count("tools/call") == 2


async def test_a_stream_of_answers_that_had_ended_cost_the_next_call(client: McpClient) -> None:
    """Nobody noticed that it had ended: the next message was sent, and could not be answered."""
    old = FirstVersion()

    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await old.say(asked, writer, {"content": [{"type": "text", "text": "done"}]})

    async with hostile_server() as server:
        server.acts = old.acts(act)
        target = replace(server.target, transport="sse")
        await client.call_tool(target, "act", {}, timeout_s=20)
        old.channels[-1].close()
        noticed = "the end of the stream to be noticed, long before the connection is closed for being idle"
        await wait_until(lambda: client.connections == 0, description=noticed, timeout=BOUNDS.idle_s / 3)
        result = await client.call_tool(target, "act", {}, timeout_s=20)
        assert (result.text, server.count("tools/call")) == ("done", 2)


async def test_a_server_of_the_first_version_sends_messages_to_nobody_else(client: McpClient) -> None:
    asked_inside: list[bytes] = []

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_inside.append(await reader.read(1000))
        writer.close()

    async with stream_server(inside) as port:

        async def channel(_asked: Asked, writer: asyncio.StreamWriter) -> None:
            await begin_events(writer)
            writer.write(b"event: endpoint\ndata: http://127.0.0.1:%d/messages\n\n" % port)
            await asyncio.Event().wait()

        async with hostile_server(GET=channel) as server:
            target = replace(server.target, transport="sse")
            with pytest.raises(Unavailable, match="was not called"):
                await client.call_tool(target, "act", {}, timeout_s=1)
    assert asked_inside == []
