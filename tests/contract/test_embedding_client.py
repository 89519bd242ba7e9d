"""Embedding models over their wire: where a request goes, what is read from the answer, what a failure is called."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from shared.archival.archival_memory import MOST_DIMENSIONS, EmbeddingClient
from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server import ModelServer

HANDLE = "openai/text-embedding-3-small"


def entry(index: int, *numbers: float) -> dict[str, Any]:
    return {"index": index, "embedding": list(numbers)}


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def client(server: ModelServer) -> AsyncGenerator[EmbeddingClient]:
    client = EmbeddingClient(server.base_urls(), answer_s=30)
    yield client
    await client.aclose()


@pytest.mark.parametrize(
    ("handle", "path", "model", "key"),
    [
        (HANDLE, "/v1/embeddings", "text-embedding-3-small", "Bearer test-openai"),
        ("ollama/nomic-embed-text:v1.5", "/v1/embeddings", "nomic-embed-text:v1.5", None),
        ("vllm/BAAI/bge-m3", "/v1/embeddings", "BAAI/bge-m3", None),
        ("google_ai/gemini-embedding-001", "/v1beta/openai/embeddings", "gemini-embedding-001", "Bearer test-gemini"),
    ],
)
async def test_a_request_goes_where_the_providers_chat_models_are(
    server: ModelServer, client: EmbeddingClient, handle: str, path: str, model: str, key: str | None
) -> None:
    [vector] = await client.embed(handle, ["rain"])
    assert [round(number, 3) for number in vector] == [0.992, 0.09, 0.09]
    [asked] = server.embeddings.requests
    assert (asked.path, asked.model, asked.texts, asked.headers.get("authorization")) == (path, model, ["rain"], key)


async def test_each_text_gets_its_own_vector_over_one_connection(server: ModelServer, client: EmbeddingClient) -> None:
    rain, dog = await client.embed(HANDLE, ["rain", "dog"])
    assert (max(rain) == rain[0], max(dog) == dog[1]) == (True, True)
    await client.embed(HANDLE, ["rain"])
    assert server.connections_accepted == 1


@pytest.mark.parametrize(
    ("status", "error_type"),
    [
        (400, ModelErrorType.BAD_REQUEST),
        (401, ModelErrorType.AUTHENTICATION),
        (404, ModelErrorType.ERROR),
        (429, ModelErrorType.RATE_LIMIT),
        (500, ModelErrorType.ERROR),
    ],
)
async def test_a_refusal_names_the_server_that_was_asked(
    server: ModelServer, client: EmbeddingClient, status: int, error_type: ModelErrorType
) -> None:
    server.embeddings.failures.append(status)
    with pytest.raises(ModelError, match=f"status {status}.*Not now.*{server.origin}/v1") as failed:
        await client.embed(HANDLE, ["rain"])
    assert failed.value.error_type is error_type


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": []},
        {"data": "none"},
        b'{"more": ' + b"[" * 100_000,
        {"data": [entry(0, 1.0)]},
        {"data": [entry(0, 1.0), entry(0, 1.0)]},
        {"data": [entry(0, 1.0), entry(1, 1.0, 2.0)]},
        {"data": [entry(0), entry(1)]},
        {"data": [entry(0, 0.0), entry(1, 0.0)]},
        {"data": [entry(0, 1e308, 1e308), entry(1, 1e999, 1.0)]},
        {"data": [entry(0, *[1.0] * (MOST_DIMENSIONS + 1)), entry(1, *[1.0] * (MOST_DIMENSIONS + 1))]},
    ],
)
async def test_an_answer_that_is_no_set_of_vectors_is_an_error(
    server: ModelServer, client: EmbeddingClient, body: Any
) -> None:
    server.embeddings.bodies.append(body)
    with pytest.raises(ModelError) as failed:
        await client.embed(HANDLE, ["rain", "dog"])
    assert failed.value.error_type is ModelErrorType.ERROR


@pytest.mark.parametrize("left_out", [{}, {"index": None}])
async def test_google_leaves_out_the_index_of_the_first_text_and_no_passage_got_a_vector(
    server: ModelServer, client: EmbeddingClient, left_out: dict[str, Any]
) -> None:
    server.embeddings.bodies.append({"data": [{"embedding": [3.0, 4.0], **left_out}, entry(1, 1.0, 0.0)]})
    rain, dog = await client.embed("google_ai/gemini-embedding-001", ["rain", "dog"])
    assert [round(number, 3) for number in rain] == [0.6, 0.8]
    assert list(dog) == [1.0, 0.0]


async def test_a_silent_server_is_left_in_time(server: ModelServer) -> None:
    server.embeddings.resume = asyncio.Event()
    client = EmbeddingClient(server.base_urls(), answer_s=0.05)
    with pytest.raises(ModelError, match=r"no answer within 0\.05 s") as failed:
        await client.embed(HANDLE, ["rain"])
    assert failed.value.error_type is ModelErrorType.TIMEOUT
    server.embeddings.resume.set()
    await client.aclose()


@pytest.mark.parametrize(
    ("handle", "environment", "said"),
    [
        (HANDLE, {}, "set OPENAI_API_KEY"),
        ("openai_compatible/x", {}, "set OPENAI_COMPATIBLE_BASE_URL"),
        ("anthropic/x", {"ANTHROPIC_API_KEY": "k"}, "cannot be asked"),
        ("nowhere", {}, "cannot be asked"),
        ("openai/..", {"OPENAI_API_KEY": "k"}, "cannot be asked"),
        (
            HANDLE,
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://u:secret@127.0.0.1:1/v1"},
            r"http://127\.0\.0\.1:1/v1",
        ),
    ],
)
async def test_a_handle_that_leads_nowhere_says_what_is_missing(
    handle: str, environment: dict[str, str], said: str
) -> None:
    client = EmbeddingClient(environment)
    with pytest.raises(ModelError, match=said) as failed:
        await client.embed(handle, ["rain"])
    assert "secret" not in failed.value.message
    await client.aclose()
