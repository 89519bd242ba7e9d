"""What a request must be before it is answered: who sends it, how long and how slow its body is, and what is in it.

On a real port: each of these was found by somebody who wrote to the socket himself.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from api.connection_rules import MAX_HEAD_BYTES, MAX_UNREAD_BYTES, ConnectionRules
from api.http_server import server_config
from shared.json_limits import MAX_DEPTH, MAX_VALUES
from shared.sql.engine import Database
from tests.kit.product.in_process import api_app, api_client, listening
from tests.kit.raw_http import RawConnection, chunk, head, raw_connection, repeated
from tests.kit.services.databases import open_database

MAX_BODY = 50_000
PATIENT_S = 180
IMPATIENT_S = 1
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
def patience_s() -> int:
    """How long the server lets a client be silent. Tests of that have it shorter."""
    return PATIENT_S


falls_silent = pytest.mark.parametrize("patience_s", [IMPATIENT_S])


@pytest.fixture
async def port(database: Database, patience_s: int) -> AsyncGenerator[int]:
    """A server with a key and a small limit."""
    async with AsyncExitStack() as stack:
        api = api_app(database, api_keys="default=secret", max_body_bytes=MAX_BODY, request_timeout=patience_s)
        app = await stack.enter_async_context(api)
        address = await stack.enter_async_context(listening(app, timeout_s=patience_s, idle_s=patience_s))
        yield urlsplit(address).port or 0


@pytest.fixture
async def raw(port: int) -> AsyncGenerator[RawConnection]:
    async with raw_connection(port) as connection:
        yield connection


async def test_the_key_is_checked_before_a_byte_of_the_body_is_read(raw: RawConnection) -> None:
    """300 MB of anybody's were read and parsed, and the answer was 401."""
    await raw.send(head("POST", "/v1/agents", Content_Length="300000000"))
    assert (await raw.answer()).status == 401


@pytest.mark.parametrize("authorization", ["Bearer wrong", "", "Basic secret"])
async def test_a_wrong_key_is_refused_before_the_body_too(raw: RawConnection, authorization: str) -> None:
    await raw.send(head("POST", "/v1/agents", Authorization=authorization, Transfer_Encoding="chunked"))
    answer = await raw.answer()
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "bearer")


async def test_a_body_that_says_that_it_is_too_long_is_refused_unread(raw: RawConnection) -> None:
    await raw.send(head("POST", "/v1/blocks", Content_Length=str(MAX_BODY + 1), **KEY))
    answer = await raw.answer()
    assert answer.status == 413
    assert "HOLDFAST_MAX_BODY_BYTES" in answer.json()["detail"]
    assert str(MAX_BODY) in answer.json()["detail"]


HELD_BACK = {"Expect": "100-continue", "Content_Length": "2"}


@pytest.mark.parametrize("held_back", [HELD_BACK, {**HELD_BACK, "Content_Length": str(MAX_BODY + 1), **KEY}])
async def test_the_next_request_was_taken_for_a_body_that_nobody_had_asked_for(
    raw: RawConnection, held_back: dict[str, str]
) -> None:
    """Who is refused before the body is asked for may leave it out."""
    await raw.send(head("POST", "/v1/blocks", **held_back))
    answer = await raw.answer()
    assert (answer.status in (401, 413), answer.headers["connection"]) == (True, "close")
    await raw.is_closed()


async def test_a_body_that_is_held_back_is_asked_for(raw: RawConnection) -> None:
    await raw.send(head("POST", "/v1/blocks", **HELD_BACK, **KEY))
    assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await raw.send(b"{}")
    answer = await raw.answer()
    assert (answer.status, "connection" in answer.headers) == (422, False)
    await raw.send(head("GET", "/v1/blocks/count", **KEY))
    assert (await raw.answer()).body == b"0"


@falls_silent
@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000 + "1"])
async def test_a_length_of_thousands_of_digits_is_no_500(raw: RawConnection, length: str) -> None:
    await raw.send(head("POST", "/v1/blocks", Content_Length=length, **KEY))
    assert (await raw.answer()).status in (400, 413, 422, 408)


