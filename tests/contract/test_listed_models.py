"""`GET /v1/models` asks the servers that the operator has."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from shared.domain.models import split_handle
from shared.network.checked_http import PUBLIC_ONLY
from shared.network.server_models import KEPT_S, LONGEST_ANSWER, FoundModels, ServerModels
from shared.sql.engine import Database
from tests.kit.clocks import FrozenClock
from tests.kit.model_server.http_exchange import HttpRequest, read_request, write_json
from tests.kit.product import api_client
from tests.kit.services.databases import open_database
from tests.kit.stream_server import stream_server

LLAMAS = {"object": "list", "data": [{"id": "llama 3"}, {"id": "org/qwen3:8b", "max_model_len": 40_000}]}


DEEP = b'{"data": ' + b"[" * 100_000


@pytest.fixture
async def database(sqlite_url: str):
    async with open_database(sqlite_url) as database:
        yield database


@dataclass
class Lists:
    """A server that answers each request with the same list."""

    origin: str = ""
    status: int = 200
    body: Any = field(default_factory=lambda: LLAMAS)
    requests: list[HttpRequest] = field(default_factory=list[HttpRequest])
    resume: asyncio.Event | None = None
    """Answers wait for it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection's requests."""
        with suppress(ConnectionError):
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                if self.resume is not None:
                    await self.resume.wait()
                write_json(writer, self.status, self.body, {})
                await writer.drain()
        writer.close()


@asynccontextmanager
async def lists(**fields: Any) -> AsyncGenerator[Lists]:
    """A server of models, while the block is open."""
    served = Lists(**fields)
    async with stream_server(served.serve) as port:
        served.origin = f"http://127.0.0.1:{port}"
        yield served


@asynccontextmanager
async def asking(environment: dict[str, str], clock: FrozenClock | None = None) -> AsyncGenerator[ServerModels]:
    """What asks the environment's servers."""
    found = ServerModels(environment, PUBLIC_ONLY, clock or FrozenClock())
    try:
        yield found
    finally:
        await found.aclose()


def handles(found: FoundModels) -> list[str]:
    return [model.handle for model in found.models]


@pytest.mark.parametrize(
    ("environment", "path", "provider", "key"),
    [
        ({"OLLAMA_BASE_URL": "{}"}, "/v1/models", "ollama", None),
        ({"VLLM_API_BASE": "{}/v1", "VLLM_API_KEY": "k"}, "/v1/models", "vllm", "k"),
        ({"LMSTUDIO_BASE_URL": "{}/"}, "/v1/models", "lmstudio", None),
        ({"OPENAI_COMPATIBLE_BASE_URL": "{}/llm"}, "/llm/models", "openai_compatible", None),
        ({"OPENAI_BASE_URL": "{}/v1", "OPENAI_API_KEY": "k"}, "/v1/models", "openai-proxy", "k"),
        ({"OPENAI_API_BASE": "{}/v1"}, "/v1/models", "openai-proxy", None),
        ({"GROQ_BASE_URL": "{}/v1", "GROQ_API_KEY": "k"}, "/v1/models", "groq", "k"),
    ],
)
async def test_a_servers_own_models_were_in_no_list(
    environment: dict[str, str], path: str, provider: str, key: str | None
) -> None:
    async with lists() as server, asking({n: v.format(server.origin) for n, v in environment.items()}) as asked:
        found = await asked.found()
        assert handles(found) == [f"{provider}/llama 3", f"{provider}/org/qwen3:8b"]
        assert [split_handle(handle)[0] for handle in handles(found)] == [provider, provider]
        assert (found.models[1].window, found.notes) == (40_000, ())
        [request] = server.requests
        assert request.path == path
        assert request.headers.get("authorization") == (f"Bearer {key}" if key else None)


