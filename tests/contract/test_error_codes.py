"""Whatever door refuses a request, the body has a code, a sentence, the field and what to do; and every code is in the
documents."""

import ast
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from api.errors import MOST_FLAWS
from api.letta.refusals import validation_refusal
from shared.domain.errors import ErrorCode, ModelErrorType
from tests.kit.product import api_client
from tests.kit.project.documents import table_rows
from tests.kit.project.source_tree import product_sources
from tests.kit.services.databases import open_database

ID = "00000000-0000-4000-8000-000000000000"
AGENT = f"/v1/agents/agent-{ID}"
LIMIT = 2000
JSON = {"Content-Type": "application/json"}
MOST_WRONG_KEYS = 100


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database, max_body_bytes=LIMIT) as client:
        yield client


@pytest.fixture
async def closed(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """An API that asks for a key."""
    async with open_database(sqlite_url) as database, api_client(database, api_keys="default=secret") as client:
        yield client


def checked(answer: httpx.Response, status: int, code: ErrorCode, field: str | None = None) -> dict[str, Any]:
    body = answer.json()
    assert answer.status_code == status, body
    assert (body["code"], body["field"]) == (code, field), body
    assert body["message"] and body["hint"] and "detail" in body
    assert not body["message"].startswith(("{", "[", "INVALID", "CONFLICT", "FORBIDDEN")), "one plain sentence"
    return body


REFUSED: list[tuple[str, str, dict[str, Any], int, ErrorCode, str | None]] = [
    ("GET", AGENT, {}, 404, ErrorCode.NOT_FOUND, None),
    ("GET", "/v1/agents/nonsense", {}, 422, ErrorCode.INVALID_ARGUMENT, "path.agent_id"),
    ("GET", "/v1/runs/nonsense", {}, 400, ErrorCode.INVALID_ARGUMENT, "path.run_id"),
    ("GET", "/v1/runs?limit=0", {}, 422, ErrorCode.INVALID_ARGUMENT, "query.limit"),
    ("GET", "/v1/runs?conversation_id=default", {}, 400, ErrorCode.INVALID_ARGUMENT, "query.agent_id"),
    ("GET", "/v1/tools?tool_types=odd", {}, 400, ErrorCode.INVALID_ARGUMENT, "query.tool_types"),
    ("POST", "/v1/blocks", {"json": {}}, 422, ErrorCode.INVALID_ARGUMENT, "label"),
    ("POST", "/v1/blocks", {"json": [1]}, 422, ErrorCode.INVALID_ARGUMENT, None),
    ("POST", "/v1/blocks", {"content": b"{"}, 422, ErrorCode.INVALID_ARGUMENT, None),
    ("POST", "/v1/blocks", {"content": b"label=x"}, 422, ErrorCode.INVALID_ARGUMENT, None),
    ("POST", "/v1/agents", {"json": {"model": "x"}}, 422, ErrorCode.INVALID_ARGUMENT, "model"),
    (
        "POST",
        "/v1/agents",
        {"json": {"model": "builtin/echo", "tools": ["gone"]}},
        400,
        ErrorCode.TOOLS_NOT_FOUND,
        "tools",
    ),
    ("POST", "/v1/tools", {"json": {"source_code": "x"}}, 400, ErrorCode.INVALID_TOOL_SOURCE, "source_code"),
    ("POST", f"{AGENT}/messages", {"json": {"messages": []}}, 404, ErrorCode.NOT_FOUND, None),
    ("POST", f"{AGENT}/messages/cancel", {}, 404, ErrorCode.NOT_FOUND, None),
    ("POST", "/v1/blocks", {"content": b" " * (LIMIT + 1)}, 413, ErrorCode.BODY_TOO_LARGE, None),
    ("POST", "/v1/agents/import", {"json": {}}, 415, ErrorCode.UNSUPPORTED_MEDIA_TYPE, "header.Content-Type"),
    ("GET", "/v1/nothing", {}, 404, ErrorCode.PATH_NOT_FOUND, None),
    ("GET", "/nothing", {}, 404, ErrorCode.PATH_NOT_FOUND, None),
    ("GET", "/console/nothing.js", {}, 404, ErrorCode.NOT_FOUND, None),
    ("PUT", "/v1/runs", {}, 405, ErrorCode.METHOD_NOT_ALLOWED, None),
    ("POST", "/v1/folders", {}, 501, ErrorCode.NOT_IMPLEMENTED, None),
    ("GET", "/v1/agents", {"headers": {"Host": "evil.test"}}, 403, ErrorCode.FORBIDDEN_ORIGIN, "header.Host"),
]


@pytest.mark.parametrize(("method", "path", "given", "status", "code", "field"), REFUSED)
async def test_a_refusal_had_no_code(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    given: dict[str, Any],
    status: int,
    code: ErrorCode,
    field: str | None,
) -> None:
    checked(await http.request(method, path, **given), status, code, field)


@pytest.mark.parametrize(
    ("method", "path", "given"),
    [
        ("GET", "/v1/agents/nonsense", {}),
        ("GET", "/v1/conversations/nonsense/messages", {}),
        ("GET", "/v1/conversations/nonsense/events", {}),
        ("GET", "/v1/conversations/nonsense", {}),
        ("GET", "/v1/approvals?agent_id=nonsense", {}),
        ("POST", "/v1/passages/search", {"json": {"agent_id": "nonsense"}}),
        ("POST", "/v1/messages/search", {"json": {"query": "x", "agent_id": "nonsense"}}),
        ("POST", "/v1/approvals/nonsense", {"json": {"decision": "approve"}}),
        ("GET", f"/v1/runs/run-{ID}", {}),
        ("GET", f"/v1/runs/run-{ID}/messages", {}),
        ("POST", f"/v1/runs/run-{ID}/stream", {}),
        ("POST", f"/v1/runs/run-{ID}/cancel", {}),
        ("DELETE", f"/v1/runs/run-{ID}", {}),
    ],
)
async def test_a_sentence_about_an_id_was_python_or_a_regular_expression(
    http: httpx.AsyncClient, method: str, path: str, given: dict[str, Any]
) -> None:
    body = (await http.request(method, path, **given)).json()
    assert not any(odd in body["message"] for odd in ("[0-9a-f]", "['", "id=")), body["message"]
    assert "uuid4" in body["message"] or body["message"] == f"Run run-{ID} not found"


async def test_a_program_of_letta_finds_the_words_about_an_unknown_run(http: httpx.AsyncClient) -> None:
    body = checked(await http.get(f"/v1/runs/run-{ID}"), 404, ErrorCode.NOT_FOUND)
    assert body["detail"] == f"Run not found with id='['run-{ID}']'"


async def test_a_server_that_is_not_ready_had_no_code(http: httpx.AsyncClient) -> None:
    body = checked(await http.get("/readyz?full"), 503, ErrorCode.SERVICE_UNAVAILABLE)
    assert (body["status"], body["services"]["worker"]) == ("not ready", False)
    assert "no worker lives" in body["message"]
    ready = (await http.get("/readyz")).json()
    assert ready == {"status": "ready", "services": {"database": True}}


async def test_a_refused_key_had_no_code(closed: httpx.AsyncClient) -> None:
    header = "header.Authorization"
    checked(await closed.get("/v1/agents"), 401, ErrorCode.MISSING_API_KEY, header)
    wrong = {"Authorization": "Bearer wrong"}
    checked(await closed.get("/v1/agents", headers=wrong), 401, ErrorCode.INVALID_API_KEY, header)
    token = await closed.get(f"/v1/runs/run-{ID}/stream", params={"token": "x"})
    checked(token, 401, ErrorCode.INVALID_STREAM_TOKEN)
    answers = [await closed.get("/v1/agents", headers=wrong) for _ in range(MOST_WRONG_KEYS)]
    checked(answers[-1], 429, ErrorCode.RATE_LIMITED)


async def test_openais_clients_get_the_same_code_and_what_to_do(http: httpx.AsyncClient) -> None:
    asked = {"model": f"agent-{ID}", "messages": [{"role": "user", "content": "x"}]}
    missing = (await http.post("/v1/chat/completions", json=asked)).json()["error"]
    assert (missing["code"], missing["param"]) == (ErrorCode.MODEL_NOT_FOUND, "model")
    malformed = (await http.post("/v1/chat/completions", json={**asked, "messages": [{"role": 1}]})).json()["error"]
    assert malformed["code"] == ErrorCode.INVALID_ARGUMENT and malformed["param"].startswith("messages")
    large = (await http.post("/v1/chat/completions", content=b" " * (LIMIT + 1))).json()["error"]
    assert large["code"] == ErrorCode.BODY_TOO_LARGE
    assert all(error["hint"] for error in (missing, malformed, large))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"json": {"label": "x", "value": "x", "limit": "many"}}, "limit"),
        ({"json": {"label": 5, "value": None}}, "label"),
        ({"content": b'{"label": "\xc3\xa4", "limit": {"a": [1, 2]}}', "headers": JSON}, "value"),
    ],
)
async def test_the_detail_of_a_422_was_python(http: httpx.AsyncClient, given: dict[str, Any], field: str) -> None:
    answer = await http.post("/v1/blocks", **given)
    body = checked(answer, 422, ErrorCode.INVALID_ARGUMENT, field)
    assert isinstance(body["detail"], str), "Letta's clients expect a text"
    flaws = json.loads(body["detail"])
    assert [[str(part) for part in flaw["loc"]][1] for flaw in flaws] == [one["field"] for one in body["errors"]]
    assert all(one["message"] and one["type"] for one in body["errors"])


