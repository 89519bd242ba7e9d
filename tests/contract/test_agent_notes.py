"""What an agent was asked to be and is not here, in every answer that shows it."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from tests.kit.product import api_client
from tests.kit.services.databases import open_database


@pytest.fixture
async def http(sqlite_url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with open_database(sqlite_url) as database, api_client(database) as client:
        yield client


async def made(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/agents/", json={"model": "builtin/echo", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_agent_that_does_nothing_special_has_no_notes(http: httpx.AsyncClient) -> None:
    assert (await made(http))["not_acted_on"] == []


async def test_what_is_kept_and_not_acted_on_was_said_in_a_header_that_no_client_shows(http: httpx.AsyncClient) -> None:
    agent = await made(http, template=True)
    assert agent["not_acted_on"] == ["template: there are no templates here"]
    path = f"/v1/agents/{agent['id']}"
    assert (await http.get(path)).json()["not_acted_on"] == agent["not_acted_on"]
    [listed] = (await http.get("/v1/agents/")).json()
    assert listed["not_acted_on"] == agent["not_acted_on"]
    changed = await http.patch(path, json={"template": False})
    assert changed.json()["not_acted_on"] == []


@pytest.mark.parametrize(
    ("field", "asked", "nothing"),
    [
        ("folder_ids", ["folder-1"], []),
        ("source_ids", ["source-1"], None),
        ("from_template", "shop:latest", None),
        ("template", True, False),
    ],
)
async def test_an_agent_that_was_asked_for_more_said_so_in_a_header_alone(
    http: httpx.AsyncClient, field: str, asked: Any, nothing: Any
) -> None:
    agent = await made(http, **{field: asked, "embedding": "nonsense"})
    assert [note.partition(":")[0] for note in agent["not_acted_on"]] == [field, "embedding"]
    path = f"/v1/agents/{agent['id']}"
    renamed = (await http.patch(path, json={"name": "renamed"})).json()
    assert renamed["not_acted_on"] == (await http.get(path)).json()["not_acted_on"] == agent["not_acted_on"]
    assert len((await http.patch(path, json={field: nothing})).json()["not_acted_on"]) == 1
    assert (await made(http, **{field: nothing}))["not_acted_on"] == []
    later = await made(http)
    changed = (await http.patch(f"/v1/agents/{later['id']}", json={field: asked})).json()
    assert [note.partition(":")[0] for note in changed["not_acted_on"]] == [field]


@pytest.mark.parametrize("handle", ["letta/letta-free", "openai/text-embedding-3-small", "anthropic/x", "nonsense"])
async def test_an_embedding_model_that_cannot_be_asked_was_taken_without_a_word(
    http: httpx.AsyncClient, handle: str
) -> None:
    """No key is configured here."""
    [note] = (await made(http, embedding=handle))["not_acted_on"]
    assert note.startswith(f"embedding: this server cannot ask {handle!r}, so archival memory is searched by words")


async def test_an_embedding_model_that_can_be_asked_has_no_note(sqlite_url: str) -> None:
    environment = {"OPENAI_API_KEY": "key"}
    async with open_database(sqlite_url) as database, api_client(database, environment=environment) as http:
        assert (await made(http, embedding="openai/text-embedding-3-small"))["not_acted_on"] == []