async def test_a_body_that_does_not_say_how_long_it_is_is_counted(raw: RawConnection) -> None:
    piece = chunk(b" " * 10_000)
    await raw.send(head("POST", "/v1/blocks", Transfer_Encoding="chunked", **KEY), *[piece] * 6)
    assert (await raw.answer()).status == 413


async def test_a_body_at_the_limit_is_taken(port: int) -> None:
    block = {"label": "human", "value": ""}
    block["value"] = "x" * (MAX_BODY - len(json.dumps(block)))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=KEY) as http:
        content = json.dumps(block).encode()
        assert len(content) == MAX_BODY
        json_type = {"Content-Type": "application/json"}
        assert (await http.post("/v1/blocks", content=content, headers=json_type)).status_code == 200
        assert (await http.post("/v1/blocks", content=content + b" ", headers=json_type)).status_code == 413
        assert (await http.post("/v1/blocks", content=repeated(b" " * 9_999, 9), headers=json_type)).status_code == 413
        assert (await http.get("/v1/blocks/count")).json() == 1


async def test_a_connection_goes_on_after_a_refused_body(raw: RawConnection) -> None:
    """The rest of the body was taken for the next request, or the connection was closed without a word."""
    await raw.send(head("POST", "/v1/blocks", Content_Length="60000", **KEY))
    assert (await raw.answer()).status == 413
    await raw.send(b"x" * 60_000, head("GET", "/v1/blocks/count", **KEY))
    assert (await raw.answer()).body == b"0"


async def test_what_is_sent_after_a_refusal_is_not_taken_for_ever(raw: RawConnection) -> None:
    await raw.send(head("POST", "/v1/blocks", Content_Length=str(100 * MAX_UNREAD_BYTES)))
    assert (await raw.answer()).status == 401
    await raw.send(*[b"x" * 100_000] * 30)
    await raw.is_closed()


@falls_silent
async def test_a_body_that_stops_in_the_middle_is_given_up(raw: RawConnection) -> None:
    """A thousand of them stayed open for as long as their senders liked."""
    await raw.send(head("POST", "/v1/blocks", Transfer_Encoding="chunked", **KEY), chunk(b'{"label"'))
    answer = await raw.answer()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert "HOLDFAST_REQUEST_TIMEOUT" in answer.json()["detail"]
    assert answer.json()["code"] == "body_timeout"
    await raw.is_closed()


@falls_silent
@pytest.mark.parametrize("said", [b"", b"\r\n\r\n", b"POST /v1/blocks HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A"])
async def test_a_connection_that_asks_for_nothing_is_closed(raw: RawConnection, said: bytes) -> None:
    await raw.send(said)
    await raw.is_closed()


@falls_silent
async def test_a_connection_that_asks_for_nothing_more_is_closed(raw: RawConnection) -> None:
    await raw.send(head("GET", "/v1/blocks/count", **KEY))
    assert (await raw.answer()).status == 200
    await raw.is_closed()


def test_the_server_closed_a_connection_just_as_its_client_used_it_again() -> None:
    """Both gave an idle connection five seconds, and a request that met the closing was lost."""
    keeps = server_config(FastAPI(), ConnectionRules(PATIENT_S)).timeout_keep_alive
    assert keeps > (httpx.Limits().keepalive_expiry or 0)
    assert keeps > 60, "which is what the usual proxies take"


@falls_silent
async def test_a_connection_that_falls_silent_between_requests_is_closed(raw: RawConnection) -> None:
    await raw.send(head("GET", "/v1/blocks/count", **KEY))
    assert (await raw.answer()).status == 200
    await raw.send(b"GET /v1/blocks HTTP/1.1\r\n")
    await raw.is_closed()


