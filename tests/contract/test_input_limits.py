"""What a request brings to stay is bounded: messages and sources of tools, each refused by name."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from shared.sql.engine import Database
from tests.kit.agent_files import a_file, as_upload, custom_tool
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database

MOST = 1000
LONG = "x" * (MOST + 1)
SOURCE = 'def look() -> str:\n    """Looks."""\n    return "{}"\n'
LONG_SOURCE = SOURCE.format(LONG)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database, max_message_chars=MOST, max_tool_source_chars=MOST) as http:
        yield http


@pytest.fixture
async def agent(http: httpx.AsyncClient) -> str:
    return (await http.post("/v1/agents", json={"model": "builtin/echo", "include_base_tools": False})).json()["id"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"input": LONG}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "short"}, {"role": "user", "content": LONG}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 600}] * 2}]}, "messages[0]"),
        ({"messages": [{"type": "tool_return", "tool_returns": [{"tool_return": LONG}]}]}, "messages[0]"),
    ],
)
@pytest.mark.parametrize("path", ["messages", "messages/stream", "messages/async"])
async def test_a_message_could_be_as_long_as_a_body(
    http: httpx.AsyncClient, agent: str, body: dict[str, Any], place: str, path: str
) -> None:
    refused = await http.post(f"/v1/agents/{agent}/{path}", json=body)
    assert refused.status_code == 400
    assert place in refused.text
    assert "1000 are allowed (HOLDFAST_MAX_MESSAGE_CHARS)" in refused.text
    assert (await http.get("/v1/runs")).json() == []


async def test_every_way_in_has_the_limit(http: httpx.AsyncClient, agent: str) -> None:
    conversation = (await http.post("/v1/conversations", params={"agent_id": agent})).json()["id"]
    first = {"model": "builtin/echo", "initial_message_sequence": [{"role": "user", "content": LONG}]}
    chat = {"model": agent, "messages": [{"role": "user", "content": LONG}]}
    for path, body, place in (
        (f"conversations/{conversation}/messages", {"input": LONG}, "messages[0]"),
        ("agents", first, "initial_message_sequence[0]"),
        ("chat/completions", chat, "messages[0]"),
    ):
        refused = await http.post(f"/v1/{path}", json=body)
        assert (refused.status_code, "HOLDFAST_MAX_MESSAGE_CHARS" in refused.text) == (400, True), path
        assert place in refused.text


async def test_an_output_of_a_function_could_be_as_long_as_a_body(http: httpx.AsyncClient) -> None:
    conversation = (await http.post("/openai/v1/conversations", json={})).json()["id"]
    items = f"/openai/v1/conversations/{conversation}/items"
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    assert (await http.post(items, json={"items": [call]})).status_code == 200
    output = {"type": "function_call_output", "call_id": "call_1", "output": LONG}
    verdict = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": LONG}
    for path, body in (
        (items, {"items": [output]}),
        ("/openai/v1/responses", {"previous_response_id": "resp_1", "input": [output]}),
        ("/openai/v1/responses", {"previous_response_id": "resp_1", "input": [verdict]}),
    ):
        refused = await http.post(path, json=body)
        assert (refused.status_code, "HOLDFAST_MAX_MESSAGE_CHARS" in refused.text) == (400, True), refused.text


async def test_the_refusal_of_a_long_input_named_messages_that_the_request_had_not(
    http: httpx.AsyncClient, agent: str
) -> None:
    long = {"role": "user", "content": LONG}
    chat = [{"role": "system", "content": "short"}, {"role": "user", "content": "short"}, long]
    conversation = (await http.post("/openai/v1/conversations", json={})).json()["id"]
    for path, body, place in (
        ("/openai/v1/responses", {"model": agent, "input": LONG}, "input"),
        ("/openai/v1/responses", {"model": agent, "input": [long]}, "input"),
        (f"/openai/v1/conversations/{conversation}/items", {"items": [long]}, "items"),
        ("/openai/v1/chat/completions", {"model": agent, "messages": chat}, "messages[2]"),
    ):
        error = (await http.post(path, json=body)).json()["error"]
        assert error["param"] == place
        assert error["message"].startswith(f"{place} has {MOST + 1} characters")


async def test_a_message_at_the_limit_and_an_image_beyond_it_are_taken(http: httpx.AsyncClient, agent: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa" * MOST}}
    content = [{"type": "text", "text": "x" * (MOST - 10)}, image]
    for body in ({"input": "x" * MOST}, {"messages": [{"role": "user", "content": content}]}):
        assert (await http.post(f"/v1/agents/{agent}/messages/async", json=body)).status_code == 200


async def test_the_limit_of_a_source_was_no_setting(http: httpx.AsyncClient) -> None:
    made = (await http.put("/v1/tools", json={"source_code": SOURCE.format("seen")})).json()["id"]
    answers = [
        await http.put("/v1/tools", json={"source_code": LONG_SOURCE}),
        await http.post("/v1/tools", json={"source_code": LONG_SOURCE}),
        await http.patch(f"/v1/tools/{made}", json={"source_code": LONG_SOURCE}),
    ]
    assert [answer.status_code for answer in answers] == [400] * 3
    assert all("source_code has 1" in answer.text for answer in answers)
    assert all("1000 are allowed (HOLDFAST_MAX_TOOL_SOURCE_CHARS)" in answer.text for answer in answers)
    assert (await http.get(f"/v1/tools/{made}")).json()["source_code"] == SOURCE.format("seen")


async def test_an_agent_file_brought_sources_of_any_length(http: httpx.AsyncClient) -> None:
    tool = custom_tool(source_code=SOURCE.format(LONG))
    refused = await http.post("/v1/agents/import", files=as_upload(a_file(tools=[tool])))
    assert refused.status_code == 400, refused.text
    assert "(HOLDFAST_MAX_TOOL_SOURCE_CHARS)" in refused.text
    assert (await http.get("/v1/agents")).json() == []
