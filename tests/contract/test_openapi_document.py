"""The OpenAPI document says what is answered. `make fuzz` holds every answer against it; these are its words."""

import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.access.authentication import SIGN_IN_RETURN
from api.answers.operations import OPERATIONS
from api.application import openapi_document
from api.openapi_document import ENDS_RUNS, SOMETIMES_STREAMS
from tests.kit.product.described_answers import flaws, validator_of
from tests.kit.product.in_process import api_app, asgi_client
from tests.kit.project.documents import written_openapi
from tests.kit.services.databases import open_database

NO_FILES = b'{"files": [], "next_cursor": null, "has_more": false'
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


def content_of(method: str, path: str, status: int) -> dict[str, Any]:
    """What the document says of an answer, by its media type."""
    return written_openapi()["paths"][path][method]["responses"][str(status)].get("content", {})


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
    http: httpx.AsyncClient, method: str, path: str, url: str, body: Any, status: int
) -> None:
    answer = await http.request(method, url, json=body)
    assert answer.status_code == status
    schema = content_of(method, path, status)["application/json"]["schema"]
    validator_of({**schema, "components": written_openapi()["components"]}).validate(answer.json())


async def test_a_missing_key_is_in_the_document(app: FastAPI) -> None:
    async with asgi_client(app) as http:
        answer = await http.get("/v1/agents")
    assert answer.status_code == 401
    assert "application/json" in content_of("get", "/v1/agents", 401)
    assert written_openapi()["paths"]["/v1/agents"]["get"]["security"] == [{"key": []}]
    assert "security" not in written_openapi()["paths"]["/v1/health"]["get"]


def test_every_operation_says_how_it_refuses() -> None:
    for path, methods in written_openapi()["paths"].items():
        for operation in methods.values():
            wanted = {"400", "401", "403", "404", "409", "429", "503"} if path.startswith("/v1/") else {"503"}
            assert path in ("/v1/health", SIGN_IN_RETURN) or wanted <= set(operation["responses"])


def test_streams_were_said_to_be_json() -> None:
    paths = written_openapi()["paths"]
    for path in ("/v1/runs/{run_id}/stream", "/v1/agents/{agent_id}/messages/stream"):
        assert list(content_of("post", path, 200)) == ["text/event-stream"]
    for method, path in SOMETIMES_STREAMS:
        assert list(content_of(method, path, 200)) == ["application/json", "text/event-stream"]
    assert all(method in paths[path] for method, path in ENDS_RUNS)


def test_the_document_of_the_repository_is_the_one_of_this_version() -> None:
    assert written_openapi() == openapi_document(), "make openapi"


def test_answers_had_no_types() -> None:
    """129 of 139 answers were objects of anything."""
    document = written_openapi()
    untyped: list[str] = []
    for operation in _operations(document):
        answered = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        for content in answered.get("content", {}).values():
            schema = content["schema"].get("items", content["schema"])
            if not schema.keys() & {"$ref", "type", "anyOf", "oneOf"} or _is_any_object(schema):
                untyped.append(operation["operationId"])
    assert set(untyped) == EMPTY_OBJECTS


EMPTY_OBJECTS = {
    *("conversations_cancel", "agents_messages_cancel"),  # the ids of runs are the names
    "tools_mcp_servers_list",  # the names of servers are the names
    "openai_conversations_items_retrieve",  # its `type` says what it has
    # Lists that are always empty.
    *("folders_list", "identities_list", "jobs_list", "jobs_list_active"),
    *("providers_list", "sources_list", "agents_folders_list"),
    *("agents_identities_list", "agents_sources_list"),
}


def test_a_streams_frames_had_no_type() -> None:
    document = written_openapi()
    streams = [
        one["responses"]["200"]["content"]["text/event-stream"] for one in _operations(document) if _streams(one)
    ]
    assert len(streams) == 27
    named = {stream["schema"]["$ref"].rpartition("/")[2] for stream in streams}
    assert named == {"AgUiEvent", "Frame", "ChatFrame", "McpEvent", "McpSignInEvent", "ResponseEvent", "UiMessageChunk"}
    frames = document["components"]["schemas"]["Frame"]
    assert len(frames["oneOf"]) == len(frames["discriminator"]["mapping"]) == 13


def test_names_of_methods_were_made_of_paths() -> None:
    """`create_agent_v1_agents_post`"""
    names = [operation["operationId"] for operation in _operations(written_openapi())]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)] == []
    assert {"agents_create", "agents_list", "runs_retrieve", "runs_stream", "chat_completions_create"} <= set(names)


async def test_a_generated_client_sent_no_key(sqlite_url: str) -> None:
    document = written_openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert document["servers"][0]["url"] == "/"
    browsers = document["paths"]["/v1/runs/{run_id}/stream"]["get"]
    assert browsers["security"] == [{"key": []}, {"stream_token": []}]
    async with open_database(sqlite_url) as database, api_app(database) as without_keys:
        assert without_keys.openapi()["paths"]["/v1/agents"]["get"]["security"] == [{}, {"key": []}]