@pytest.mark.parametrize(
    "environment",
    [
        {}, {"OPENAI_API_KEY": "k"}, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://api.openai.com/v1/"},
        {"GROQ_BASE_URL": "http://127.0.0.1:1"}, {"AZURE_BASE_URL": "http://127.0.0.1:1", "AZURE_API_KEY": "k"},
        {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_API_KEY": "k"},
    ],
)  # fmt: skip
async def test_who_has_no_list_of_its_own_is_not_asked(environment: dict[str, str]) -> None:
    async with asking(environment) as asked:
        assert await asked.found() == FoundModels()


async def test_requests_that_come_together_ask_once_and_again_after_a_while() -> None:
    clock = FrozenClock()
    async with lists() as server, asking({"OLLAMA_BASE_URL": server.origin}, clock) as asked:
        await asyncio.gather(*(asked.found() for _ in range(20)))
        assert len(server.requests) == 1
        clock.advance(ms=int(KEPT_S * 1000) - 1)
        await asked.found()
        assert len(server.requests) == 1
        server.body = {"data": [{"id": "new"}]}
        clock.advance(ms=1)
        assert handles(await asked.found()) == ["ollama/new"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, {"error": "secret"}, "answers with status 401"),
        (302, LLAMAS, "answers with status 302"),
        (200, "no list", "something else than a list"),
        (200, {"data": None}, "something else than a list"),
        (200, {"models": []}, "something else than a list"),
        (200, DEEP, "something else than a list"),
        (200, {"data": [{"id": "x" * LONGEST_ANSWER}]}, "more than"),
    ],
)
async def test_a_server_that_gives_no_list_is_named(status: int, body: Any, said: str) -> None:
    async with lists(status=status, body=body) as server, asking({"VLLM_BASE_URL": server.origin}) as asked:
        found = await asked.found()
    [note] = found.notes
    assert note.startswith("the models of vllm are not listed: ")
    assert said in note
    assert "secret" not in note
    assert (found.models, found.answered) == ((), frozenset())


async def test_a_server_that_says_nothing_does_not_hold_up_the_others() -> None:
    async with (
        lists(resume=asyncio.Event()) as silent,
        lists() as server,
        asking({"VLLM_BASE_URL": silent.origin, "OLLAMA_BASE_URL": server.origin}) as asked,
    ):
        found = await asked.found()
    assert handles(found)[0] == "ollama/llama 3"
    assert [note.partition(":")[0] for note in found.notes] == ["the models of vllm are not listed"]


@pytest.mark.parametrize(
    "entry",
    [
        None, "name", {}, {"id": None}, {"id": ""}, {"id": 7}, {"id": "a/../b"}, {"id": "a\nb"}, {"id": "x" * 400},
        {"id": "nomic-embed-text"}, {"id": "llama 3"}, {"id": "a?b"}, {"id": "a\u2028b"},
    ],
)  # fmt: skip
async def test_entries_that_no_agent_could_be_given_are_left_out(entry: Any) -> None:
    body = {"data": [{"id": "llama 3", "context_length": "big"}, entry]}
    async with lists(body=body) as server, asking({"OLLAMA_BASE_URL": server.origin}) as asked:
        assert handles(await asked.found()) == ["ollama/llama 3"]


async def _listed(database: Database, environment: dict[str, str], check: Callable[[list[str], str], None]) -> None:
    async with api_client(database, environment=environment) as http:
        answer = await http.get("/v1/models/")
        assert answer.status_code == 200
        check([model["handle"] for model in answer.json()], answer.headers.get("Warning", ""))


async def test_a_gateways_models_stand_in_the_place_of_openais(database: Database) -> None:
    def check(listed: list[str], warning: str) -> None:
        assert listed[:2] == ["openai-proxy/llama 3", "openai-proxy/org/qwen3:8b"]
        assert not [handle for handle in listed if handle.startswith("openai/")]
        assert warning == ""

    async with lists() as server:
        await _listed(database, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{server.origin}/v1"}, check)


async def test_a_dead_gateway_leaves_the_names_that_are_known_and_says_so(database: Database) -> None:
    def check(listed: list[str], warning: str) -> None:
        assert "openai/gpt-4o-mini" in listed
        assert "the models of openai are not listed: http://127.0.0.1:1 cannot be reached" in warning

    await _listed(database, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://user:secret@127.0.0.1:1/v1"}, check)


async def test_models_are_filtered_by_provider_and_category(database: Database) -> None:
    async with api_client(database, environment={"OPENAI_API_KEY": "key"}) as http:

        async def providers(**wanted: str) -> set[str]:
            return {model["provider_name"] for model in (await http.get("/v1/models", params=wanted)).json()}

        assert {"builtin", "openai"} <= await providers(provider_category="base")
        assert await providers(provider_category="byok") == set()
        assert await providers(provider_name="builtin") == {"builtin"}