def test_what_json_has_not_is_said_as_text() -> None:
    flaws = [
        {"type": "value_error", "loc": ("body", "a\ud800"), "msg": "Value error, no \udfff", "input": b"\xff{",
         "ctx": {"error": ValueError("odd")}},
    ] * 500  # fmt: skip
    body = validation_refusal(flaws, trace_id="x")
    shown = json.loads(json.dumps(body, ensure_ascii=False).encode())
    assert len(shown["errors"]) == len(json.loads(shown["detail"])) == MOST_FLAWS
    assert json.loads(shown["detail"])[0]["ctx"] == {"error": "odd"}


def test_every_code_is_documented_with_what_to_do() -> None:
    rows = table_rows("errors.md", "code")
    assert [(row[0].strip("`"), row[3]) for row in rows] == [(code.value, code.hint) for code in ErrorCode]


def test_every_code_has_an_error_that_raises_it() -> None:
    found = {
        node.attr
        for source in product_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorCode"
    }
    assert found == set(ErrorCode.__members__)


def test_every_error_of_a_run_is_a_code() -> None:
    assert {*ModelErrorType, *_run_errors()} <= set(ErrorCode)


def _run_errors() -> set[str]:
    """The types with which the product's own code ends runs."""
    return {
        node.args[0].value
        for source in product_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RunError"
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }
