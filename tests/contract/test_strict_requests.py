"""`X-Holdfast-Strict: true`: a mistyped field or filter was a 200 that did something else."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from tests.kit.product import api_client
from tests.kit.services.databases import open_database

STRICT = {"X-Holdfast-Strict": "true"}
AGENT: dict[str, Any] = {"model": "builtin/echo", "name": "strict"}


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database) as client:
        yield client


REFUSED: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("POST", "/v1/agents", {**AGENT, "toolIds": []}, "toolIds", "did you mean 'tool_ids'?"),
    ("POST", "/v1/agents", {**AGENT, "descripton": None}, "descripton", "did you mean 'description'?"),
    ("POST", "/v1/agents", {**AGENT, "quite_something_else": 1}, "quite_something_else", "here"),
    (
        "POST",
        "/v1/agents",
        {**AGENT, "memory_blocks": [{"label": "a", "value": ""}, {"label": "b", "value": "", "limt": 5}]},
        "memory_blocks[1].limt",
        "did you mean 'limit'?",
    ),
    ("POST", "/v1/agents", {**AGENT, "max_files_open": 3}, "max_files_open", "is not acted on"),
    ("POST", "/v1/agents?inclde=x", AGENT, "query.inclde", "did you mean 'include'?"),
    ("GET", "/v1/runs?status=failed", {}, "query.status", "did you mean 'statuses'?"),
    ("GET", "/v1/agents/?limit=1&colour=red", {}, "query.colour", "there is no parameter 'colour'"),
]


@pytest.mark.parametrize(("method", "path", "body", "field", "said"), REFUSED)
async def test_a_name_that_is_not_acted_on_is_refused(
    http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], field: str, said: str
) -> None:
    answer = await http.request(method, path, json=body or None, headers=STRICT)
    refused = answer.json()
    assert (answer.status_code, refused["code"], refused["field"]) == (422, "unknown_field", field)
    assert said in refused["message"]
    assert (await http.get("/v1/agents")).json() == [], "nothing has been done"

    lenient = await http.request(method, path, json=body or None)
    assert lenient.status_code == 200


async def test_a_field_in_the_body_of_a_route_that_takes_none_was_not_seen(http: httpx.AsyncClient) -> None:
    path = f"/v1/agents/{(await http.post('/v1/agents', json=AGENT)).json()['id']}/reset-messages"
    body = {"add_default_initial_messages": True}
    refused = await http.patch(path, json=body, headers=STRICT)
    assert (refused.status_code, refused.json()["field"]) == (422, "add_default_initial_messages")
    warned = await http.patch(path, json=body)
    assert (warned.status_code, "add_default_initial_messages" in warned.headers["Warning"]) == (200, True)
    assert (await http.patch(path, content=b"{no JSON")).status_code == 200, "the route reads no body"


async def test_every_unknown_name_is_named(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/agents?a=1", json={**AGENT, "b": 1, "c": 2}, headers=STRICT)
    assert [one["field"] for one in answer.json()["errors"]] == ["query.a", "b", "c"]


async def test_a_header_of_ours_that_nobody_reads_is_refused(http: httpx.AsyncClient) -> None:
    mistyped = await http.get("/v1/agents", headers={**STRICT, "X-Holdfast-If-Buzy": "enqueue"})
    assert mistyped.json()["field"] == "header.x-holdfast-if-buzy"
    assert "did you mean 'x-holdfast-if-busy'?" in mistyped.json()["message"]
    # Clients have headers for all their requests.
    assert (await http.get("/v1/agents", headers={**STRICT, "X-Holdfast-If-Busy": "enqueue"})).status_code == 200
    odd = await http.get("/v1/agents", headers={"X-Holdfast-Strict": "perhaps"})
    assert (odd.status_code, odd.json()["field"]) == (422, "header.X-Holdfast-Strict")


async def test_what_is_acted_on_passes(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/agents", json={**AGENT, "max_files_open": None, "tool_rules": []}, headers=STRICT)
    assert made.status_code == 200
    sent = {"messages": [{"role": "user", "content": "Hi", "otid": "o"}], "streaming": False}
    assert (await http.post(f"/v1/agents/{made.json()['id']}/messages/async", json=sent, headers=STRICT)).is_success
    listed = await http.get("/v1/agents/?order_by=created_at&limit=5", headers=STRICT)
    assert len(listed.json()) == 1
    assert (await http.get("/v1/nothing?x=1", headers=STRICT)).status_code == 404
    malformed = await http.post("/v1/agents", content=b"{", headers={**STRICT, "Content-Type": "application/json"})
    assert malformed.json()["code"] == "invalid_argument"


async def test_a_chat_completion_is_refused_in_openais_shape(http: httpx.AsyncClient) -> None:
    asked = {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "streem": True}
    answer = await http.post("/v1/chat/completions", json=asked, headers=STRICT)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_field", "streem")
    assert "did you mean 'stream'?" in error["message"]


async def test_the_operator_may_want_it_of_every_request(sqlite_url: str) -> None:
    async with open_database(sqlite_url) as database, api_client(database, strict_requests=True) as http:
        assert (await http.get("/v1/runs?status=failed")).status_code == 422
        assert (await http.get("/v1/runs?status=failed", headers={"X-Holdfast-Strict": "false"})).status_code == 200