@pytest.mark.parametrize(("begin", "status"), [(b"GET /v1/health HTTP/1.1\r\nX-A: ", 431), (b"GET /v1/health?", 414)])
async def test_a_head_without_an_end_is_refused(raw: RawConnection, begin: bytes, status: int) -> None:
    """A header of 100 MB was answered with 200, and a URL of 100 MB held everybody up for 47 seconds."""
    await raw.send(begin, *[b"x" * 8192] * (MAX_HEAD_BYTES // 8192 + 1))
    assert (await raw.answer()).status == status
    await raw.is_closed()


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


async def _post(http: httpx.AsyncClient, path: str, content: str) -> httpx.Response:
    return await http.post(path, content=content, headers={"Content-Type": "application/json"})


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"a\\u0000b"', "NUL"),
        ('"\\ud800"', "half a surrogate pair"),
        ('{"\\ud83d": 1}', "half a surrogate pair"),
        ('{"a\\u0000": 1}', "NUL"),
        ("NaN", "not finite"),
        ("-Infinity", "not finite"),
        ("1e999", "not finite"),
        ("9223372036854775808", "64-bit"),
        ("9" * 5000, "64-bit"),
        (_nested(MAX_DEPTH + 1), "nested deeper"),
        (_nested(50_000), "nested deeper"),
        (f"[{'[],' * MAX_VALUES}[]]", "more than 100000 values"),
    ],
)
async def test_what_cannot_be_shown_is_not_stored(http: httpx.AsyncClient, value: str, said: str) -> None:
    """The answer was a 500, the block was stored, and every list with it was a 500 for ever."""
    answer = await _post(http, "/v1/blocks", f'{{"label": "human", "value": "", "metadata": {{"deep": [{value}]}}}}')

    assert answer.status_code == 422, answer.text
    detail = answer.json()["detail"]
    assert said in detail
    # What cannot be parsed at all has no place.
    assert '"metadata", "deep", 0' in detail or '"loc": ["body"]' in detail
    assert (await http.get("/v1/blocks")).json() == []


async def test_what_can_just_be_shown_is_stored_and_shown(http: httpx.AsyncClient) -> None:
    deep = _nested(MAX_DEPTH - 2)
    metadata = f'{{"deep": {deep}, "large": -9223372036854775808, "text": "\\ud83d\\ude00 \\u0001"}}'
    made = await _post(http, "/v1/blocks", f'{{"label": "human", "value": "", "metadata": {metadata}}}')

    assert made.status_code == 200, made.text
    assert (await http.get("/v1/blocks")).json()[0]["metadata"] == json.loads(metadata)


async def test_a_long_text_full_of_commas_is_no_document_of_many_values(http: httpx.AsyncClient) -> None:
    text = 'a,[{"\\' * MAX_VALUES
    made = await http.post("/v1/blocks", json={"label": "human", "value": text, "limit": len(text)})
    assert made.status_code == 200
    assert made.json()["value"] == text


async def test_a_body_in_another_encoding_is_checked_as_well(http: httpx.AsyncClient) -> None:
    body = '{"label": "human", "value": "\0"}'.replace("\0", "\\u0000").encode("utf-16")
    answer = await http.post("/v1/blocks", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["field"] == "value"


@pytest.mark.parametrize("body", ["{", "", '{"label": "human", "value": }', "\x00"])
async def test_what_is_no_json_is_a_422(http: httpx.AsyncClient, body: str) -> None:
    assert (await _post(http, "/v1/blocks", body)).status_code == 422


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8283"},
        {"Host": "localhost.evil.example"},
        {"Host": "[::1"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example:8283"},
        {"Origin": "null"},
        {"Host": "localhost:8283", "Origin": "https://evil.example"},
    ],
)
async def test_a_web_page_cannot_use_a_server_without_keys(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """A page whose name led to 127.0.0.1 made a tool and ran it."""
    for answer in (await http.get("/v1/agents", headers=headers), await http.post("/v1/tools", headers=headers)):
        assert answer.status_code == 403
        assert "HOLDFAST_ALLOWED_HOSTS" in answer.json()["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:8283"},
        {"Host": "LOCALHOST"},
        {"Host": "127.0.0.1"},
        {"Host": "[::1]:8283"},
        {"Host": "holdfast.localhost:1"},
        {"Origin": "http://localhost:3000"},
    ],
)
async def test_this_machines_own_names_are_served(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.get("/v1/agents", headers=headers)).status_code == 200


