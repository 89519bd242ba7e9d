"""Agents as tools of other programs: the official package's client lists them, calls them, and hears how it goes."""

import asyncio
from typing import Any

import pytest
from mcp import MCPError

from tests.kit.mcp.calling_client import MODERN, Mode, calling_client, said
from tests.kit.model_server import Call, Failure, Turn
from tests.kit.product import Product
from tests.kit.tools import ROLL_DICE
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

MODES: tuple[Mode, ...] = ("2026-07-28", "auto", "legacy")


async def only_tool(client: Any) -> str:
    [tool] = (await client.list_tools()).tools
    return tool.name


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_is_a_run_and_its_result_the_agents_last_words(product: Product, mode: Mode) -> None:
    product.models.say("At seven.")
    agent = await product.agent(description="Knows when buses leave.")

    async with calling_client(product.base_url, product.key, mode=mode) as client:
        [tool] = (await client.list_tools()).tools
        result = await client.call_tool(tool.name, {"message": "When does the bus leave?"})

    assert (tool.title, tool.description) == (agent.name, "Knows when buses leave.")
    assert said(result) == "At seven."
    assert not result.is_error
    told: Any = result.structured_content
    assert (told["text"], told["status"], told["agent_id"]) == ("At seven.", "completed", agent.id)
    run = await product.run(told["run_id"])
    assert (run["status"], run["agent_id"], run["background"]) == ("completed", agent.id, True)
    assert (run["metadata"]["dialect"], run["metadata"]["run_type"]) == ("mcp", "mcp_tool_call")
    assert (result.meta or {})["holdfast/runId"] == run["id"]


async def test_what_was_said_before_a_tool_is_not_the_result(product: Product) -> None:
    dice = Turn(text="Let me see.", calls=[Call("roll_dice", {"num_sides": 6})])
    product.models.play(dice, Turn(text="It is a six."))
    await product.agent(tools=[await product.tool(ROLL_DICE)])
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    async with calling_client(product.base_url, product.key) as client:
        result = await client.call_tool(await only_tool(client), {"message": "Roll"}, progress_callback=hear)

    assert said(result) == "It is a six."
    numbers = [number for number, _ in heard]
    assert numbers == sorted(set(numbers))
    messages = [message for _, message in heard]
    assert messages[0] == f"run {(result.structured_content or {})['run_id']} is accepted"
    assert messages[1:] == ["says: Let me see.", "calls roll_dice", "roll_dice has ended", "says: It is a six."]