@pytest.mark.parametrize(
    ("place", "media_type", "body", "said"),
    [
        (("get", "/v1/runs/{run_id}"), "application/json", b'{"id": "run-1"}', "is a required property"),
        (("get", "/v1/blocks/count"), "application/json", b'"3"', "is not of type"),
        (("get", "/v1/agents/{agent_id}/files"), "application/json", NO_FILES + b', "more": 1}', "was unexpected"),
        (("post", "/v1/runs/{run_id}/stream"), "text/event-stream", b'data: {"message_type": "pong"}', "oneOf"),
        (("get", "/v1/blocks/count"), "text/event-stream", b"data: {}", "has no text/event-stream"),
    ],
)
def test_what_the_document_does_not_say_fails_a_test(
    place: tuple[str, str], media_type: str, body: bytes, said: str
) -> None:
    [flaw] = flaws(place, media_type, body)
    assert said in flaw, flaw
    assert flaws(("get", "/v1/agents/{agent_id}/files"), "application/json", NO_FILES + b"}") == []


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def _streams(operation: dict[str, Any]) -> bool:
    return "text/event-stream" in operation["responses"].get("200", {}).get("content", {})


def _is_any_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "object" and "properties" not in schema


@pytest.mark.parametrize(
    ("time", "is_whole"),
    [
        ("2026-11-25T03:39:16.562052Z", True),
        ("2026-11-25T03:39:16+01:00", True),
        ("2026-11-25T03:39:16.562052", False),
        ("2026-11-25 03:39:16Z", False),
    ],
)
def test_a_run_ended_at_a_time_without_its_zone(time: str, is_whole: bool) -> None:
    """`completed_at` had none, so a page in New York showed a run of five hours. Every answer that a test gets is held
    against this."""
    schema = {"type": "object", "properties": {"completed_at": {"type": "string", "format": "date-time"}}}
    assert validator_of(schema).is_valid({"completed_at": time}) is is_whole


async def test_a_wrong_method_was_told_those_of_the_first_route_only(http: httpx.AsyncClient) -> None:
    answer = await http.request("OPTIONS", "/v1/tools")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST, PUT")


@pytest.mark.parametrize("path", ["/v1/folders", "/v1/jobs/active", "/v1/groups/count"])
async def test_a_method_that_nobody_has_was_said_to_be_lettas(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.request("TRACE", path)).status_code == 405
    assert (await http.request("POST", path)).status_code == 501


def test_every_operation_has_a_name_and_types_of_its_own() -> None:
    """Else FastAPI's name and an answer without a type would stand in the document."""
    document = written_openapi()["paths"]
    routed = {(method, path) for path, methods in document.items() for method in methods}
    assert set(OPERATIONS) == routed
    assert all(document[path][method]["operationId"] == one.name for (method, path), one in OPERATIONS.items())


WRONG: dict[str, str] = {"boolean": "2", "integer": "many", "number": "many", "string": "\x00"}


def _wrong_questions(document: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, str], dict[str, str]]]:
    """Requests that get one parameter wrong: the method, the path, the address, its query and its header."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            address = re.sub(r"{(\w+)_id}", lambda found: f"{found[1].removesuffix('_message')}-{ID}", path)
            address = re.sub(r"{\w+}", "name", address)
            yield method, path, address, {}, {"X-Holdfast-Strict": "maybe"}
            for parameter in operation.get("parameters", ()):
                wrong = WRONG[_type_of(parameter["schema"])]
                if parameter["in"] == "query":
                    yield method, path, address, {parameter["name"]: wrong}, {}
                elif parameter["in"] == "header":
                    yield method, path, address, {}, {parameter["name"]: "?"}


def _type_of(schema: dict[str, Any]) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    return next((kind["type"] for kind in kinds if kind.get("type") in WRONG), "string")


async def test_openapi_did_not_say_what_a_wrong_parameter_is_answered(http: httpx.AsyncClient) -> None:
    """`/readyz?full=2` was a 422 of which the document knew nothing."""
    document = written_openapi()
    refused: set[str] = set()
    validators: dict[str, Any] = {}
    for method, path, address, query, header in _wrong_questions(document):
        body: dict[str, Any] | None = {} if method in ("post", "put", "patch") else None
        answer = await http.request(method, address, params=query, headers=header, json=body)
        described = document["paths"][path][method]["responses"]
        assert str(answer.status_code) in described, (method, address, query, header, answer.text)
        if answer.is_error:
            content = described[str(answer.status_code)]["content"]
            refused.add(path)
            if answer.headers["content-type"].startswith("text/plain"):
                assert "text/plain" in content, (method, address, query, answer.text)
                continue
            schema = content["application/json"]["schema"]
            if (text := str(schema)) not in validators:
                validators[text] = validator_of({**schema, "components": document["components"]})
            validators[text].validate(answer.json())
    assert {"/", "/healthz", "/readyz", "/v1/health", "/v1/runs"} <= refused