LOCAL_PAGES = [
    "http://127.0.0.1:9999",
    "http://localhost:9999",
    "http://localhost",
    "http://app.localhost:8283",
    "http://[::1]:8283",
    "http://localhost:8283",
]
"""Of other servers on this machine; the one that is asked is 127.0.0.1:8283."""

CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/agents/import", {"files": {"file": ("tools.af", b"{}", "application/json")}}),
    ("POST", "/v1/tools", {"content": "{}", "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/v1/agents", {"data": {"model": "builtin/echo"}}),
    ("PATCH", "/v1/agents/agent-1", {"json": {}}),
    ("PUT", "/v1/tools", {"json": {}}),
    ("DELETE", "/v1/agents/agent-1", {}),
]


async def test_a_page_of_another_server_on_this_machine_changed_something(http: httpx.AsyncClient) -> None:
    """A browser sends such a form without asking first; one replaced the source of tools."""
    for origin in LOCAL_PAGES:
        for method, path, sent in CHANGES:
            headers = {"Host": "127.0.0.1:8283", "Origin": origin, **sent.get("headers", {})}
            given: dict[str, Any] = {**sent, "headers": headers}
            answer = await http.request(method, path, **given)
            assert (answer.status_code, "HOLDFAST_CORS_ORIGINS" in answer.text) == (403, True), (origin, method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8283"},
        {"Host": "127.0.0.1:8283", "Origin": "http://127.0.0.1:8283"},
        {"Host": "LocalHost:8283", "Origin": "http://localhost:8283"},
        {"Host": "[::1]:8283", "Origin": "http://[::1]:8283"},
        {"Host": "localhost", "Origin": "http://localhost"},
        {"Host": "localhost", "Origin": "https://localhost"},
    ],
)
async def test_programs_and_its_own_pages_change_what_they_like(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    block = {"label": "human", "value": "hello"}
    assert (await http.post("/v1/blocks", json=block, headers=headers)).status_code == 200


async def test_a_local_page_that_the_settings_name_changes_something(database: Database) -> None:
    page, block = "http://localhost:3000", {"label": "human", "value": "hello"}
    async with api_client(database, cors_origins=page) as http:
        headers = {"Host": "127.0.0.1:8283", "Origin": page}
        assert (await http.post("/v1/blocks", json=block, headers=headers)).status_code == 200
        other = {**headers, "Origin": "http://localhost:3001"}
        assert (await http.post("/v1/blocks", json=block, headers=other)).status_code == 403
    async with api_client(database, allowed_hosts="box.lan") as http:
        # A proxy in front may send another Host on.
        headers = {"Host": "127.0.0.1:8283", "Origin": "https://box.lan"}
        assert (await http.post("/v1/blocks", json=block, headers=headers)).status_code == 200


async def test_a_name_that_was_allowed_is_served(database: Database) -> None:
    async with api_client(database, allowed_hosts="box.lan, Other.lan") as http:
        assert (await http.get("/v1/agents", headers={"Host": "box.lan:8283"})).status_code == 200
        assert (await http.get("/v1/agents", headers={"Origin": "http://other.lan"})).status_code == 200
        assert (await http.get("/v1/agents", headers={"Host": "third.lan"})).status_code == 403


async def test_a_server_with_keys_is_served_under_every_name(database: Database) -> None:
    async with api_client(database, api_keys="default=secret") as http:
        headers = {"Host": "holdfast.example", "Origin": "https://elsewhere.example", **KEY}
        assert (await http.get("/v1/agents", headers=headers)).status_code == 200
