"""What comes to the address of the Model Context Protocol and is no request of it: each gets a clear refusal."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import mcp_types
import pytest
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from api.mcp import messages
from tests.kit.product.in_process import api_client
from tests.kit.services.databases import open_database

MODERN = "2026-07-28"
SMALL = 20_000


def meta(version: Any = MODERN, **more: Any) -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        **more,
    }


def request(method: str = "ping", request_id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def said_in_headers(method: str, **more: str) -> dict[str, str]:
    return {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **more}


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        open_database(sqlite_url) as database,
        api_client(database, max_body_bytes=SMALL, docs="off") as client,
    ):
        yield client


HOSTILE: dict[str, tuple[Any, int, int, str]] = {
    "no JSON": (b"{", 400, -32700, ""),
    "nothing": (b"", 400, -32700, "JSON"),
    "a text": (b'"ping"', 400, -32600, "one JSON-RPC"),
    "a number": (b"7", 400, -32600, "one JSON-RPC"),
    "null": (b"null", 400, -32600, "one JSON-RPC"),
    "a batch": ([request(), request()], 400, -32600, "in a request of its own"),
    "an empty batch": ([], 400, -32600, "in a request of its own"),
    "an empty object": ({}, 400, -32600, "no JSON-RPC message"),
    "another version of JSON-RPC": ({**request(), "jsonrpc": "1.0"}, 400, -32600, "jsonrpc"),
    "no version of JSON-RPC": ({"id": 1, "method": "ping"}, 400, -32600, "jsonrpc"),
    "an answer": ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400, -32600, "method"),
    "an id that is none": ({**request(), "id": {}}, 400, -32600, "request: id: Input should be a valid integer"),
    "no method": ({"jsonrpc": "2.0", "id": 1}, 400, -32600, "method"),
    "a method that is no text": ({**request(), "method": 7}, 400, -32600, "method"),
    "a method that nobody has": (request("agents/delete"), 200, -32601, "agents/delete"),
    "a very long method": (request("x" * 5_000), 200, -32601, "xxx"),
    "a method of another version": (request("server/discover"), 200, -32601, "server/discover"),
    "a task of an older client": (request("tasks/get", taskId="run-1"), 200, -32601, "tasks/get"),
    "id null": (request(request_id=None), 400, -32600, "id"),
    "id true": (request(request_id=True), 400, -32600, "id"),
    "id with a fraction": (request(request_id=1.5), 400, -32600, "id"),
    "id a list": (request(request_id=[1]), 400, -32600, "id"),
    "a long id": (request(request_id="x" * 5_000), 400, -32600, "id is too long"),
    "a huge id": (b'{"jsonrpc":"2.0","method":"ping","id":1%b}' % (b"0" * 400), 400, -32700, "64-bit"),
    "params a list": ({**request(), "params": [1]}, 400, -32600, "params"),
    "a long progress token": (
        request("tools/call", name="a", arguments={}, _meta={"progressToken": "x" * 5_000}), 400, -32600,
        "progressToken is too long",
    ),
    "a call without a name": (request("tools/call", arguments={}), 200, -32602, "name"),
    "arguments that are a list": (request("tools/call", name="a", arguments=[1]), 200, -32602, "arguments"),
    "a tool that nobody has": (request("tools/call", name="a", arguments={}), 200, -32602, "Unknown tool"),
    "a cursor that is a number": (request("tools/list", cursor=7), 200, -32602, "cursor"),
    "a handshake without what it needs": (request("initialize"), 200, -32602, "protocolVersion"),
    "deep": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 500 + b"1" + b"}" * 501, 400, -32700,
             "deeper"),
    "half a character": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', 400, -32700, "surrogate"),
    "a zero character": (b'{"jsonrpc":"2.0","id":"\\u0000","method":"ping"}', 400, -32700, "NUL"),
    "too long": (request(text="x" * SMALL), 413, -32600, "HOLDFAST_MAX_BODY_BYTES"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_no_request_is_refused_in_the_words_of_the_protocol(http: httpx.AsyncClient, name: str) -> None:
    sent, status, code, told = HOSTILE[name]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()

    answer = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})

    said = mcp_types.JSONRPCError.model_validate(answer.json())
    assert (answer.status_code, said.error.code) == (status, code), answer.text
    assert told in said.error.message
    assert len(answer.content) < 2_000


MODERN_FAULTS: dict[str, tuple[dict[str, Any], dict[str, str], int, int]] = {
    "no envelope": (request("tools/list"), said_in_headers("tools/list"), 400, -32602),
    "another method in the header": (request("tools/list", _meta=meta()), said_in_headers("ping"), 400, -32020),
    "no method in the header": (request("tools/list", _meta=meta()), {"MCP-Protocol-Version": MODERN}, 400, -32020),
    "another name in the header": (
        request("tools/call", name="a", arguments={}, _meta=meta()), said_in_headers("tools/call", **{"Mcp-Name": "b"}),
        400, -32020,
    ),
    "another task in the header": (
        request("tasks/get", taskId="run-1", _meta=meta()), said_in_headers("tasks/get", **{"Mcp-Name": "run-2"}),
        400, -32020,
    ),
    "another version in the body": (
        request("tools/list", _meta=meta("2025-11-25")), said_in_headers("tools/list"), 400, -32020,
    ),
    "a version that nobody has": (
        request("tools/list", _meta=meta("2031-01-01")),
        {"MCP-Protocol-Version": "2031-01-01", "Mcp-Method": "tools/list"}, 400, -32022,
    ),
    "a method that nobody has": (
        request("subscriptions/listen", _meta=meta()), said_in_headers("subscriptions/listen"), 404, -32601,
    ),
    "a method of the handshake": (request("initialize", _meta=meta()), said_in_headers("initialize"), 404, -32601),
    "a task for who takes none": (
        request("tasks/get", taskId="run-1", _meta=meta()), said_in_headers("tasks/get"), 400, -32021,
    ),
    "a task without an id": (request("tasks/get", _meta=meta()), said_in_headers("tasks/get"), 400, -32602),
    "answers that are none": (
        request("tasks/update", taskId="run-1", inputResponses=[], _meta=meta()), said_in_headers("tasks/update"),
        400, -32602,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODERN_FAULTS)
async def test_a_request_that_contradicts_itself_is_refused(http: httpx.AsyncClient, name: str) -> None:
    body, headers, status, code = MODERN_FAULTS[name]
    answer = await http.post("/mcp", json=body, headers=headers)
    said = mcp_types.JSONRPCError.model_validate(answer.json())
    assert (answer.status_code, said.error.code, said.id) == (status, code, 1), answer.text
    assert said.error.message
    if code == -32022:
        assert said.error.data == {"supported": [MODERN], "requested": "2031-01-01"}


async def test_a_header_that_comes_twice_is_refused(http: httpx.AsyncClient) -> None:
    headers = [*said_in_headers("tools/list").items(), ("Mcp-Method", "ping"), ("Content-Type", "application/json")]
    answer = await http.post("/mcp", content=json.dumps(request("tools/list", _meta=meta())), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
async def test_each_version_of_the_handshake_is_spoken(http: httpx.AsyncClient, version: str) -> None:
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = await http.post("/mcp", json=request("initialize", **hello))
    result = answer.json()["result"]
    assert result["protocolVersion"] == version
    methods.validate_server_result("initialize", version, result)
    session = {"Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": version}
    told = await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    assert (told.status_code, told.content) == (202, b"")
    for method in ("tools/list", "ping"):
        listed = await http.post("/mcp", json=request(method), headers=session)
        methods.validate_server_result(method, version, listed.json()["result"])


async def test_a_handshake_for_a_version_that_nobody_has_ends_with_the_newest(http: httpx.AsyncClient) -> None:
    hello = {"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = await http.post("/mcp", json=request("initialize", **hello))
    assert answer.json()["result"]["protocolVersion"] == HANDSHAKE_PROTOCOL_VERSIONS[-1]


async def test_the_server_says_what_it_is(http: httpx.AsyncClient) -> None:
    body = request("server/discover", _meta=meta())
    result = (await http.post("/mcp", json=body, headers=said_in_headers("server/discover"))).json()["result"]
    methods.validate_server_result("server/discover", MODERN, result)
    assert result["supportedVersions"] == [*HANDSHAKE_PROTOCOL_VERSIONS, MODERN]
    assert result["capabilities"] == {"tools": {}, "extensions": {messages.TASKS: {}}}
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "holdfast"


@pytest.mark.parametrize(
    "told",
    [
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        {"method": "notifications/cancelled", "params": {"requestId": [1]}},
        {"method": "notifications/cancelled", "params": {"requestId": "x" * 5_000, "reason": ["no"]}},
        {"method": "notifications/cancelled"},
        {"method": "notifications/of-tomorrow", "params": {"a": 1}},
    ],
)
async def test_a_notification_about_nothing_is_taken(http: httpx.AsyncClient, told: dict[str, Any]) -> None:
    for session in ({}, {"Mcp-Session-Id": "mine"}, {"Mcp-Session-Id": "x" * 5_000}):
        answer = await http.post("/mcp", json={"jsonrpc": "2.0", **told}, headers=session)
        assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_the_address_takes_posts_alone(http: httpx.AsyncClient, method: str) -> None:
    """A client of an older version asks whether there is a stream of the server's own, and ends its session."""
    answer = await http.request(method, "/mcp", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"]


async def test_a_foreign_page_is_refused(http: httpx.AsyncClient) -> None:
    for name, value in (("Origin", "https://evil.example"), ("Host", "evil.example")):
        answer = await http.post("/mcp", json=request(), headers={name: value})
        assert (answer.status_code, answer.json()["error"]["data"]["code"]) == (403, "forbidden_origin")


def test_the_codes_are_the_protocols() -> None:
    names = {
        "PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS", "INTERNAL_ERROR", "HEADER_MISMATCH",
    }  # fmt: skip
    assert {name: getattr(messages, name) for name in names} == {name: getattr(mcp_types, name) for name in names}
    assert messages.MISSING_CAPABILITY == mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY
