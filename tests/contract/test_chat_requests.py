"""Requests for chat completions that are refused, in the shape that OpenAI's clients read, and what others are told."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from api.errors import Failure, Refusal
from api.openai.chat_request import ChatRequest, input_of, left_out, openai_error
from shared.domain.errors import ErrorCode
from shared.sql.engine import Database
from tests.kit.product import api_client
from tests.kit.project.documents import table_rows
from tests.kit.services.databases import open_database

PATH = "/v1/chat/completions"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


@pytest.fixture
async def database(sqlite_url: str) -> AsyncGenerator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
async def http(database: Database) -> AsyncGenerator[httpx.AsyncClient]:
    async with api_client(database) as client:
        yield client


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return error


@pytest.mark.parametrize(
    ("changed", "param", "said"),
    [
        ({"n": 2}, "n", "1"),
        ({"messages": []}, "messages", "there is no new message"),
        ({"messages": [USER, ANSWER]}, "messages", "end the list with a message of the user"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages", "there is no new message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0].role is 'robot'"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}, 1]}]}, "messages", "content[0] is not"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]},
            "messages",
            "messages[0].content[0].image_url.url must be http",
        ),
        ({"messages": [{**USER, "name": 1}]}, "messages", "messages[0].name must be a text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "messages[0].tool_call_id is missing"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages", "use tools"),
        ({"functions": [{"name": "x"}]}, "functions", "use tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "function"),
        ({"tool_choice": "required"}, "tool_choice", "'auto' or 'none'"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"modalities": ["text", "audio"]}, "modalities", "answers in text"),
        ({"user": 7}, "user", "string"),
        ({"stream": "perhaps"}, "stream", "boolean"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(
    http: httpx.AsyncClient, changed: dict[str, Any], param: str, said: str
) -> None:
    made = await http.post("/v1/agents/", json={"model": "builtin/echo"})
    answer = await http.post(PATH, json={"model": made.json()["id"], "messages": [USER], **changed})

    error = error_of(answer)
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert said in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert (await http.get("/v1/runs/")).json() == []


@pytest.mark.parametrize("model", ["gpt-4o", "", f"agent-{UNKNOWN}", f"conv-{UNKNOWN}", "default", "agent-1"])
async def test_a_model_that_is_no_agent_does_not_exist(http: httpx.AsyncClient, model: str) -> None:
    answer = await http.post(PATH, json={"model": model, "messages": [USER]})
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert repr(model) in error["message"]


async def test_a_refusal_of_any_part_is_in_openais_shape(database: Database) -> None:
    """Before a route sees it, the key and the body are looked at, by those who speak Letta's dialect."""
    async with api_client(database, api_keys="default=secret", max_body_bytes=1000) as http:
        answers = [
            await http.post(PATH, json={}),
            await http.post(PATH, json={}, headers={"Authorization": "Bearer wrong"}),
        ]
        key = {"Authorization": "Bearer secret"}
        answers.append(await http.post(PATH, json={"user": "x" * 1000}, headers=key))
        answers.append(await http.post(PATH, content=b'{"n": NaN}', headers=key))
        answers.append(await http.post(PATH, content=b"{", headers={**key, "Content-Type": "application/json"}))
        answers.append(await http.get(PATH, headers=key))
        answers.append(await http.post(f"{PATH}/x", json={}, headers=key))
        long_key = {**key, "Idempotency-Key": "x" * 300}
        answers.append(await http.post(PATH, json={"model": "x", "messages": [USER]}, headers=long_key))

    assert [(answer.status_code, error_of(answer)["code"]) for answer in answers] == [
        (401, "invalid_api_key"),
        (401, "invalid_api_key"),
        (413, "body_too_large"),
        (400, "invalid_argument"),
        (400, "invalid_argument"),
        (405, "method_not_allowed"),
        (404, "path_not_found"),
        (400, "invalid_argument"),
    ]
    assert answers[1].headers["www-authenticate"] == "Bearer"
    assert error_of(answers[-1])["param"] == "idempotency-key"


async def test_a_server_without_keys_refuses_foreign_pages_in_openais_shape(http: httpx.AsyncClient) -> None:
    answer = await http.post(PATH, json={}, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden_origin")


@pytest.mark.parametrize(
    ("refusal", "kind", "code", "message"),
    [
        (
            Refusal(status=500, code=ErrorCode.INTERNAL_ERROR, message="An unknown error occurred"),
            *("server_error", "internal_error", "An unknown error occurred"),
        ),
        (
            Refusal(status=503, code=ErrorCode.SERVICE_UNAVAILABLE, message="away", detail="SERVICE_UNAVAILABLE: away"),
            *("server_error", "service_unavailable", "away"),
        ),
        (
            Refusal(status=409, code=ErrorCode.CONVERSATION_BUSY, message="busy", run_id="run-1"),
            *("invalid_request_error", "conversation_busy", "busy"),
        ),
        (
            Refusal(
                status=429,
                code=ErrorCode.LLM_RATE_LIMIT,
                message="Slow down.",
                failure=Failure("llm_rate_limit", "openai: x"),
            ),
            *("rate_limit_error", "rate_limit_exceeded", "Slow down. openai: x"),
        ),
        (
            Refusal(status=400, code=ErrorCode.CONTEXT_WINDOW_EXCEEDED, message="too long"),
            *("invalid_request_error", "context_length_exceeded", "too long"),
        ),
    ],
)
def test_errors_are_told_in_openais_words(refusal: Refusal, kind: str, code: str, message: str) -> None:
    status, body = openai_error(refusal)
    error = body["error"]
    assert status == refusal.status
    assert (error["type"], error["code"], error["message"], error["param"]) == (kind, code, message, None)
    assert error["hint"]
    assert error.get("run_id") == refusal.run_id


def test_only_what_is_new_becomes_input() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    talk = [{"role": "system", "content": "s"}, USER, ANSWER, {**USER, "content": "old"}, call, result, USER]

    sent = input_of([*talk, {"role": "developer", "content": "d"}], "ada")

    assert [(one.tool_call_id, one.kind, one.tool_return) for one in sent.results] == [("c", "tool", "42")]
    assert sent.said is not None
    assert (sent.said.content, sent.said.sender_id) == ("Hi", "ada")
    assert list(left_out(talk)) == [
        "messages[system]",
        "messages[user]",
        "messages[assistant]",
        "messages[user]",
        "messages[assistant]",
    ]


def test_each_field_of_openais_is_acted_on_or_listed() -> None:
    """docs/chat-completions.md says of every field of the SDK's what becomes of it, and of no other."""
    listed = {name.strip("` ") for row in table_rows("chat-completions.md", "field") for name in row[0].split(",")}
    known = set(CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert set(ChatRequest.model_fields) <= known
    assert listed == known
