"""The OpenAPI document says what is answered. `make fuzz` holds every answer against it; these are its words."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI

from api.openapi_document import ALWAYS_STREAMS, ENDS_RUNS, SOMETIMES_STREAMS
from tests.kit.product.in_process import api_app, asgi_client
from tests.kit.services.databases import open_database

KEY = {"Authorization": "Bearer secret"}
ID = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def app(sqlite_url: str) -> AsyncGenerator[FastAPI]:
    async with open_database(sqlite_url) as database, api_app(database, api_keys="default=secret") as app:
        yield app


@pytest.fixture
async def http(app: FastAPI) -> AsyncGenerator[httpx.AsyncClient]:
    async with asgi_client(app) as client:
        client.headers.update(KEY)
        yield client


def content_of(app: FastAPI, method: str, path: str, status: int) -> dict[str, Any]:
    """What the document says of an answer, by its media type."""
    return app.openapi()["paths"][path][method]["responses"][str(status)].get("content", {})


REFUSED: list[tuple[str, str, str, Any, int]] = [
    ("post", "/v1/blocks", "/v1/blocks", {}, 422),
    ("get", "/v1/agents/{agent_id}", "/v1/agents/x", None, 422),
    ("get", "/v1/agents/{agent_id}", f"/v1/agents/agent-{ID}", None, 404),
    ("get", "/v1/runs/{run_id}", "/v1/runs/x", None, 400),
    ("post", "/v1/tools", "/v1/tools", {"source_code": "x"}, 400),
    ("post", "/v1/chat/completions", "/v1/chat/completions", {}, 400),
    ("post", "/v1/chat/completions", "/v1/chat/completions", {"model": "x", "messages": [{"role": "user"}]}, 400),
]


@pytest.mark.parametrize(("method", "path", "url", "body", "status"), REFUSED)
async def test_refusals_had_bodies_of_another_shape_than_the_document_said(
    app: FastAPI, http: httpx.AsyncClient, method: str, path: str, url: str, body: Any, status: int
) -> None:
    answer = await http.request(method, url, json=body)
    assert answer.status_code == status
    schema = content_of(app, method, path, status)["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": app.openapi()["components"]})


async def test_a_missing_key_is_in_the_document(app: FastAPI) -> None:
    async with asgi_client(app) as http:
        answer = await http.get("/v1/agents")
    assert answer.status_code == 401
    assert "application/json" in content_of(app, "get", "/v1/agents", 401)
    assert app.openapi()["paths"]["/v1/agents"]["get"]["security"] == [{"key": []}]
    assert "security" not in app.openapi()["paths"]["/v1/health"]["get"]


def test_every_operation_says_how_it_refuses(app: FastAPI) -> None:
    for path, methods in app.openapi()["paths"].items():
        for operation in methods.values():
            wanted = {"400", "401", "403", "404", "409", "429", "503"} if path.startswith("/v1/") else {"503"}
            assert path == "/v1/health" or wanted <= set(operation["responses"])


def test_streams_were_said_to_be_json(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    for method, path in ALWAYS_STREAMS:
        assert list(content_of(app, method, path, 200)) == ["text/event-stream"]
    for method, path in SOMETIMES_STREAMS:
        assert list(content_of(app, method, path, 200)) == ["application/json", "text/event-stream"]
    assert all(method in paths[path] for method, path in ENDS_RUNS)


async def test_a_wrong_method_was_told_those_of_the_first_route_only(http: httpx.AsyncClient) -> None:
    answer = await http.request("OPTIONS", "/v1/tools")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST, PUT")


@pytest.mark.parametrize("path", ["/v1/folders", "/v1/jobs/active", "/v1/tools/mcp/servers"])
async def test_a_method_that_nobody_has_was_said_to_be_lettas(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.request("TRACE", path)).status_code == 405
    assert (await http.request("POST", path)).status_code == 501