async def test_a_client_without_a_progress_token_hears_nothing_before_the_result(product: Product) -> None:
    product.models.play(Turn(text="Yes."), Turn(text="Yes."))
    await product.agent()
    async with calling_client(product.base_url, product.key) as client:
        name = await only_tool(client)
    meta: Any = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": name, "arguments": {"message": "Hi"}, "_meta": meta}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name}
    body = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}
    accepts = ("application/json, text/event-stream", "application/json")
    streamed, whole = [
        await product.http.post("/mcp", json=body, headers=headers | {"Accept": accept}) for accept in accepts
    ]

    [frame] = [line for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert frame.startswith('data: {"jsonrpc":"2.0","id":"a","result":')
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["result"]["structuredContent"]["text"] == "Yes."


async def test_a_run_that_fails_says_why_to_the_calling_model(product: Product) -> None:
    product.models.play(Turn(failure=Failure("bad_request")))
    agent = await product.agent()

    async with calling_client(product.base_url, product.key) as client:
        result = await client.call_tool(await only_tool(client), {"message": "Hi"})

    assert result.is_error
    told: Any = result.structured_content
    assert (told["status"], told["agent_id"], told["text"]) == ("failed", agent.id, said(result))
    assert (await product.run(told["run_id"]))["status"] == "failed"
    assert said(result)


async def test_a_call_goes_on_when_its_client_hangs_up(product: Product) -> None:
    product.models.say("one two three", silent_after=1)
    agent = await product.agent()

    async with calling_client(product.base_url, product.key) as client:
        calling = asyncio.create_task(client.call_tool(await only_tool(client), {"message": "Count"}), name="call")
        run = await wait_until(lambda: active(product, agent.id), description="the run to begin")
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    assert (await product.run(run["id"]))["status"] == "running"
    await product.http.post(f"/v1/runs/{run['id']}/cancel")


@pytest.mark.parametrize(("mode", "status"), [("2026-07-28", "cancelled"), ("legacy", "running")])
async def test_a_call_ends_with_its_connection_where_its_address_says_so(
    product: Product, mode: Mode, status: str
) -> None:
    """And where the protocol does: before 2026-07-28 a closed connection means nothing."""
    product.models.say("one two three", silent_after=1)
    agent = await product.agent()
    async with calling_client(product.base_url, product.key) as client:
        name = await only_tool(client)
    meta: Any = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name}
    params: Any = {"name": name, "arguments": {"message": "Count"}} | ({"_meta": meta} if mode == MODERN else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = modern if mode == MODERN else {}
    async with product.http.stream("POST", "/mcp?hang_up=cancel", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        run = await wait_until(lambda: active(product, agent.id), description="the run to begin")
    quotas = product.services.quotas
    await wait_until(lambda: not quotas.open_streams, description="the stream to end")

    if status == "cancelled":
        assert (await product.ended(run["id"]))["status"] == "cancelled"
    else:
        assert (await product.run(run["id"]))["status"] == "running"
        await product.http.post(f"/v1/runs/{run['id']}/cancel")


async def active(product: Product, agent_id: str) -> dict[str, Any] | None:
    runs = (await product.http.get("/v1/runs", params={"agent_id": agent_id})).json()
    return next((run for run in runs if run["status"] == "running"), None)


async def test_a_client_of_the_handshake_cancels_its_call_by_a_notification(product: Product) -> None:
    """Its requests are numbered from 0, as every other client's: the name from the handshake tells whose they are."""
    product.models.say("one two three", silent_after=1)
    agent = await product.agent()

    async with (
        calling_client(product.base_url, product.key, mode="legacy") as client,
        calling_client(product.base_url, product.key, mode="legacy") as other,
    ):
        name = await only_tool(client)
        await only_tool(other)
        going_on = asyncio.create_task(other.call_tool(name, {"message": "Count"}), name="call of another")
        first = await wait_until(lambda: active(product, agent.id), description="the run to begin")
        product.models.say("four five", silent_after=1)
        arguments = {"message": "Count", "conversation": "new"}
        calling = asyncio.create_task(client.call_tool(name, arguments), name="call")
        second = await wait_until(lambda: another(product, agent.id, first["id"]), description="the second run")
        calling.cancel()
        ended = await product.ended(second["id"])
        assert (await product.run(first["id"]))["status"] == "running"
        await product.http.post(f"/v1/runs/{first['id']}/cancel")
        result = await going_on

    assert ended["status"] == "cancelled"
    assert (result.is_error, (result.structured_content or {})["status"]) == (True, "cancelled")


async def another(product: Product, agent_id: str, first: str) -> dict[str, Any] | None:
    runs = (await product.http.get("/v1/runs", params={"agent_id": agent_id})).json()
    return next((run for run in runs if run["status"] == "running" and run["id"] != first), None)


async def test_a_call_that_is_sent_again_under_its_name_is_one_run(product: Product) -> None:
    product.models.say("Done.")
    agent = await product.agent()
    meta: Any = {"holdfast/idempotencyKey": "order-7"}

    async with calling_client(product.base_url, product.key) as client:
        name = await only_tool(client)
        results = [await client.call_tool(name, {"message": "Buy"}, meta=meta) for _ in range(2)]
        other = await client.call_tool(name, {"message": "Sell"}, meta=meta)
        bad: Any = {"holdfast/idempotencyKey": 7}
        wrong = await client.call_tool(name, {"message": "Buy"}, meta=bad)

    [run] = (await product.http.get("/v1/runs", params={"agent_id": agent.id})).json()
    assert [(result.structured_content or {})["run_id"] for result in results] == [run["id"]] * 2
    assert other.is_error
    assert "order-7" in said(other)
    assert wrong.is_error
    assert "must be a text" in said(wrong)


async def test_a_conversation_is_begun_and_goes_on_by_its_id(product: Product) -> None:
    agent = await product.agent()
    arguments: dict[str, Any] = {"message": "My name is Ann.", "conversation": "new"}
    product.models.say("Hello, Ann.")
    async with calling_client(product.base_url, product.key) as client:
        name = await only_tool(client)
        begun: Any = (await client.call_tool(name, arguments)).structured_content
        product.models.say("Ann.")
        went_on = await client.call_tool(name, {"message": "My name?", "conversation": begun["conversation"]})
        product.models.say("Who?")
        own = await client.call_tool(name, {"message": "My name?"})
        wrong = await client.call_tool(name, {"message": "Hi", "conversation": "yesterday"})
        empty = await client.call_tool(name, {"message": " "})
        more = await client.call_tool(name, {"message": "Hi", "mood": "good"})

    assert said(went_on) == "Ann."
    assert "conversation" not in (own.structured_content or {})
    assert "Hello, Ann." in str(product.models.requests[-2].body)
    assert "Hello, Ann." not in str(product.models.requests[-1].body)
    assert [one.is_error for one in (wrong, empty, more)] == [True] * 3
    assert "conversation must be 'new'" in said(wrong)
    assert "message is empty" in said(empty)
    assert "mood" in said(more)
    listed = (await product.http.get("/v1/conversations", params={"agent_id": agent.id})).json()
    assert [one["id"] for one in listed] == [begun["conversation"]]


async def test_a_tool_is_found_after_its_agent_was_renamed(product: Product) -> None:
    product.models.say("Yes.")
    agent = await product.agent()
    async with calling_client(product.base_url, product.key) as client:
        before = await only_tool(client)
        await product.client.agents.update(agent.id, name="Käse & Wein!")
        result = await client.call_tool(before, {"message": "Hi"})
    async with calling_client(product.base_url, product.key) as client:
        after = await only_tool(client)

    assert said(result) == "Yes."
    assert after == f"K_se_Wein_{agent.id[6:14]}{agent.id[15:19]}"


async def test_the_list_of_tools_goes_on_page_by_page(product: Product) -> None:
    made = [(await product.agent()).name for _ in range(3)]
    hidden = {"name": "hidden", "model": "builtin/echo", "hidden": True}
    assert (await product.http.post("/v1/agents", json=hidden)).is_success
    async with calling_client(product.base_url, product.key) as client:
        listed = await client.list_tools()
        [first, *_] = (await product.http.get("/v1/agents", params={"order": "asc"})).json()
        rest = await client.list_tools(cursor=first["id"])
        with pytest.raises(MCPError, match="no cursor"):
            await client.list_tools(cursor="of-somebody")

    assert [tool.title for tool in listed.tools] == made
    assert [tool.title for tool in rest.tools] == made[1:]
    assert listed.next_cursor is None
    assert len({tool.name for tool in listed.tools}) == 3


async def test_a_ping_ended_clients_whose_empty_result_has_no_other_field(product: Product) -> None:
    """The official package for Node.js checks it strictly, of each version but the newest."""
    for version in ("2024-11-05", "2025-11-25"):
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = await product.http.post("/mcp", json=ping, headers=headers)
        assert set(answer.json()["result"]) == {"_meta"}, version


async def test_an_unknown_tool_is_an_error_of_the_protocol(product: Product) -> None:
    async with calling_client(product.base_url, product.key) as client:
        for name in ("nobody", "nobody_0123456789ab", "x" * 300):
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool(name, {"message": "Hi"})
